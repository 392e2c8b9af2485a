package acceptance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "write the outputs in the pages anew")

// TestEgressPolicyPage runs the commands of the page and compares what it
// shows. A YAML block is the file that its first line names.
func TestEgressPolicyPage(t *testing.T) {
	t.Parallel()
	const page = "../docs/egress-policy.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lines := strings.Split(string(data), "\n")
	var out []string
	commands := 0
	for i := 0; i < len(lines); i++ {
		out = append(out, lines[i])
		kind, isBlock := strings.CutPrefix(lines[i], "```")
		if !isBlock {
			continue
		}
		var block []string
		for i++; i < len(lines) && lines[i] != "```"; i++ {
			block = append(block, lines[i])
		}
		switch kind {
		case "yaml":
			name, ok := strings.CutPrefix(block[0], "# ")
			if !ok {
				t.Fatalf("line %d: the block does not name its file", i)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(block, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		case "console":
			block = terminal(t, dir, block)
			commands += len(block)
		}
		out = append(out, block...)
		out = append(out, "```")
	}
	if commands < 20 {
		t.Fatalf("the page has %d lines of terminal", commands)
	}
	got := strings.Join(out, "\n")
	if *updateDocs {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != string(data) {
		t.Errorf("the page is not what kick says, run with -update-docs and look at the difference:\n%s", firstDifference(string(data), got))
	}
}

// terminal runs the commands of a block and returns it with their outputs.
func terminal(t *testing.T, dir string, block []string) []string {
	t.Helper()
	var out []string
	for _, line := range block {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + filepath.Dir(kick) + ":" + os.Getenv("PATH"), "HOME=" + dir, "XDG_STATE_HOME=" + dir}
		shown, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%s: %v", command, err)
		}
		out = append(out, line)
		out = append(out, strings.Split(strings.TrimSuffix(string(shown), "\n"), "\n")...)
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			out = append(out, fmt.Sprintf("[exit code %d]", code))
		}
	}
	return out
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\npage: %s\nkick: %s", i+1, w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines in the page, %d from kick", len(w), len(g))
}
