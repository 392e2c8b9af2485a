package acceptance

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// What the tests of several runtimes have in common.

// objectOf runs a kick and returns what it says in JSON, which must have its exit
// code.
func objectOf(t *testing.T, cmd *exec.Cmd) map[string]any {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the object has the exit code
	var o map[string]any
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	if got := float64(cmd.ProcessState.ExitCode()); got != o["exitCode"] {
		t.Errorf("exit code %v, the object says %v", got, o["exitCode"])
	}
	return o
}

// pageBlocks returns the sh blocks of a page of docs/, of which there are so many
// at least.
func pageBlocks(t *testing.T, page string, least int) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, b := range strings.Split(string(text), "```sh\n")[1:] {
		code, _, found := strings.Cut(b, "```")
		if !found {
			t.Fatalf("a block without an end: %.40q", b)
		}
		blocks = append(blocks, code)
	}
	if len(blocks) < least {
		t.Fatalf("the page has %d blocks", len(blocks))
	}
	return blocks
}
