package ui

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/kickhq/kick/internal/doctor"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// TestPropertiesFit: what doctor and show say of a sandbox fits the terminal,
// with colours or without, and no line ends with a blank or a stray colon.
func TestPropertiesFit(t *testing.T) {
	t.Parallel()
	long := "cgroup: /sys/fs/cgroup/memory/" + strings.Repeat("d/", 60) + "memory.limit_in_bytes is 8589934592, and the sandbox is in it"
	iso := sandbox.Isolation{Runtime: "embedded", Properties: []sandbox.Property{
		{Name: "memory-limit", Status: sandbox.Enforced, Evidence: long}, {Name: "cpu-limit", Status: sandbox.NotRequested}, {Name: "supplementary-groups", Status: sandbox.Missing, Evidence: "Groups "},
	}}
	colours := regexp.MustCompile("\x1b\\[[0-9;]*m")
	for width, limit := range map[int]int{0: 80, 60: 60, 80: 80, 400: 100} {
		for _, colour := range []bool{false, true} {
			var out bytes.Buffer
			p := &Printer{w: &out, width: width, color: colour}
			p.Isolation(iso)
			p.Check(doctor.Check{Name: "memory-limit", Found: long, Remedy: long})
			p.Check(doctor.Check{Name: "cpu-limit", OK: true, Found: "not requested"})
			text := out.String()
			if colour != strings.Contains(text, "\x1b[") {
				t.Errorf("colours at %d: %q", width, text)
			}
			for line := range strings.Lines(colours.ReplaceAllString(text, "")) {
				line = strings.TrimSuffix(line, "\n")
				if runewidth.StringWidth(line) > limit || strings.HasSuffix(line, " ") {
					t.Errorf("at %d: %q", width, line)
				}
			}
			if !strings.Contains(text, "not requested") || strings.Contains(text, "requested:") {
				t.Errorf("at %d:\n%s", width, text)
			}
		}
	}
}

// A step that waits is no step that has ended: it has no mark of success and no time that
// it took.
func TestStepWaits(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &Printer{w: &out}
	p.Step(manager.Step{Name: "sandbox", Detail: "waits: no node takes the pod", At: 3 * time.Second, Waiting: true})
	p.Step(manager.Step{Name: "sandbox", Detail: "isolation proved", At: 9 * time.Second, Took: 8 * time.Second})
	want := "  3.00s … sandbox  waits: no node takes the pod\n  9.00s ✓ sandbox  isolation proved  8.00s\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestErrorsInOneLine: errors of which each was a line are read in one.
func TestErrorsInOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &Printer{w: &out}
	p.Outcome(manager.Outcome{Outcome: manager.RuntimeError, Error: "watch it: refused\nsee its end: refused", Notes: []string{"one\ntwo"}})
	p.Check(doctor.Check{Name: "rights", Found: "three\nfour"})
	for _, want := range []string{"watch it: refused; see its end: refused\n", "note one; two\n", "three; four\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
