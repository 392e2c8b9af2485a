package frame

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// said is one frame in a test.
type said struct {
	t Type
	p string
}

func frames(list ...said) []byte {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, f := range list {
		if err := w.Write(f.t, []byte(f.p)); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func begin(kind, name string) said {
	if name != "" {
		return said{Begin, `{"kind":"` + kind + `","name":"` + name + `"}`}
	}
	return said{Begin, `{"kind":"` + kind + `"}`}
}

var (
	ready   = said{Ready, `{"probes":{"landlock":""}}`}
	started = said{Started, ""}
	exited  = said{Exit, `{"code":3}`}
	end     = said{End, `{}`}
	goodbye = said{Goodbye, ""}
)

func TestConversation(t *testing.T) {
	t.Parallel()
	reports := func(n int) []said {
		s := []said{ready}
		for i := range n {
			s = append(s, begin("report", "agent-report"+strings.Repeat("x", i)+".json"), end)
		}
		return append(s, goodbye)
	}
	tests := []struct {
		name string
		mode Mode
		said []said
		want error // nil: all is well and Goodbye or Problem came
	}{
		{"a run", RunMode, []said{ready, started, {Stdout, "a"}, {Stderr, "b"}, exited, goodbye}, nil},
		{"a run that looks", RunMode, []said{ready, started, {Look, ""}, exited, goodbye}, nil},
		{"a signal", RunMode, []said{ready, started, {Exit, `{"code":-1,"signal":9}`}, goodbye}, nil},
		{"a command that does not start", RunMode, []said{ready, {Exit, `{"code":-1,"error":"not found"}`}, goodbye}, nil},
		{"artifacts", CollectMode, []said{ready, begin("final.bundle", ""), {Data, "xyz"}, {Data, "w"}, end, begin("report", "agent-report-1.json"), end, goodbye}, nil},
		{"both", RunAndCollectMode, []said{ready, started, exited, begin("work.json", ""), {Data, "{}"}, end, goodbye}, nil},
		{"checkpoints", RunAndCollectMode, []said{ready, started, begin(Checkpoint, ""), {Data, "a"}, {Stdout, "x"}, {Data, "b"}, end, begin(Checkpoint, ""), end, exited, goodbye}, nil},
		{"a problem at once", RunMode, []said{{Problem, "mount: no"}}, nil},
		{"a problem later", RunMode, []said{ready, started, {Problem, "lost"}}, nil},
		{"as many reports as allowed", CollectMode, reports(MaxReports), nil},

		{"a checkpoint before the start", RunAndCollectMode, []said{ready, begin(Checkpoint, "")}, ErrProtocol},
		{"a checkpoint where nothing is handed back", RunMode, []said{ready, started, begin(Checkpoint, "")}, ErrProtocol},
		{"a checkpoint of another kind", RunAndCollectMode, []said{ready, started, begin("final.bundle", "")}, ErrProtocol},
		{"a checkpoint with a name", RunAndCollectMode, []said{ready, started, begin(Checkpoint, "x")}, ErrProtocol},
		{"two checkpoints at once", RunAndCollectMode, []said{ready, started, begin(Checkpoint, ""), begin(Checkpoint, "")}, ErrProtocol},
		{"an exit within a checkpoint", RunAndCollectMode, []said{ready, started, begin(Checkpoint, ""), exited}, ErrProtocol},
		{"a checkpoint after the exit", RunAndCollectMode, []said{ready, started, exited, begin(Checkpoint, "")}, ErrProtocol},
		{"silence", RunMode, nil, io.ErrUnexpectedEOF},
		{"an early end", RunMode, []said{ready, started, exited}, io.ErrUnexpectedEOF},
		{"no ready", RunMode, []said{started}, ErrProtocol},
		{"ready twice", RunMode, []said{ready, ready}, ErrProtocol},
		{"started twice", RunMode, []said{ready, started, started}, ErrProtocol},
		{"started with content", RunMode, []said{ready, {Started, "x"}}, ErrProtocol},
		{"output before the start", RunMode, []said{ready, {Stdout, "x"}}, ErrProtocol},
		{"output after the exit", RunMode, []said{ready, started, exited, {Stdout, "x"}}, ErrProtocol},
		{"two looks", RunMode, []said{ready, started, {Look, ""}, {Look, ""}}, ErrProtocol},
		{"a look before the start", RunMode, []said{ready, {Look, ""}}, ErrProtocol},
		{"two exits", RunMode, []said{ready, started, exited, exited}, ErrProtocol},
		{"an exit without a start", RunMode, []said{ready, exited}, ErrProtocol},
		{"a goodbye without an exit", RunMode, []said{ready, started, goodbye}, ErrProtocol},
		{"an impossible code", RunMode, []said{ready, started, {Exit, `{"code":256}`}}, ErrProtocol},
		{"an impossible signal", RunMode, []said{ready, started, {Exit, `{"code":-1,"signal":65}`}}, ErrProtocol},
		{"a code and a signal", RunMode, []said{ready, started, {Exit, `{"code":1,"signal":9}`}}, ErrProtocol},
		{"neither", RunMode, []said{ready, started, {Exit, `{"code":-1}`}}, ErrProtocol},
		{"no JSON", RunMode, []said{ready, started, {Exit, `{`}}, ErrProtocol},
		{"an artifact in a run", RunMode, []said{ready, started, exited, begin("final.bundle", "")}, ErrProtocol},
		{"output while collecting", CollectMode, []said{ready, {Stdout, "x"}}, ErrProtocol},
		{"an exit while collecting", CollectMode, []said{ready, exited}, ErrProtocol},
		{"two final bundles", CollectMode, []said{ready, begin("final.bundle", ""), end, begin("final.bundle", ""), end}, ErrProtocol},
		{"an artifact in another", CollectMode, []said{ready, begin("final.bundle", ""), begin("rest.bundle", "")}, ErrProtocol},
		{"data without an artifact", CollectMode, []said{ready, {Data, "x"}}, ErrProtocol},
		{"an end without an artifact", CollectMode, []said{ready, end}, ErrProtocol},
		{"a goodbye in an artifact", CollectMode, []said{ready, begin("final.bundle", ""), goodbye}, ErrProtocol},
		{"a large artifact", CollectMode, []said{ready, begin("final.bundle", ""), {Data, "0123456789"}, {Data, "0"}}, ErrProtocol},
		{"an unknown artifact", CollectMode, []said{ready, begin("passwd", "")}, ErrProtocol},
		{"a bundle with a name", CollectMode, []said{ready, begin("final.bundle", "agent-report.json")}, ErrProtocol},
		{"a report elsewhere", CollectMode, []said{ready, begin("report", "../agent-report.json")}, ErrProtocol},
		{"the same report twice", CollectMode, []said{ready, begin("report", "agent-report.json"), end, begin("report", "agent-report.json")}, ErrProtocol},
		{"too many reports", CollectMode, reports(MaxReports + 1), ErrProtocol},
		{"an unknown frame", RunMode, []said{ready, {'?', ""}}, ErrProtocol},
		{"a frame of the host", RunMode, []said{ready, {Go, ""}}, ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := NewConversation(NewReader(bytes.NewReader(frames(tt.said...))), tt.mode, 10)
			n, err := 0, error(nil)
			for ; err == nil; n++ {
				_, err = c.Next()
			}
			if tt.want == nil {
				tt.want = io.EOF
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("after %d messages: %v, want %v", n, err, tt.want)
			}
			if !errors.Is(tt.want, io.ErrUnexpectedEOF) {
				if _, again := c.Next(); !errors.Is(again, io.EOF) {
					t.Errorf("after the end: %v", again)
				}
			}
		})
	}
}

func TestConversationSizes(t *testing.T) {
	t.Parallel()
	huge := append(frames(ready), byte(Stdout), 0, 1, 0, 1)
	c := NewConversation(NewReader(bytes.NewReader(huge)), RunMode, 10)
	if _, err := c.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(); !errors.Is(err, ErrProtocol) || !errors.Is(err, ErrTooLarge) {
		t.Errorf("a frame over the limit: %v", err)
	}
	c = NewConversation(NewReader(bytes.NewReader(frames(said{Problem, strings.Repeat("x", MaxPayload)}))), RunMode, 10)
	if m, err := c.Next(); err != nil || len(m.Problem) != MaxProblem {
		t.Errorf("a problem of %d bytes, %v", len(m.Problem), err)
	}
}

func TestIsReportName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"agent-report.json": true, "agent-report-2.v1_X.json": true, "agent-report" + strings.Repeat("x", 100) + ".json": true,
		"agent-report" + strings.Repeat("x", 101) + ".json": false, "agent-report": false, ".json": false, "": false,
		"agent-report/x.json": false, "agent-report\x00.json": false, "agent-report\n.json": false, "agent-reportä.json": false,
		"xagent-report.json": false, "agent-report.json.exe": false, "agent-report .json": false,
	} {
		if got := IsReportName(name); got != want {
			t.Errorf("IsReportName(%q) = %v", name, got)
		}
	}
}

func TestConfigRoundTrip(t *testing.T) {
	t.Parallel()
	want := Config{Mode: RunMode, Command: []string{"sh", "-c", strings.Repeat("x", 3*MaxPayload)}, Env: []string{"A=b"}}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	defer r.Close()
	writing.Go(func() {
		defer w.Close()
		if err := NewWriter(w).WriteConfig(want); err != nil {
			t.Error(err)
		}
	})
	got, err := NewReader(r).ReadConfig()
	if err != nil || got.Command[2] != want.Command[2] || got.Env[0] != "A=b" {
		t.Errorf("%.100v, %v", got, err)
	}
	if err := NewWriter(io.Discard).WriteConfig(Config{Command: []string{strings.Repeat("x", MaxConfig)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a configuration over the limit: %v", err)
	}
}

// FuzzConversation feeds arbitrary bytes to the host's side. It must end, keep
// the order and stay within the sizes.
func FuzzConversation(f *testing.F) {
	f.Add([]byte(nil), byte(0))
	f.Add(frames(ready, started, said{Stdout, "out"}, exited, goodbye), byte(0))
	f.Add(frames(ready, begin("final.bundle", ""), said{Data, "0123456789"}, end, begin("report", "agent-report.json"), end, goodbye), byte(1))
	f.Add(frames(ready, started, exited, begin("work.json", ""), said{Data, "{}"}, end, goodbye), byte(2))
	f.Add(frames(said{Problem, "mount /proc: no"}), byte(0))
	f.Add(append(frames(ready), byte(Stdout), 0xff, 0xff, 0xff, 0xff), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, mode byte) {
		m := []Mode{RunMode, CollectMode, RunAndCollectMode}[mode%3]
		const limit = 100
		c := NewConversation(NewReader(bytes.NewReader(data)), m, limit)
		var exits, artifact int
		open := false
		for {
			msg, err := c.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrProtocol) {
					t.Fatalf("an error of no kind: %v", err)
				}
				return
			}
			switch msg.Type {
			case Exit:
				if exits++; exits > 1 || m == CollectMode {
					t.Fatal("an exit out of place")
				}
			case Begin:
				if open || m == RunMode || m == RunAndCollectMode && exits == 0 {
					t.Fatal("an artifact out of place")
				}
				open, artifact = true, 0
			case Data:
				if artifact += len(msg.Data); !open || artifact > limit {
					t.Fatal("data out of place")
				}
			case End:
				open = false
			case Stdout, Stderr:
				if exits > 0 || m == CollectMode {
					t.Fatal("output out of place")
				}
			}
		}
	})
}
