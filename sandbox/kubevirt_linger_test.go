package sandbox

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// TestKubeVirtLingerPlan: a machine that may linger lives for another kick, and its
// Secret, which nobody can change, is not labelled with a kick that ends before it.
func TestKubeVirtLingerPlan(t *testing.T) {
	t.Parallel()
	plan := kubeVirtCase("linger")
	s, err := plan.secret("the-uid", newPair(t))
	if err != nil {
		t.Fatal(err)
	}
	// Twice the 4150 s of a kick, and the twenty minutes between.
	if string(s.Data[fileLifetime]) != "9500\n" || plan.instance.Annotations[machineLife] != "2h38m20s" || plan.instance.Annotations[jobLifetime] != "1h9m10s" {
		t.Errorf("it lives for %s s, and says %v", s.Data[fileLifetime], plan.instance.Annotations)
	}
	if len(s.Labels) > 0 {
		t.Errorf("the Secret has %v", s.Labels)
	}
	for wall, want := range map[time.Duration]time.Duration{
		24 * time.Hour: standbyLife, // not for two kicks
		50 * time.Hour: 50*time.Hour + plan.lifetime() - plan.limits.Wall,
	} {
		long := *plan
		long.limits.Wall = wall
		if got := long.life(); got != want || got < long.lifetime() {
			t.Errorf("for kicks of %v it lives for %v, want %v", wall, got, want)
		}
	}
	for name, change := range map[string]func(*kubeVirtPlan){
		"nobody is trusted": func(p *kubeVirtPlan) { p.spec.Trust = "" },
		"it is off":         func(p *kubeVirtPlan) { p.config.Linger = KubeVirtLinger{} },
		"work is collected": func(p *kubeVirtPlan) { p.mode = frame.CollectMode },
	} {
		p := kubeVirtCase("linger")
		if change(p); p.lingers() || p.life() != p.lifetime() {
			t.Errorf("where %s it lingers", name)
		}
	}
}

// TestKubeVirtLingerShape: machines that are made alike are alike whatever kick had
// them first, and whether they stood by. Others are not.
func TestKubeVirtLingerShape(t *testing.T) {
	t.Parallel()
	shape := func(change func(*kubeVirtPlan)) string {
		p := kubeVirtCase("linger")
		change(p)
		s, err := p.lingerShape()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := shape(func(*kubeVirtPlan) {})
	for name, tt := range map[string]struct {
		change func(*kubeVirtPlan)
		same   bool
	}{
		"another kick":    {func(p *kubeVirtPlan) { p.spec.ID = "k0123456789abd" }, true},
		"of a pool":       {func(p *kubeVirtPlan) { p.standby, p.config.Pool = "kick-pool-agents-01234567", "agents" }, true},
		"another time":    {func(p *kubeVirtPlan) { p.limits.Wall *= 2 }, true},
		"another memory":  {func(p *kubeVirtPlan) { p.limits.Memory *= 2 }, false},
		"another image":   {func(p *kubeVirtPlan) { p.spec.Image += "0" }, false},
		"another node":    {func(p *kubeVirtPlan) { p.config.NodeSelector = map[string]string{"kvm": "yes"} }, false},
		"another way in":  {func(p *kubeVirtPlan) { p.config.Keys = cloudInitKeys }, false},
		"more processors": {func(p *kubeVirtPlan) { p.config.Cores++ }, false},
	} {
		if got := shape(tt.change); (got == want) != tt.same {
			t.Errorf("%s: the same is %v", name, got == want)
		}
	}
}

// TestKubeVirtLingerFor: a machine lingers for kicks of one state, of one trust, as one
// user.
func TestKubeVirtLingerFor(t *testing.T) {
	t.Parallel()
	launcher := func(key, user string) *KubeVirt {
		l := &KubeVirt{cluster: &Kubernetes{kubeCluster: &kubeCluster{key: []byte(key)}}}
		l.config.User = user
		return l
	}
	one := launcher("one", "agent")
	names := map[string]bool{}
	for _, name := range []string{one.lingerFor("a"), one.lingerFor("a"), one.lingerFor("b"), launcher("two", "agent").lingerFor("a"), launcher("one", "worker").lingerFor("a")} {
		names[name] = true
		if len(name) > 63 {
			t.Errorf("%s is too long for a label", name)
		}
	}
	if len(names) != 4 {
		t.Errorf("there are %d names, want 4: %v", len(names), names)
	}
	lingers := &kubevirtapi.Instance{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelLinger: one.lingerFor("a"), labelStandby: standsAgain}}}
	if !one.ours(lingers) || launcher("two", "agent").ours(lingers) || !lingering(lingers) || ofKick(lingers) {
		t.Error("a machine that lingers is not its state's alone, or a kick's")
	}
}

// TestKubeVirtFitsAgain: what is claimed lingers still, and lives as long as the kick may
// take.
func TestKubeVirtFitsAgain(t *testing.T) {
	t.Parallel()
	client, err := kube.New(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	now := time.Now()
	client.Clock = func() time.Time { return now }
	const runs = `{"status": {"phase": "Running", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`
	b := &kubeVirtBox{client: client, plan: kubeVirtCase("linger")} // of 1h9m10s
	for name, tt := range map[string]struct {
		status, lifetime, life string
		labels                 map[string]string
		fits                   bool
	}{
		"fits":              {runs, "31m0s", "1h40m0s", nil, true},
		"is over":           {runs, "30m0s", "1h40m0s", nil, false},
		"says not how long": {runs, "", "1h40m0s", nil, false},
		"goes off too soon": {runs, "31m0s", "1h39m0s", nil, false},
		"nobody knows when": {runs, "31m0s", "", nil, false},
		"of a pool":         {runs, "31m0s", "", map[string]string{labelPool: "agents"}, true},
		"has gone off":      {`{"status": {"phase": "Succeeded"}}`, "31m0s", "1h40m0s", nil, false},
		"is being deleted":  {`{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Running", "interfaces": [{"ipAddress": "10.0.2.2"}]}}`, "31m0s", "1h40m0s", nil, false},
	} {
		m := machineSaid(t, tt.status)
		m.CreationTimestamp, m.Labels = metav1.NewTime(now.Add(-30*time.Minute-time.Second)), tt.labels
		m.Annotations = map[string]string{jobLifetime: tt.lifetime, machineLife: tt.life}
		if got := b.fitsAgain(m); got != tt.fits {
			t.Errorf("one that %s fits: %v", name, got)
		}
	}
}

// TestKubeVirtLeftBehind: where something of the kick is left, or nobody answers any more, the
// machine does not linger, and the result says why.
func TestKubeVirtLeftBehind(t *testing.T) {
	t.Parallel()
	keys := newPair(t)
	asked := make(chan string, 1)
	left := honest(t, keys.host, keys.client, func(n ssh.NewChannel) {
		c, requests, err := n.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for r := range requests {
			if r.Type != "exec" {
				_ = r.Reply(false, nil)
				continue
			}
			_ = r.Reply(true, nil)
			in, _ := io.ReadAll(c) // the test looks at it
			asked <- string(r.Payload[4:]) + " " + string(in)
			_, _ = io.WriteString(c, "a process is left, 7 (evil)")
			_, _ = c.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, 1))
			return
		}
	})
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		says  string
		asks  string
	}{
		"a process":      {left, "it does not linger: ", `/home/agent/k1/kick-shim leave {"dir":"/home/agent/k1","before":[{"pid":5,"start":"99"}],"patienceMS":20000}`},
		"nobody answers": {func(net.Conn) {}, "it does not linger: speak SSH with the machine", ""},
	} {
		b := &kubeVirtBox{plan: kubeVirtCase("linger"), guest: *guestServer(t, keys, tt.serve), dir: "/home/agent/k1"}
		b.machine.Processes = []frame.Process{{PID: 5, Start: "99"}}
		lingers, err := b.leave()
		if lingers || err != nil || !strings.HasPrefix(b.after, tt.says) {
			t.Errorf("%s: it lingers: %v, %v, %s", name, lingers, err, b.after)
		}
		if tt.asks == "" {
			continue
		}
		if got := <-asked; got != tt.asks || !strings.Contains(b.after, "a process is left, 7 (evil)") {
			t.Errorf("%s: the machine is asked %s, and the result says %s", name, got, b.after)
		}
	}
}

// TestKubeVirtRelease: a machine lingers when the API server has said so, or when it is
// the kick's no more; and one of which nobody knows is left to the reaper.
func TestKubeVirtRelease(t *testing.T) {
	t.Parallel()
	const mine, gone, conflict, may = `"labels": {"kick.id": "k0123456789abc"}, "annotations": {"kick.start": "0123456789abcdef", "kick.life": "10h0m0s"}`, "404 NotFound", "409 Conflict", "403 Forbidden"
	const short = `"labels": {"kick.id": "k0123456789abc"}, "annotations": {"kick.start": "0123456789abcdef", "kick.life": "1h9m10s"}`
	const taken = `"labels": {"kick.id": "another"}, "annotations": {"kick.start": "another"}`
	for name, tt := range map[string]struct {
		answers []string // to GET and PATCH, in turn
		lingers bool
		says    string
	}{
		"at once":                        {[]string{mine, mine}, true, ""},
		"after KubeVirt's own change":    {[]string{mine, conflict, mine, mine}, true, ""},
		"by a patch without an answer":   {[]string{mine, conflict, taken}, true, ""},
		"gone":                           {[]string{gone}, false, "not found"},
		"gone meanwhile":                 {[]string{mine, conflict, gone}, false, "not found"},
		"nobody can see":                 {[]string{may}, false, "get virtualmachineinstances"},
		"nobody can see what has become": {[]string{mine, conflict, may}, true, "see whether the machine kick-k0123456789abc lingers"},
		"may not":                        {[]string{mine, may, mine, may, mine, may, mine, may, mine, may, mine}, false, "patch virtualmachineinstances"},
		"not the kick's":                 {[]string{taken}, false, "somebody else"},
		"goes off soon":                  {[]string{short}, false, "no time for another kick"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := tt.answers
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				method := []string{http.MethodGet, http.MethodPatch}[(len(tt.answers)-len(answers))%2]
				if len(answers) == 0 || r.Method != method {
					t.Errorf("%s is asked for", r.Method)
					return
				}
				var answer string
				answer, answers = answers[0], answers[1:]
				body, err := io.ReadAll(r.Body)
				if err != nil || method == http.MethodPatch && !(bytes.Contains(body, []byte(`"resourceVersion":"7"`)) && bytes.Contains(body, []byte(`"kick.id":null`)) && bytes.Contains(body, []byte(`"kick.standby":"again"`)) && !bytes.Contains(body, []byte(labelNetwork))) {
					t.Errorf("%v: %s", err, body)
				}
				if code, reason, refused := strings.Cut(answer, " "); refused && len(code) == 3 {
					n, _ := strconv.Atoi(code)
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(n)
					_, _ = fmt.Fprintf(w, `{"kind": "Status", "status": "Failure", "code": %s, "reason": %q, "message": %q}`, code, reason, map[string]string{"NotFound": "not found"}[reason])
					return
				}
				_, _ = fmt.Fprintf(w, `{"metadata": {"name": "kick-k0123456789abc", "resourceVersion": "7", "creationTimestamp": %q, %s}}`, time.Now().UTC().Format(time.RFC3339), answer)
			}))
			defer s.Close()
			client, err := kube.New(&rest.Config{Host: s.URL})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			b := &kubeVirtBox{client: client, plan: kubeVirtCase("linger"), launcher: &KubeVirt{cluster: &Kubernetes{kubeCluster: &kubeCluster{}}}}
			b.launcher.config, b.spec = b.plan.config, b.plan.spec
			b.eye = &machineEye{object: objectOf(kubevirtapi.Instances, &b.plan.instance.ObjectMeta)}
			_, lingers, err := b.release(t.Context())
			if lingers != tt.lingers || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) || len(answers) > 0 {
				t.Errorf("it lingers: %v, %v; not asked for %d", lingers, err, len(answers))
			}
		})
	}
}

// TestKubeVirtLingerRefused: what says no number and no time is refused.
func TestKubeVirtLingerRefused(t *testing.T) {
	t.Parallel()
	for linger, ok := range map[KubeVirtLinger]bool{
		{}: true, {1, time.Second}: true, {MaxLingering, MaxLinger}: true,
		{1, 0}: false, {0, time.Minute}: false, {-1, time.Minute}: false, {1, -time.Minute}: false, {MaxLingering + 1, time.Minute}: false, {1, MaxLinger + 1}: false,
	} {
		err := (&KubeVirt{config: KubeVirtConfig{KubeVirtChoice: KubeVirtChoice{Linger: linger}}}).check(&LaunchSpec{})
		var said *Error
		if ok && err != nil || !ok && (!errors.Is(err, ErrSpec) || !errors.As(err, &said) || said.Op != "machines that linger" || said.Remedy == "") {
			t.Errorf("%+v: %v", linger, err)
		}
	}
}

// TestByItself: a machine lingers after no other end than the command's own.
func TestByItself(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*session)
		want   bool
	}{
		"well":                   {func(*session) {}, true},
		"with a failure":         {func(s *session) { s.exit.Code = 3 }, true},
		"never":                  {func(s *session) { s.exit = nil }, false},
		"by a signal":            {func(s *session) { s.exit.Signal = 9 }, false},
		"before it started":      {func(s *session) { s.exit.Error = "no such program" }, false},
		"without a goodbye":      {func(s *session) { s.complete = false }, false},
		"at a limit":             {func(s *session) { s.end(ReasonTimeout) }, false},
		"cancelled":              {func(s *session) { s.end(ReasonCancelled) }, false},
		"with a broken protocol": {func(s *session) { s.broke = errors.New("x") }, false},
		"with a problem":         {func(s *session) { s.problem = "x" }, false},
		"with a full disk":       {func(s *session) { s.overDisk = true }, false},
		"with all processes":     {func(s *session) { s.dog.full = true }, false},
		"with memory gone":       {func(s *session) { s.oomKills = 1 }, false},
	} {
		s := &session{exit: &frame.ExitStatus{}, complete: true, exited: make(chan struct{})}
		if tt.change(s); s.byItself() != tt.want {
			t.Errorf("one that ended %s ended by itself: %v", name, !tt.want)
		}
	}
}

// TestKubeVirtLeave: of a kick that has ended nothing is left in its machine, whatever
// its agent has started and closed up; and a process that is outside of its sandbox is
// found.
func TestKubeVirtLeave(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the processes of this user, who is not root, come and go beside the test")
	}
	e := newHostAsMachine(t)
	look := func() (m frame.Machine) {
		t.Helper()
		if err := json.Unmarshal(e.do(frame.Question{}, "look"), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	leave := func(before []frame.Process, patience time.Duration) (string, error) {
		t.Helper()
		in, err := json.Marshal(frame.Leave{Dir: e.dir, Before: before, PatienceMS: patience.Milliseconds()})
		if err != nil {
			t.Fatal(err)
		}
		cmd := e.as("leave")
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	there := exec.Command("sleep", "300") // as a session's own manager is
	there.SysProcAttr = e.as().SysProcAttr
	outside := exec.Command("sleep", "300")
	outside.SysProcAttr = e.as().SysProcAttr
	start := func(cmd *exec.Cmd) (end func()) {
		t.Helper()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return sync.OnceFunc(func() {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()
		})
	}
	defer start(there)()
	before := look()
	res, err := runKick(t.Context(), e, e.spec(`(trap "" HUP TERM; exec setsid nohup sleep 300) >/dev/null 2>&1 &
		mkdir -p a/b/c && echo secret >a/b/c/file && chmod 000 a/b/c/file a/b/c a/b a; ln -s / root; mkfifo pipe
		echo x >$HOME/x; echo x >/tmp/x; echo x >/dev/shm/x; exit 0`))
	if err != nil || res.Reason != ReasonExited {
		t.Fatalf("%v, %+v", err, res)
	}
	end := start(outside)
	defer end()
	if said, err := leave(before.Processes, 300*time.Millisecond); err == nil || !strings.Contains(said, fmt.Sprintf("a process is left, %d (sleep): it does not end", outside.Process.Pid)) {
		t.Errorf("with a process outside of the sandbox: %v, %s", err, said)
	}
	if said, err := leave(nil, 0); err == nil || !strings.Contains(said, "a process is left, ") || !strings.Contains(said, " (sleep)") {
		t.Errorf("with a process that nobody has told of: %v, %s", err, said)
	}
	if _, err := os.Lstat(e.dir + "/workspace/root"); err != nil {
		t.Error("it has removed what it was not to:", err)
	}
	// It is waited for.
	done := make(chan struct{})
	go func() {
		defer close(done)
		if said, err := leave(before.Processes, time.Minute); err != nil {
			t.Errorf("%v, %s", err, said)
		}
	}()
	end()
	<-done
	if left, err := os.ReadDir(e.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v, %v", left, err)
	}
}
