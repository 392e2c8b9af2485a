package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/policy"
)

// holding is a provider that sends one event and waits for the end of its
// request; then it counts.
func holding(gone chan<- struct{}) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, r *http.Request, body []byte) {
		if !bytes.Contains(body, []byte(`"hold"`)) {
			_, _ = io.WriteString(w, `{"usage":{"input_tokens":10,"output_tokens":5}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		gone <- struct{}{}
	}
}

// shutListener has the socket of a gateway listen no more.
func shutListener(t *testing.T, g *Gateway) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	want := socketName(g.dir)
	for _, e := range fds {
		var fd int
		if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
			t.Fatal(err)
		}
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil || listens == 0 {
			continue
		}
		if a, err := unix.Getsockname(fd); err == nil {
			if u, ok := a.(*unix.SockaddrUnix); ok && u.Name == want {
				if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatal("the gateway's listener was not found")
}

// TestRestart kills the gateway under a kick while a model's answer streams and
// a tunnel is open, in each way in which it can die without its process. What
// was under way ends in an error, at the agent and at the provider, and is
// written down; who tries again is served, under the same budget.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kill  func(t *testing.T, g *Gateway)
		cause string
	}{
		"the socket is removed": {func(t *testing.T, g *Gateway) {
			if err := os.Remove(g.Socket()); err != nil {
				t.Fatal(err)
			}
		}, "the socket was removed"},
		"the socket is replaced": {func(t *testing.T, g *Gateway) {
			if err := os.Rename(g.Socket(), g.Socket()+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(g.Socket(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(g.Socket() + ".old"); err != nil {
				t.Fatal(err)
			}
		}, "the socket was removed or replaced"},
		"the socket listens no more": {shutListener, "the socket does not listen"},
		"a request meets a fault": {func(t *testing.T, g *Gateway) {
			if got := exchange(t, g, "CONNECT fault.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"); got != "" {
				t.Errorf("the request that met it: %q", got)
			}
		}, "panic in restart_test.go"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan struct{}, 1)
			p := newProvider(t, holding(gone))
			m := modelRoute(policy.Anthropic)
			m.Budget = policy.Budget{Requests: 2}
			cfg := p.config(t, m)
			cfg.Policy.Hosts = []policy.Host{{Host: "example.com"}, {Host: "fault.example"}}
			resolve := cfg.Resolve
			cfg.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
				if host == "fault.example" {
					panic("made by the test")
				}
				return resolve(ctx, host)
			}
			g, a := openConfig(t, defaultLimits, cfg)

			stream := openStream(t, g)
			tunnel := tls.Client(tunnelTo(t, g, "example.com:443"), &tls.Config{ServerName: "example.com", RootCAs: cfg.Roots})
			if err := tunnel.Handshake(); err != nil {
				t.Fatal(err)
			}
			idle := dial(t, g)
			c.kill(t, g)

			if rest, err := io.ReadAll(stream); err == nil || len(rest) > 1 {
				t.Errorf("the agent takes %q for the end of the answer", rest)
			}
			for what, conn := range map[string]net.Conn{"the tunnel": tunnel, "an idle connection": idle} {
				if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s goes on: %d, %v", what, n, err)
				}
			}
			<-gone // the provider's request ended

			retry(t, g)
			if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != 200 {
				t.Errorf("again: %d %s", res.StatusCode, got)
			}
			if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != 429 {
				t.Errorf("the budget begins anew: %d %s", res.StatusCode, got)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			restart := wholeAudit(t, a.records(t))
			if restart == nil || !strings.Contains(restart.Cause, c.cause) {
				t.Errorf("the restart is written down as %+v", restart)
			}
			if s := g.Summary(); s.Restarts != 1 {
				t.Errorf("summary %+v", s)
			}
			if all := fmt.Sprint(a.records(t)); strings.Contains(all, testKey) {
				t.Errorf("the key is in the audit: %s", all)
			}
		})
	}
}

// openStream makes a call whose answer waits after its first event, and returns
// what follows.
func openStream(t *testing.T, g *Gateway) io.Reader {
	t.Helper()
	res, err := agentClient(t, g).Post("http://gateway/model/anthropic/v1/messages", "application/json", strings.NewReader(`{"model":"hold","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	r := bufio.NewReader(res.Body)
	if line, err := r.ReadString('\n'); err != nil || line != "data: {}\n" {
		t.Fatalf("first line %q, %v", line, err)
	}
	return r
}

// retry tries until the gateway answers, as agents do.
func retry(t *testing.T, g *Gateway) net.Conn {
	t.Helper()
	late := time.Now().Add(20 * time.Second)
	for {
		c, err := net.Dial("unix", g.Socket())
		if err == nil {
			return untilLate(t, c)
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// wholeAudit fails unless each allowed request has exactly one end and numbers
// are unique. It returns the restart, if there is one.
func wholeAudit(t *testing.T, recs []Record) (restart *Record) {
	t.Helper()
	open, numbers := map[int]bool{}, map[int]bool{}
	for _, r := range recs {
		switch r.Event {
		case Done:
			if !open[r.Request] || r.End == nil {
				t.Errorf("an end without a beginning: %+v", r)
			}
			delete(open, r.Request)
			continue
		case Decided:
			if r.Verdict == Allowed {
				open[r.Request] = true
			}
		case Restarted:
			restart = &r
		}
		if numbers[r.Request] {
			t.Errorf("number %d is there twice", r.Request)
		}
		numbers[r.Request] = true
	}
	if len(open) > 0 {
		t.Errorf("requests %v have no end in %+v", open, recs)
	}
	return restart
}

// TestRestartsAreBounded has the agent find a fault that it can cause: each
// restart counts as a request, and the audit does not grow without end.
func TestRestartsAreBounded(t *testing.T) {
	t.Parallel()
	lim := defaultLimits
	lim.decisions = 5
	g, a := openConfig(t, lim, Config{Policy: policy.Egress{Hosts: []policy.Host{{Host: "fault.example"}}}, Resolve: func(context.Context, string) ([]netip.Addr, error) {
		panic("made by the test")
	}})
	for range 10 {
		// One that reaches a gateway which is about to end gets no answer.
		_ = exchangeOn(t, retry(t, g), "CONNECT fault.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if n := len(a.records(t)); n >= lim.decisions {
		t.Errorf("%d lines", n)
	}
}

// TestCompleteAudit is the end of a gateway whose whole process was killed: a
// copy of the audit in the midst of requests is what the next process finds.
func TestCompleteAudit(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 1)
	p := newProvider(t, holding(gone))
	g, a := openModels(t, p, defaultLimits, modelRoute(policy.Anthropic))
	if res, got := post(t, g, "/model/anthropic/v1/messages", `{"model":"m"}`); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	_ = exchange(t, g, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	waitRecords(t, a, 3)
	_ = openStream(t, g)
	a.mu.Lock()
	killed := slices.Clone(a.buf.Bytes())
	a.mu.Unlock()
	sums := g.Summary()
	if err := g.Close(); err != nil {
		t.Error(err)
	}

	cut := `{"time":"2026-01-02T03:04:05Z","event":"deci`
	for name, left := range map[string]string{"whole lines": string(killed), "a line cut short": string(killed) + cut, "a full disk before": cut + "\n" + string(killed)} {
		file := filepath.Join(t.TempDir(), "egress.jsonl")
		if err := os.WriteFile(file, []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time there is nothing to do
			got, err := CompleteAudit(file)
			if err != nil || got != sums {
				t.Errorf("%s: %+v, %v; want %+v", name, got, err, sums)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var recs []Record
			for line := range bytes.Lines(bytes.TrimPrefix(b, []byte(cut+"\n"))) {
				var r Record
				if err := json.Unmarshal(line, &r); err != nil {
					t.Fatalf("%s: %v: %q", name, err, line)
				}
				recs = append(recs, r)
			}
			wholeAudit(t, recs)
			if last := recs[len(recs)-1]; len(recs) != 5 || last.Event != Done || !strings.Contains(last.End.Error, "kick was killed") {
				t.Errorf("%s: %+v", name, recs)
			}
		}
	}
	if _, err := CompleteAudit(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestAuditAfterAFullDisk has a line cut short: the next one is whole.
func TestAuditAfterAFullDisk(t *testing.T) {
	t.Parallel()
	w := &fullDisk{room: 20}
	l := newAuditLog(w, 10)
	if _, d := l.decided(Request{Method: "GET"}, Decision{Allow: true, Rule: "r"}); d.Allow || d.Rule != "audit-failed" {
		t.Errorf("allowed unwritten: %+v", d)
	}
	w.room = 1 << 20
	if _, d := l.decided(Request{Method: "GET"}, Decision{Allow: true, Rule: "r"}); !d.Allow {
		t.Errorf("%+v", d)
	}
	first, second, _ := strings.Cut(w.String(), "\n")
	var r Record
	if err := json.Unmarshal([]byte(second), &r); len(first) != 20 || err != nil || r.Request != 2 {
		t.Errorf("%q: %v", w.String(), err)
	}
	if s := l.counts(); s.Allowed != 1 || s.Denied != 1 {
		t.Errorf("%+v", s)
	}
}

type fullDisk struct {
	sync.Mutex
	strings.Builder
	room int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	_, _ = d.Builder.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}
