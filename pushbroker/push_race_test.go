package pushbroker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// brokerTask is what a broker process of TestTwoBrokers does.
type brokerTask struct {
	Work       Work
	Quarantine string
	Repo, API  string
	Key        []byte
	Refs       Refs
}

const brokerVariable = "KICK_TEST_BROKER"

// TestBrokerProcess is the program of such a process: it takes the work in,
// says so, waits for a line, publishes, and prints the publication.
func TestBrokerProcess(t *testing.T) {
	text := os.Getenv(brokerVariable)
	if text == "" {
		return
	}
	var task brokerTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		t.Fatal(err)
	}
	q, err := Ingest(context.Background(), task.Quarantine, task.Work, IngestLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	target, err := NewTarget(task.Repo, Access{App: &githubapp.App{ID: githubtest.AppID, PrivateKey: task.Key, BaseURL: task.API}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	pub, err := Publish(context.Background(), PublishRequest{Target: target, Quarantine: q, Verdict: passing(q), Refs: task.Refs, PullRequest: true, Description: Description{KickID: task.Work.KickID, Agent: "claude"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(pub); err != nil {
		t.Fatal(err)
	}
}

// gate holds the requests that match until two of them are there, or it is
// opened.
type gate struct {
	mu    sync.Mutex
	match string
	count int
	open  chan struct{}
}

func (g *gate) reset(match string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.match, g.count, g.open = match, 0, make(chan struct{})
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.match != "" {
		g.match = ""
		close(g.open)
	}
}

func (g *gate) pass(r *http.Request) {
	g.mu.Lock()
	held := g.match != "" && r.Header.Get("Authorization") != "" && strings.Contains(r.Method+" "+r.RequestURI, g.match)
	if held {
		g.count++
	}
	count, open := g.count, g.open
	g.mu.Unlock()
	switch {
	case held && count == 2:
		g.release()
	case held:
		<-open
	}
}

// TestTwoBrokers has two processes publish one kick, held back until both are
// about to do the same: one branch and one pull request, and both say so.
func TestTwoBrokers(t *testing.T) {
	t.Parallel()
	g := &gate{}
	s := newStage(t, githubtest.Options{Intercept: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.pass(r)
			next.ServeHTTP(w, r)
		})
	}}, githubtest.RepoOptions{}, oneFile)
	bundle := s.bundle()
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	places := []string{"", "GET /acme/api.git/info/refs?service=git-receive-pack", "POST /acme/api.git/git-receive-pack", "POST /repos/acme/api/pulls"}
	for round := range rounds {
		g.reset(places[round%len(places)])
		branch := fmt.Sprintf("kick/claude/k%013d", round)
		pubs := twoBrokers(s, g, bundle, branch)
		if t.Failed() {
			return
		}
		pulls, made := 0, 0
		for _, p := range s.repo.Pulls() {
			if p.Head == branch {
				pulls++
			}
		}
		for _, pub := range pubs {
			if pub.Number != pubs[0].Number || pub.Number == 0 || pub.Commit != s.req.Quarantine.Tip {
				t.Errorf("round %d: publications %+v", round, pubs)
			}
			if !pub.Existing {
				made++
			}
		}
		if got := s.repo.Ref("refs/heads/" + branch); got != s.req.Quarantine.Tip || pulls != 1 || made != 1 || s.hub.LiveTokens() != 0 {
			t.Errorf("round %d: branch at %q, %d pull requests, %d brokers made one, %d live tokens", round, got, pulls, made, s.hub.LiveTokens())
		}
	}
}

// twoBrokers starts two processes, lets them go at once, and returns what they
// published.
func twoBrokers(s *stage, g *gate, bundle, branch string) (pubs [2]Publication) {
	s.t.Helper()
	var begin, ready, done sync.WaitGroup
	begin.Add(1)
	for i := range pubs {
		task := brokerTask{Work: s.work(bundle), Quarantine: filepath.Join(s.t.TempDir(), "q"), Repo: s.req.Target.URL, API: s.hub.API(), Key: s.hub.PrivateKey(), Refs: Refs{Branch: branch, Base: "main"}}
		text, err := json.Marshal(task)
		s.must(err)
		cmd := exec.Command(os.Args[0], "-test.run=^TestBrokerProcess$")
		cmd.Env = append(os.Environ(), brokerVariable+"="+string(text))
		in, err := cmd.StdinPipe()
		s.must(err)
		out, err := cmd.StdoutPipe()
		s.must(err)
		s.must(cmd.Start())
		ready.Add(1)
		done.Go(func() {
			defer g.release() // whoever ends lets the other go on
			r := bufio.NewReader(out)
			first, err := r.ReadString('\n')
			ready.Done()
			begin.Wait()
			if err == nil && first == "ready\n" {
				_, err = io.WriteString(in, "go\n")
			}
			said, _ := r.ReadString('\n')
			rest, _ := io.ReadAll(r)
			if werr := cmd.Wait(); err != nil || werr != nil || json.Unmarshal([]byte(said), &pubs[i]) != nil {
				s.t.Errorf("broker %d: %v, %v\n%s%s%s", i, err, werr, first, said, rest)
			}
		})
	}
	ready.Wait()
	begin.Done()
	done.Wait()
	return pubs
}
