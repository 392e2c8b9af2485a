package egress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
)

// bigCall is a body of 76 KB, as Claude Code sends.
func bigCall() string {
	text := strings.Repeat("a line of the system prompt, with a \\\"quote\\\"\\n", 1400)
	return `{"model":"m","max_tokens":100,"stream":true,"system":[{"type":"text","text":"` + text + `"}],"messages":[{"role":"user","content":"hi"}],` +
		`"tools":[` + strings.TrimSuffix(strings.Repeat(`{"name":"Bash","description":"runs a command","input_schema":{"type":"object","properties":{"command":{"type":"string"}}}},`, 80), ",") + `]}`
}

// BenchmarkModelCall is a call with a big body over a connection that is kept
// alive, to a plain server on loopback.
func BenchmarkModelCall(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}))
	defer server.Close()
	g, _ := openConfig(b, func() limits { l := defaultLimits; l.decisions = 1 << 30; return l }(), Config{
		Policy:    policy.Egress{Models: []policy.Model{{Provider: policy.Anthropic, Endpoint: server.URL, KeyEnv: "KEY"}}},
		LookupEnv: func(string) (string, bool) { return testKey, true },
	})
	for name, url := range map[string]string{"direct": server.URL + "/v1/messages", "gateway": "http://gateway/model/anthropic/v1/messages"} {
		b.Run(name, func(b *testing.B) {
			tr := &http.Transport{}
			if name == "gateway" {
				tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "unix", g.Socket())
				}
			}
			defer tr.CloseIdleConnections()
			c, body := &http.Client{Transport: tr}, bigCall()
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				res, err := c.Post(url, "application/json", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					b.Fatal(fmt.Sprint(res.StatusCode))
				}
			}
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what this process used, which is worth more than a clock on a
// machine that others use.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCheckBody(b *testing.B) {
	body := []byte(bigCall())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := checkBody(body, anthropicBody, nil); err != nil {
			b.Fatal(err)
		}
	}
}
