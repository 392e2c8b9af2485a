package workspace

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/sandbox"
)

// gitCollector makes the bundles that a sandbox makes, with git, from a
// workspace that this test wrote itself.
type gitCollector struct {
	t    *testing.T
	spec sandbox.LaunchSpec
}

func (c *gitCollector) Run(_ context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
	c.spec = spec
	ws := spec.Workspace
	for artifact, revs := range map[sandbox.Artifact][]string{
		sandbox.FinalBundle: {ws.BaseOID + "..HEAD"},
		sandbox.RestBundle:  {"--all", "^" + ws.BaseOID, "^HEAD"},
	} {
		cmd := exec.Command("git", append([]string{"-C", ws.Dir, "bundle", "create", "-q", "-"}, revs...)...)
		cmd.Env = append(os.Environ(), "GIT_ALTERNATE_OBJECT_DIRECTORIES="+ws.Objects)
		var bundle, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &bundle, &stderr
		if err := cmd.Run(); err != nil {
			c.t.Fatalf("bundle: %v %s", err, &stderr)
		}
		put(c.t, ws.Sink, artifact, "", bundle.String())
	}
	return sandbox.Result{Reason: sandbox.ReasonExited, Artifacts: []sandbox.Artifact{sandbox.FinalBundle, sandbox.RestBundle}}, nil
}

func TestSalvageAndRestore(t *testing.T) {
	t.Parallel()
	repo := newRepo(t)
	b := fetch(t, newCache(t), Source{Repo: repo, Base: "main"})
	ws := prepare(t, b, task())
	inWorkspace := func(args ...string) string {
		t.Helper()
		out, err := tryGit(ws, []string{"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + b.Objects()}, args...)
		if err != nil {
			t.Fatalf("git %s: %v %s", args, err, out)
		}
		// The objects are not where the alternates file says; git complains of it.
		return lastLine(out)
	}
	inWorkspace("reset", "-q", "--hard", b.OID)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(ws, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("done", "done\n")
	inWorkspace("add", "done")
	inWorkspace("commit", "-q", "-m", "done")
	inWorkspace("checkout", "-q", "-b", "side", b.OID)
	write("side", "side\n")
	inWorkspace("add", "side")
	inWorkspace("commit", "-q", "-m", "side")
	inWorkspace("tag", "-a", "-m", "t", "v1")
	inWorkspace("checkout", "-q", "main")
	write("done", "more\n")
	inWorkspace("stash", "-q")
	tip, side, stash := inWorkspace("rev-parse", "main"), inWorkspace("rev-parse", "side"), inWorkspace("rev-parse", "refs/stash")

	kickDir := filepath.Join(t.TempDir(), "it's a kick")
	sink, err := NewDirSink(kickDir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if got := RestoreCommands(kickDir, "k1"); got != nil {
		t.Errorf("commands for nothing: %q", got)
	}
	c := &gitCollector{t: t}
	res, err := Salvage(t.Context(), c, SalvageRequest{ID: "k0000000000001", Agent: "claude", Dir: ws, Mirror: b.Mirror, BaseOID: b.OID, Sink: sink})
	if err != nil || len(res.Missing) != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if s := c.spec; s.Command != nil || s.Env != nil || s.Network != sandbox.NetworkNone || s.Workspace.Dir != ws ||
		s.Workspace.Objects != b.Objects() || s.Workspace.BaseOID != b.OID || s.Limits.Wall <= 0 || s.Limits.Wall > time.Hour {
		t.Errorf("launched %+v", s)
	}
	if err := Remove(ws); err != nil {
		t.Fatal(err)
	}

	clone := filepath.Join(t.TempDir(), "clone")
	git(t, "/", "clone", "-q", repo, clone)
	commands := RestoreCommands(kickDir, "k1")
	if len(commands) != 2 {
		t.Fatalf("commands: %q", commands)
	}
	if rest := RestoreCommands(kickDir, "k1", sandbox.RestBundle); len(rest) != 1 || rest[0] != commands[1] {
		t.Errorf("commands for the rest alone: %q", rest)
	}
	for _, command := range commands {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = clone
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	for ref, want := range map[string]string{
		"kick-restored/k1":                    tip,
		"remotes/kick-restored/k1/heads/side": side,
		"remotes/kick-restored/k1/stash":      stash,
	} {
		if got := git(t, clone, "rev-parse", ref); got != want {
			t.Errorf("%s is %s, want %s", ref, got, want)
		}
	}
	git(t, clone, "cat-file", "tag", "refs/remotes/kick-restored/k1/tags/v1")
	git(t, clone, "fsck", "--strict")
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

type launchFunc func(sandbox.LaunchSpec) (sandbox.Result, error)

func (f launchFunc) Run(_ context.Context, spec sandbox.LaunchSpec) (sandbox.Result, error) {
	return f(spec)
}

func TestSalvageWithoutMirror(t *testing.T) {
	t.Parallel()
	sink, _ := newSink(t, 1000)
	broken := errors.New("runtime broke")
	l := launchFunc(func(s sandbox.LaunchSpec) (sandbox.Result, error) {
		if s.Workspace.Objects != "" {
			t.Errorf("mounts %q", s.Workspace.Objects)
		}
		return sandbox.Result{Missing: []string{"x"}}, broken
	})
	for _, mirror := range []string{"", "/nonexistent/mirror"} {
		res, err := Salvage(t.Context(), l, SalvageRequest{ID: "k1", Dir: t.TempDir(), Mirror: mirror, BaseOID: strings.Repeat("1", 40), Sink: sink})
		if !errors.Is(err, broken) || !slices.ContainsFunc(res.Missing, func(m string) bool { return strings.Contains(m, "mirror") }) || len(res.Missing) != 2 {
			t.Errorf("%+v, %v", res, err)
		}
	}
}

// What a launcher does not say that it took out is not out.
func TestSalvageBelievesNoSilence(t *testing.T) {
	t.Parallel()
	sink, _ := newSink(t, 1000)
	for _, res := range []sandbox.Result{
		{Reason: sandbox.ReasonCancelled, Artifacts: []sandbox.Artifact{sandbox.WorkSummary}}, {Reason: sandbox.ReasonExited},
	} {
		l := launchFunc(func(sandbox.LaunchSpec) (sandbox.Result, error) { return res, nil })
		if _, err := Salvage(t.Context(), l, SalvageRequest{ID: "k1", Dir: t.TempDir(), Mirror: t.TempDir(), BaseOID: strings.Repeat("1", 40), Sink: sink}); err == nil {
			t.Errorf("believed %+v", res)
		}
	}
	// What nothing has any more is no failure that another attempt could mend.
	l := launchFunc(func(sandbox.LaunchSpec) (sandbox.Result, error) {
		return sandbox.Result{Reason: sandbox.ReasonLost, Missing: []string{"artifacts: the sandbox is gone"}}, nil
	})
	if res, err := Salvage(t.Context(), l, SalvageRequest{ID: "k1", Dir: t.TempDir(), Mirror: t.TempDir(), BaseOID: strings.Repeat("1", 40), Sink: sink}); err != nil || len(res.Missing) == 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestSalvageRefuses(t *testing.T) {
	t.Parallel()
	sink, dir := newSink(t, 1000)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	l := launchFunc(func(sandbox.LaunchSpec) (sandbox.Result, error) {
		t.Error("launched")
		return sandbox.Result{}, nil
	})
	oid := strings.Repeat("a", 40)
	for name, r := range map[string]SalvageRequest{
		"no directory": {Dir: "/nonexistent", BaseOID: oid, Sink: sink},
		"a link":       {Dir: link, BaseOID: oid, Sink: sink},
		"no base":      {Dir: dir, Sink: sink},
		"no sink":      {Dir: dir, BaseOID: oid},
	} {
		if _, err := Salvage(t.Context(), l, r); !errors.Is(err, ErrSource) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
