// Command bench measures what the gateway adds to a model call on loopback. It
// writes the section "Egress" to the end of docs/benchmarks.md.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/policy"
)

// sandboxes are the gateways, and streams those that are open at once.
const (
	sandboxes = 50
	streams   = 200
	calls     = 500
)

func main() {
	out := flag.String("out", "docs/benchmarks.md", "file whose section is written")
	serve := flag.String("serve", "", "for the program itself: directory of the gateways' sockets")
	endpoint := flag.String("endpoint", "", "for the program itself: the model server")
	flag.Parse()
	var err error
	if *serve != "" {
		err = gateways(*serve, *endpoint)
	} else {
		err = measure(*out)
	}
	if err != nil {
		log.Fatalf("bench: %v", err)
	}
}

// gateways serves until the standard input ends.
func gateways(dir, endpoint string) (err error) {
	for i := range sandboxes {
		g, err := egress.Listen(context.Background(), filepath.Join(dir, strconv.Itoa(i)), egress.Config{
			Kick: "k0000000000000", Agent: "bench", Audit: io.Discard,
			Policy:    policy.Egress{Models: []policy.Model{{Provider: policy.Anthropic, Endpoint: endpoint, KeyEnv: "KEY"}}},
			LookupEnv: func(string) (string, bool) { return "bench-key-0123456789", true },
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	fmt.Println("up")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// model answers by the path's query: a short answer, one event and then
// nothing, or a long stream.
func model(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	event := []byte("data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"" + strings.Repeat("x", 900) + "\"}}\n\n")
	switch {
	case bytes.Contains(body, []byte(`"m-hold"`)):
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(event)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case bytes.Contains(body, []byte(`"m-long"`)):
		w.Header().Set("Content-Type", "text/event-stream")
		block := bytes.Repeat(event, 64)
		for range longBytes / len(block) {
			_, _ = w.Write(block)
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}
}

const longBytes = 100 << 20

// call is a body of 76 KB, as Claude Code sends.
func call(model string) []byte {
	text := strings.Repeat("a line of the system prompt, with a \\\"quote\\\"\\n", 1400)
	return []byte(`{"model":"` + model + `","max_tokens":100,"stream":true,"system":[{"type":"text","text":"` + text + `"}],"messages":[{"role":"user","content":"hi"}],` +
		`"tools":[` + strings.TrimSuffix(strings.Repeat(`{"name":"Bash","description":"runs a command","input_schema":{"type":"object","properties":{"command":{"type":"string"}}}},`, 80), ",") + `]}`)
}

// way is how the model server is reached.
type way struct {
	client *http.Client
	url    string
}

func (w way) post(body []byte) (*http.Response, error) {
	return w.client.Post(w.url, "application/json", bytes.NewReader(body))
}

func (w way) once(body []byte) (time.Duration, int64, error) {
	began := time.Now()
	res, err := w.post(body)
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("status %s", res.Status))
	}
	return time.Since(began), n, err
}

// first is the time to the first event of a stream.
func (w way) first(body []byte) (time.Duration, error) {
	began := time.Now()
	res, err := w.post(body)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = bufio.NewReader(res.Body).ReadString('\n')
	return time.Since(began), err
}

func measure(out string) (err error) {
	server := httptest.NewServer(http.HandlerFunc(model))
	defer server.Close()
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	child := exec.Command("/proc/self/exe", "-serve", dir, "-endpoint", server.URL)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stdin.Close(), child.Wait()) }()
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return fmt.Errorf("start the gateways: %w", err)
	}
	ways := func(fresh bool) (direct, through way) {
		unix := func(i int) func(context.Context, string, string) (net.Conn, error) {
			return func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, strconv.Itoa(i), egress.SocketName))
			}
		}
		return way{&http.Client{Transport: &http.Transport{DisableKeepAlives: fresh}}, server.URL + "/v1/messages"},
			way{&http.Client{Transport: &http.Transport{DisableKeepAlives: fresh, DialContext: unix(0)}}, "http://gateway/model/anthropic/v1/messages"}
	}
	var report strings.Builder
	fmt.Fprintf(&report, "\n## Egress\n\nA model call of %d KB to a server on loopback, direct and through the gateway's socket, %d times each in turn;\nthe forwarder in the sandbox is not in it. Load of the machine: %s\n\n| | direct | gateway | added |\n|---|---|---|---|\n",
		len(call("m"))/1000, calls, load())
	row := func(name string, fresh bool, one func(w way) (time.Duration, error)) error {
		direct, through := ways(fresh)
		var d, g []time.Duration
		for range calls {
			for _, w := range []struct {
				way
				took *[]time.Duration
			}{{direct, &d}, {through, &g}} {
				took, err := one(w.way)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				*w.took = append(*w.took, took)
			}
		}
		slices.Sort(d)
		slices.Sort(g)
		x, y := d[len(d)/2], g[len(g)/2]
		fmt.Fprintf(&report, "| %s, p50 | %.2f ms | %.2f ms | %.2f ms |\n", name, ms(x), ms(y), ms(y-x))
		return nil
	}
	short, hold := call("m"), call("m-hold")
	whole := func(w way) (time.Duration, error) { d, _, err := w.once(short); return d, err }
	if err := errors.Join(row("new connection", true, whole), row("kept alive", false, whole),
		row("first event, new connection", true, func(w way) (time.Duration, error) { return w.first(hold) })); err != nil {
		return err
	}
	direct, through := ways(false)
	var speeds []float64
	for _, w := range []way{direct, through} {
		best := 0.0
		for range 5 {
			took, n, err := w.once(call("m-long"))
			if err != nil {
				return err
			}
			best = max(best, float64(n)/1e6/took.Seconds())
		}
		speeds = append(speeds, best)
	}
	fmt.Fprintf(&report, "| an event stream of %d MiB, best of 5 | %.0f MB/s | %.0f MB/s | |\n", longBytes>>20, speeds[0], speeds[1])
	perStream, err := memory(dir, child.Process.Pid, hold)
	if err != nil {
		return err
	}
	fmt.Fprintf(&report, "\n%d open streams of %d gateways in one process: %.0f KiB of resident memory each.\nOpenSandbox's transparent proxy adds 290 ms on average, by its own benchmark.\n", streams, sandboxes, perStream)
	fmt.Print(report.String())
	return write(out, report.String())
}

// memory returns what an open stream costs the gateways' process, in KiB.
func memory(dir string, pid int, body []byte) (float64, error) {
	before, err := resident(pid)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	responses := make([]*http.Response, streams)
	errs := make([]error, streams)
	for i := range streams {
		wg.Go(func() {
			w := way{&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, strconv.Itoa(i%sandboxes), egress.SocketName))
			}}}, "http://gateway/model/anthropic/v1/messages"}
			if responses[i], errs[i] = w.post(body); errs[i] == nil {
				_, errs[i] = bufio.NewReader(responses[i].Body).ReadString('\n')
			}
		})
	}
	wg.Wait()
	after, err := resident(pid)
	for _, res := range responses {
		if res != nil {
			_ = res.Body.Close()
		}
	}
	return float64(after-before) / 1024 / streams, errors.Join(append(errs, err)...)
}

func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0, err
	}
	return pages * int64(os.Getpagesize()), nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// write puts the section at the end, in place of the one that was there.
func write(out, section string) error {
	b, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	if before, own, some := bytes.Cut(b, []byte("\n## Egress\n")); some {
		b = before
		if i := bytes.Index(own, []byte("\n## ")); i >= 0 {
			b = append(slices.Clone(before), own[i:]...)
		}
	}
	return os.WriteFile(out, append(b, section...), 0o644)
}
