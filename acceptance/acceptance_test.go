// Package acceptance tests the kick command as a person or a program uses it:
// real repositories, the real embedded sandbox, real git remotes. The scripts
// in testdata/script read like a terminal.
package acceptance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// kick is the program under test, built as a person would build it.
var kick string

func TestMain(m *testing.M) {
	top, err := filepath.Abs("..")
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("make", "-s", "build")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "make build: %v\n%s", err, out)
		os.Exit(1)
	}
	kick = filepath.Join(top, "bin", "kick")
	os.Exit(m.Run())
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(kick)+":"+os.Getenv("PATH"))
			env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "state"))
			env.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			if err := os.MkdirAll(filepath.Join(env.WorkDir, "home"), 0o755); err != nil {
				return err
			}
			config := "[user]\n\tname = Base\n\temail = base@example.com\n[init]\n\tdefaultBranch = main\n"
			return os.WriteFile(filepath.Join(env.WorkDir, "home", ".gitconfig"), []byte(config), 0o644)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"seed":  cmdSeed,
			"code":  cmdCode,
			"json":  cmdJSON,
			"clean": cmdClean,
		},
	})
}

// seed DIR makes a repository with two commits at DIR, and a bare clone at
// DIR.git.
func cmdSeed(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	for name, data := range seedFiles {
		path := filepath.Join(dir, name)
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
		ts.Check(os.WriteFile(path, []byte(data), 0o644))
	}
	for _, c := range [][]string{
		{"init", "-q", dir}, {"-C", dir, "add", "-A"}, {"-C", dir, "commit", "-qm", "base one"},
		{"-C", dir, "commit", "-q", "--allow-empty", "-m", "base two"}, {"clone", "-q", "--bare", dir, dir + ".git"},
	} {
		ts.Check(ts.Exec("git", c...))
	}
}

var seedFiles = map[string]string{
	"README.md":                "# demo\n",
	".github/workflows/ci.yml": "name: ci\non: push\njobs: {}\n",
	".github/CODEOWNERS":       "* @owner\n",
	"src/main.go":              "package main\n\nfunc main() {}\n",
	"docs/index.md":            "# docs\n",
	"legacy/old.env":           "AWS_ACCESS_KEY_ID=" + "AKIA" + "Q3EGRZ7TX2MPLQNB\n",
}

// code N COMMAND... runs a command and wants exit code N.
func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command(args[1], args[2:]...)
	if args[1] == "kick" {
		cmd.Path = kick
		cmd.Err = nil
	}
	cmd.Dir = ts.Getenv("PWD")
	if cmd.Dir == "" {
		cmd.Dir = ts.MkAbs(".")
	}
	for _, name := range []string{"PATH", "HOME", "XDG_STATE_HOME", "GIT_CONFIG_NOSYSTEM", "NO_COLOR", "GITHUB_TOKEN", "KICK_GITHUB_APP_ID", "SOURCE_DATE_EPOCH", "CONTAINER_HOST"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	ts.Check(os.WriteFile(ts.MkAbs("stdout.txt"), stdout.Bytes(), 0o644))
	ts.Check(os.WriteFile(ts.MkAbs("stderr.txt"), stderr.Bytes(), 0o644))
	ts.Logf("[stdout]\n%s[stderr]\n%s", stdout.String(), stderr.String())
	if cmd.ProcessState == nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
	if got := fmt.Sprint(cmd.ProcessState.ExitCode()); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// json FIELD [WANT] looks into the JSON object in stdout.txt: FIELD is a path
// such as findings.0.rule. Without WANT it sets the variable FIELD's last part.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	got := lookup(ts, ts.ReadFile("stdout.txt"), args[0])
	if len(args) == 1 {
		ts.Setenv(args[0][strings.LastIndex(args[0], ".")+1:], got)
		return
	}
	if (got == args[1]) == neg {
		ts.Fatalf("%s is %q, want %q (negated: %v)", args[0], got, args[1], neg)
	}
}

// clean wants no process, mount or cgroup of any kick of this script to be
// left.
func cmdClean(ts *testscript.TestScript, _ bool, args []string) {
	if left := leftovers(ts.Getenv("XDG_STATE_HOME")); len(left) > 0 {
		ts.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
