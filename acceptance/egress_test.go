package acceptance

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/manager"
)

// TestGatewayRestarts takes the gateway away under a kick while the model's
// answer streams. The agent sees its answer break off, tries again, and the kick
// ends as if nothing had been; the audit has an end for each request.
func TestGatewayRestarts(t *testing.T) {
	t.Parallel()
	bin := scripted(t, "claude")
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	var once sync.Once
	p.onStream = func(r *http.Request) {
		once.Do(func() {
			sockets, err := filepath.Glob(filepath.Join(p.state, "kicks", "*", "egress", egress.SocketName))
			if err != nil || len(sockets) != 1 {
				t.Errorf("sockets %q, %v", sockets, err)
				return
			}
			if err := os.Remove(sockets[0]); err != nil {
				t.Error(err)
			}
			<-r.Context().Done() // the gateway let go of the provider
		})
	}
	searched := 0
	p.onResult = func() { searched = searchSandbox(t, filepath.Join(bin, "claude"), p.key) }
	o, dir := p.kick(t, h, "claude", "--program-dir", bin)
	if o.Outcome != manager.Published || o.PullRequest == "" {
		log, _ := os.ReadFile(filepath.Join(dir, "transcript.log"))
		t.Fatalf("%s: %s\n%s", o.Outcome, o.Error, log)
	}
	if searched == 0 {
		t.Error("no process of the sandbox was searched for the key")
	}
	if o.Egress == nil || o.Egress.Restarts != 1 {
		t.Errorf("egress %+v", o.Egress)
	}
	log, err := os.ReadFile(filepath.Join(dir, "transcript.log"))
	if err != nil || !strings.Contains(string(log), "broke off, trying again") {
		t.Errorf("the agent saw no error: %v\n%s", err, log)
	}
	wantWhole(t, audit(t, dir), "broke off")
}

// TestKickKilledInAnAnswer kills kick, and with it the gateway, while the model's
// answer streams: the sandbox goes too, and the next kick completes the audit.
func TestKickKilledInAnAnswer(t *testing.T) {
	t.Parallel()
	bin := scripted(t, "claude")
	p, h := newProvider(t), newHub(t, githubtest.Options{})
	xdg := t.TempDir()
	p.state = filepath.Join(xdg, "kick")
	cmd := exec.Command(kick, append([]string{"run", "--state-dir", p.state}, p.args(h, "claude", "--program-dir", bin)...)...)
	cmd.Env = append(os.Environ(), keyVariable+"="+p.key)
	streams := make(chan *http.Request, 10)
	p.onStream = func(r *http.Request) {
		streams <- r
		<-r.Context().Done()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case r := <-streams:
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
		<-r.Context().Done() // nobody holds the provider's answer
	case <-ended:
		t.Fatalf("kick ended with %v", cmd.ProcessState)
	}
	if out, err := exec.Command(kick, "gc", "--state-dir", p.state).CombinedOutput(); err != nil {
		t.Fatalf("kick gc: %v\n%s", err, out)
	}
	if left := leftovers(xdg); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	o := onlyOutcome(t, p.state)
	if o.Outcome != manager.Interrupted || o.Egress == nil || o.Egress.Allowed != 1 {
		t.Errorf("%s, egress %+v", o.Outcome, o.Egress)
	}
	dir := filepath.Join(p.state, "kicks", o.ID)
	wantWhole(t, audit(t, dir), "kick was killed")
	if out, _ := exec.Command("grep", "-rlF", p.key, dir).CombinedOutput(); len(out) > 0 {
		t.Errorf("the key is in the state directory:\n%s", out)
	}
}

// wantWhole fails unless each allowed request has an end, one of them with an
// error that has these words.
func wantWhole(t *testing.T, records []egress.Record, words string) {
	t.Helper()
	open, found := map[int]bool{}, false
	for _, r := range records {
		switch {
		case r.Event == egress.Done:
			delete(open, r.Request)
			found = found || strings.Contains(r.End.Error, words)
		case r.Event == egress.Decided && r.Verdict == egress.Allowed:
			open[r.Request] = true
		}
	}
	if len(open) > 0 || !found {
		t.Errorf("requests without an end: %v; one that %s: %v; in %+v", open, words, found, records)
	}
}
