// Command bench measures what the gateway and the sandbox's forwarder add to a
// model call on loopback. The model's server, the gateways and the forwarders are
// each a process of their own, as they are in use. It writes the section "Egress"
// to the end of docs/benchmarks.md.
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
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/forwarder"
	"github.com/kickhq/kick/policy"
)

// sandboxes are the gateways, and streams those that are open at once. Calls are
// made in rounds, of which the one counts in which the least was added: the
// others tell of the machine's other work.
const (
	sandboxes = 50
	streams   = 200
	rounds    = 20
	calls     = 100
)

func main() {
	out := flag.String("out", "docs/benchmarks.md", "file whose section is written")
	part := flag.String("part", "", "for the program itself: what it is")
	dir := flag.String("dir", "", "for the program itself: directory of the gateways' sockets")
	endpoint := flag.String("endpoint", "", "for the program itself: the model server")
	pod := flag.String("pod", "", "for the program itself: address, secret and pin of the gateway by TCP")
	flag.Parse()
	var err error
	switch *part {
	case "model":
		err = serveModel()
	case "gateways":
		err = gateways(*dir, *endpoint)
	case "proxy":
		err = plainProxy(*dir, *endpoint)
	case "forwarders":
		err = forwarders(*dir, strings.Split(*pod, ","))
	default:
		err = measure(*out)
	}
	if err != nil {
		log.Fatalf("bench: %v", err)
	}
}

// serveModel serves until the standard input ends.
func serveModel() error {
	server := httptest.NewServer(http.HandlerFunc(model))
	defer server.Close()
	fmt.Println(server.URL)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// plainProxy is what a gateway is measured against: the standard library's
// proxy, which passes everything on. It serves until the standard input ends.
func plainProxy(dir, endpoint string) error {
	to, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(dir, "proxy"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}}
	go func() { _ = server.Serve(l) }() // until it is closed
	fmt.Println("up")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, server.Close())
}

// forwarders serves until the standard input ends. The last one is that of a pod,
// which reaches the gateway by TCP.
func forwarders(dir string, pod []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var ports []string
	for i := range sandboxes + 1 {
		l, err := forwarder.Listen(0)
		if err != nil {
			return err
		}
		ports = append(ports, l.Addr().String())
		way := forwarder.Way{Network: "unix", Address: filepath.Join(dir, strconv.Itoa(i), egress.SocketName)}
		if i == sandboxes {
			way = forwarder.Way{Network: "tcp", Address: pod[0], Secret: pod[1], Pin: pod[2]}
		}
		all.Go(func() { forwarder.Run(ctx, l, way) })
	}
	fmt.Println(strings.Join(ports, " "))
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// gateways serves until the standard input ends.
func gateways(dir, endpoint string) (err error) {
	in, err := egress.ListenTCP("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	pod := ""
	for i := range sandboxes {
		g, err := egress.Listen(context.Background(), filepath.Join(dir, strconv.Itoa(i)), egress.Config{
			Kick: "k0000000000000", Agent: "bench", Audit: io.Discard,
			Policy:    policy.Egress{Models: []policy.Model{{Provider: policy.Anthropic, Endpoint: endpoint, KeyEnv: "KEY"}}},
			LookupEnv: func(string) (string, bool) { return "bench-key-0123456789", true }, TCP: in,
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, g.Close()) }()
		if i == podded {
			if err := g.Admit(netip.MustParseAddr("127.0.0.1")); err != nil {
				return err
			}
			pod = strings.Join([]string{in.Address(), g.Secret(), in.Pin()}, ",")
		}
	}
	fmt.Println(pod)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// podded is the gateway that is reached by TCP: each way has one of its own,
// since the requests of a kick are bounded.
const podded = 2

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
		rc := http.NewResponseController(w)
		for rc.Flush() == nil {
			select {
			case <-time.After(pace):
				_, _ = w.Write(event)
			case <-r.Context().Done():
				return
			}
		}
	case bytes.Contains(body, []byte(`"m-long"`)):
		w.Header().Set("Content-Type", "text/event-stream")
		block := bytes.Repeat(event, 64)
		for range longBytes / len(block) {
			_, _ = w.Write(block)
		}
	case bytes.Contains(body, []byte(`"m-first"`)):
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(event)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}
}

const longBytes = 100 << 20

// pace is the time from one event of a stream that is held to the next, as fast
// models write, and heldFor how long streams are held before memory is measured.
const (
	pace    = 20 * time.Millisecond
	heldFor = 5 * time.Second
)

// call is a body of 76 KB, as Claude Code sends.
func call(model string) []byte {
	text := strings.Repeat("a line of the system prompt, with a \\\"quote\\\"\\n", 1400)
	return []byte(`{"model":"` + model + `","max_tokens":100,"stream":true,"system":[{"type":"text","text":"` + text + `"}],"messages":[{"role":"user","content":"hi"}],` +
		`"tools":[` + strings.TrimSuffix(strings.Repeat(`{"name":"Bash","description":"runs a command","input_schema":{"type":"object","properties":{"command":{"type":"string"}}}},`, 80), ",") + `]}`)
}

// process is a part that runs.
type process struct {
	*exec.Cmd
	stdin io.Closer
	says  string // its first line
}

func start(part string, args ...string) (*process, error) {
	p := &process{Cmd: exec.Command("/proc/self/exe", append([]string{"-part", part}, args...)...)}
	p.Stderr = os.Stderr
	stdin, err := p.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	if p.says, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("start the %s: %w", part, err), p.end())
	}
	p.says = strings.TrimSpace(p.says)
	return p, nil
}

func (p *process) end() error { return errors.Join(p.stdin.Close(), p.Wait()) }

// stat reads a field of /proc/PID/stat, counted from the program's state.
func (p *process) stat(fields ...int) (sum int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	all := strings.Fields(rest)
	for _, f := range fields {
		n, err := strconv.ParseInt(all[f], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// tick is the unit of CPU time in /proc: USER_HZ, which is 100 on all of Linux.
const tick = 10 * time.Millisecond

// cpu is the time that the process used so far.
func (p *process) cpu() (time.Duration, error) {
	n, err := p.stat(11, 12)
	return time.Duration(n) * tick, err
}

// resident is the memory that it holds, in bytes.
func (p *process) resident() (int64, error) {
	n, err := p.stat(21)
	return n * int64(os.Getpagesize()), err
}

// way is how the model server is reached.
type way struct {
	name, url string
	dial      func(ctx context.Context) (net.Conn, error)
}

func (w way) client(fresh bool) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: fresh, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) }}}
}

// once makes a call, reads n bytes of its answer, or all of it if n is below 0,
// and returns the time for that.
func (w way) once(c *http.Client, body []byte, n int64) (time.Duration, int64, error) {
	began := time.Now()
	res, err := c.Post(w.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: status %s", w.name, res.Status)
	}
	if n < 0 {
		n, err = io.Copy(io.Discard, res.Body)
	} else {
		n, err = io.CopyN(io.Discard, res.Body, n)
	}
	return time.Since(began), n, err
}

// bench is all that runs.
type bench struct {
	model, gateways, forwarders *process
	direct, plain               way   // to the model server, and through a plain proxy
	socket, sandbox, pod        way   // to a gateway, through the forwarder, and by its TCP address
	ways                        []way // all of them
	ports                       []string
}

func measure(out string) (err error) {
	dir, err := os.MkdirTemp("", "gw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{}
	if b.model, err = start("model"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.model.end()) }()
	if b.gateways, err = start("gateways", "-dir", dir, "-endpoint", b.model.says); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.gateways.end()) }()
	proxy, err := start("proxy", "-dir", dir, "-endpoint", b.model.says)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.end()) }()
	if b.forwarders, err = start("forwarders", "-dir", dir, "-pod", b.gateways.says); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.forwarders.end()) }()
	b.ports = strings.Fields(b.forwarders.says)
	to := func(network, address string) func(ctx context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) }
	}
	const path = "http://gateway/model/anthropic/v1/messages"
	b.direct = way{"direct", b.model.says + "/v1/messages", to("tcp", strings.TrimPrefix(b.model.says, "http://"))}
	b.plain = way{"plain proxy", "http://proxy/v1/messages", to("unix", filepath.Join(dir, "proxy"))}
	b.socket = way{"gateway", path, to("unix", filepath.Join(dir, "1", egress.SocketName))}
	b.sandbox = way{"forwarder and gateway", path, to("tcp", b.ports[0])}
	b.pod = way{"forwarder and gateway by TCP", path, to("tcp", b.ports[sandboxes])}
	b.ways = []way{b.direct, b.plain, b.socket, b.sandbox, b.pod}

	var report strings.Builder
	fmt.Fprintf(&report, "\n## Egress\n\nA model call of %d KB to a server on loopback: direct, through a proxy of the standard library that\npasses everything on (httputil.ReverseProxy), through the gateway's socket, as from a sandbox, through forwarder and socket, and as\nfrom a pod, through forwarder and TCP with TLS. Each is a process of its own. %d rounds of %d calls each way, in turn; of the rounds,\nthe one in which a sandbox's calls had the least added. \"Paired\" is the median of all rounds: a sandbox's call against the direct one\nbeside it. Load of the machine: %s\n\n",
		len(call("m"))/1000, rounds, calls, load())
	fmt.Fprintf(&report, "| | direct | plain proxy | gateway | from a sandbox | from a pod | **added** | paired | goal |\n|---|---|---|---|---|---|---|---|---|\n")
	var kept p50s
	for _, r := range []struct {
		name, goal string
		model      string
		fresh      bool
		bytes      int64
	}{
		{"new connection, p50", "≤ 0.5 ms", "m", true, -1},
		{"kept alive, p50", "≤ 0.25 ms", "m", false, -1},
		{"first event, new connection, p50", "≤ 1 ms", "m-hold", true, 10},
		{"first event, kept alive, p50", "", "m-first", false, -1},
	} {
		p, err := b.calls(call(r.model), r.fresh, r.bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(&report, "| %s |", r.name)
		for _, d := range p.best {
			fmt.Fprintf(&report, " %.2f ms |", ms(d))
		}
		fmt.Fprintf(&report, " **%.2f ms** | %.2f ms | %s |\n", ms(p.best[sandboxed]-p.best[0]), ms(p.paired), r.goal)
		if r.name == "kept alive, p50" {
			kept = p
		}
	}
	speeds, err := b.speeds()
	if err != nil {
		return err
	}
	fmt.Fprintf(&report, "| an event stream of %d MiB, best of 5 | %.0f MB/s | | %.0f MB/s | %.0f MB/s | %.0f MB/s | | | ≥ 300 MB/s |\n", longBytes>>20, speeds[0], speeds[1], speeds[2], speeds[3])
	fmt.Fprintf(&report, "\nOf what a call has added that is kept alive, %.2f ms are those of a proxy that looks at nothing, %.2f ms the gateway's own (the body read\nagainst its shape, the budget, the audit), and %.2f ms the forwarder's.\n",
		ms(kept.best[1]-kept.best[0]), ms(kept.best[2]-kept.best[1]), ms(kept.best[3]-kept.best[2]))
	cpu, err := b.cpuOfCalls(call("m"))
	if err != nil {
		return err
	}
	fmt.Fprintf(&report, "\nCPU time of a call that is kept alive: %.2f ms in the gateway, %.2f ms in the forwarder, %.2f ms in the model's server.\n", ms(cpu[0]), ms(cpu[1]), ms(cpu[2]))
	perStream, perForward, err := b.memory(call("m-hold"))
	if err != nil {
		return err
	}
	fmt.Fprintf(&report, "\n%d streams at once from %d sandboxes, each with 50 events a second: %.0f KiB of resident memory each in the process of the gateways (goal ≤ 64), and %.0f KiB in that of the forwarders.\nOpenSandbox's transparent proxy adds 290 ms on average, by its own benchmark.\n", streams, sandboxes, perStream, perForward)
	fmt.Print(report.String())
	return write(out, report.String())
}

// p50s are medians: of each way in the best round, and of what a sandbox's call
// had added to the direct one beside it, over all rounds.
type p50s struct {
	best   []time.Duration
	paired time.Duration
}

// calls makes calls each way, in turn.
func (b *bench) calls(body []byte, fresh bool, n int64) (p p50s, err error) {
	clients := make([]*http.Client, len(b.ways))
	for i, w := range b.ways {
		clients[i] = w.client(fresh)
		defer clients[i].CloseIdleConnections()
	}
	var added []time.Duration
	for range rounds {
		took := make([][]time.Duration, len(b.ways))
		for range calls {
			for i, w := range b.ways {
				d, _, err := w.once(clients[i], body, n)
				if err != nil {
					return p, err
				}
				took[i] = append(took[i], d)
			}
			last := len(took[0]) - 1
			added = append(added, took[sandboxed][last]-took[0][last])
		}
		var all []time.Duration
		for _, t := range took {
			all = append(all, median(t))
		}
		if p.best == nil || all[sandboxed]-all[0] < p.best[sandboxed]-p.best[0] {
			p.best = all
		}
	}
	p.paired = median(added)
	return p, nil
}

// sandboxed is the place of bench.sandbox among its ways.
const sandboxed = 3

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// speeds returns the MB/s of a long stream: direct, through the gateway, from a
// sandbox and from a pod. The plain proxy breaks such streams off at times, as its server closes
// the request's body under its client.
func (b *bench) speeds() (all []float64, err error) {
	for _, w := range []way{b.direct, b.socket, b.sandbox, b.pod} {
		c, best := w.client(false), 0.0
		for range 5 {
			took, n, err := w.once(c, call("m-long"), -1)
			if err != nil {
				return nil, err
			}
			best = max(best, float64(n)/1e6/took.Seconds())
		}
		c.CloseIdleConnections()
		all = append(all, best)
	}
	return all, nil
}

// cpuOfCalls returns the CPU time of a call from a sandbox in each process.
func (b *bench) cpuOfCalls(body []byte) (all []time.Duration, err error) {
	parts := []*process{b.gateways, b.forwarders, b.model}
	before := make([]time.Duration, len(parts))
	for i, p := range parts {
		if before[i], err = p.cpu(); err != nil {
			return nil, err
		}
	}
	c := b.sandbox.client(false)
	defer c.CloseIdleConnections()
	for range rounds * calls {
		if _, _, err := b.sandbox.once(c, body, -1); err != nil {
			return nil, err
		}
	}
	for i, p := range parts {
		now, err := p.cpu()
		if err != nil {
			return nil, err
		}
		all = append(all, (now-before[i])/(rounds*calls))
	}
	return all, nil
}

// memory returns what an open stream costs in the processes of the gateways and
// of the forwarders, in KiB.
func (b *bench) memory(body []byte) (gateway, forward float64, err error) {
	held := func() (x, y int64, err error) {
		if x, err = b.gateways.resident(); err == nil {
			y, err = b.forwarders.resident()
		}
		return x, y, err
	}
	gateways, forwarders, err := held()
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range streams {
		w := b.sandbox
		w.dial = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", b.ports[i%sandboxes])
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
		if err != nil {
			return 0, 0, err
		}
		res, err := w.client(true).Do(req)
		if err != nil {
			return 0, 0, err
		}
		wg.Go(func() {
			_, _ = io.Copy(io.Discard, res.Body) // until it is cancelled
			_ = res.Body.Close()
		})
	}
	time.Sleep(heldFor)
	x, y, err := held()
	each := func(n int64) float64 { return float64(n) / 1024 / streams }
	return each(x - gateways), each(y - forwarders), err
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
