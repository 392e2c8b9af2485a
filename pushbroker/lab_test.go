package pushbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kickhq/kick/policy"
)

// lab is a base repository, the mirror of it and an agent's clone.
type lab struct {
	t      *testing.T
	dir    string
	mirror string
	clone  string
	base   string // id
}

var labTemplate struct {
	sync.Once
	dir  string
	base string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if labTemplate.dir != "" {
		_ = os.RemoveAll(labTemplate.dir)
	}
	os.Exit(code)
}

const seedScript = `
git init -q -b main seed; cd seed
git config user.name Base; git config user.email base@example.com
mkdir -p .github/workflows src docs legacy
printf '# demo\n' > README.md
printf 'name: ci\non: push\njobs: {}\n' > .github/workflows/ci.yml
printf 'package main\n\nfunc main() {}\n' > src/main.go
i=0; while [ $i -lt 200 ]; do echo "// line $i of a longer file" >> src/long.go; i=$((i+1)); done
printf '* @owner\n' > .github/CODEOWNERS
printf '# docs\n' > docs/index.md; printf 'package main\n' > src/main_test.go
printf 'key: KNOWN-VALUE-1\n' > legacy/old.env
printf 'Mixed\n' > docs/Mixed.md
printf 'a\342\200\256b\n' > docs/rtl.md
git add -A; git commit -qm 'base one'
printf 'old workflow\n' > .github/workflows/ci.yml; git commit -qam 'base two'
printf 'name: ci\non: push\njobs: {}\n' > .github/workflows/ci.yml
printf 'more\n' >> README.md; git commit -qam 'base three'
cd ..; git clone -q --bare seed mirror; git clone -q mirror clone; cd clone
git config user.name kick; git config user.email kick@example.com; git remote set-url origin ../mirror
git rev-parse HEAD
`

func newLab(t *testing.T) *lab {
	t.Helper()
	labTemplate.Do(func() {
		labTemplate.dir, labTemplate.err = os.MkdirTemp("", "lab")
		if labTemplate.err == nil {
			labTemplate.base, labTemplate.err = shell(labTemplate.dir, seedScript)
		}
	})
	if labTemplate.err != nil {
		t.Fatal(labTemplate.err)
	}
	l := &lab{t: t, dir: t.TempDir(), base: labTemplate.base}
	l.mirror, l.clone = filepath.Join(l.dir, "mirror"), filepath.Join(l.dir, "clone")
	for _, d := range []string{"mirror", "clone"} {
		if err := os.CopyFS(filepath.Join(l.dir, d), os.DirFS(filepath.Join(labTemplate.dir, d))); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func shell(dir, script string) (string, error) {
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_DATE=1700000000 +0000", "GIT_COMMITTER_DATE=1700000000 +0000",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s%s", err, out, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

func (l *lab) sh(dir, script string) string {
	l.t.Helper()
	out, err := shell(dir, script)
	if err != nil {
		l.t.Fatalf("script: %v", err)
	}
	return out
}

// object makes the object as it is, whatever git thinks of it.
func (l *lab) object(kind, body string) string {
	l.t.Helper()
	file := filepath.Join(l.dir, "object")
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return l.sh(l.clone, fmt.Sprintf("git hash-object -w --literally -t %s %s", kind, file))
}

// bundle makes the bundle that the shim makes.
func (l *lab) bundle() string {
	l.t.Helper()
	out := filepath.Join(l.dir, "work.bundle")
	l.sh(l.clone, fmt.Sprintf("git bundle create -q %s ^%s HEAD", out, l.base))
	return out
}

// rawBundle makes a bundle of exactly these objects.
func (l *lab) rawBundle(tip string, oids ...string) string {
	l.t.Helper()
	out := filepath.Join(l.dir, "work.bundle")
	l.sh(l.clone, fmt.Sprintf(`
		printf '# v2 git bundle\n-%s base\n%s HEAD\n\n' > %s
		printf '%s\n' | git pack-objects -q --stdout >> %s`, l.base, tip, out, strings.Join(oids, `\n`), out))
	return out
}

func (l *lab) work(bundle string) Work {
	return Work{
		KickID: "k0000000000000", Agent: "claude", Repo: "acme/demo", Bundle: bundle, Mirror: l.mirror, BaseOID: l.base,
		Branch: "kick/claude/k0000000000000", IdentityName: "kick", IdentityEmail: "kick@example.com",
	}
}

// judge runs Ingest and Inspect, and returns the verdict, of a refused
// ingest too.
func (l *lab) judge(bundle string, pol *policy.Policy, scanners ...Scanner) Verdict {
	l.t.Helper()
	v, err := l.try(l.work(bundle), pol, scanners...)
	if err != nil {
		l.t.Fatal(err)
	}
	return v
}

func (l *lab) try(w Work, pol *policy.Policy, scanners ...Scanner) (Verdict, error) {
	l.t.Helper()
	dir := filepath.Join(l.t.TempDir(), "quarantine")
	q, err := Ingest(context.Background(), dir, w, IngestLimits{})
	var r *Refusal
	if errors.As(err, &r) {
		if _, serr := os.Stat(dir); !os.IsNotExist(serr) {
			l.t.Errorf("the quarantine of a refused bundle is left: %v", serr)
		}
		return r.Verdict(w), nil
	}
	if err != nil {
		return Verdict{}, err
	}
	defer q.Close()
	return Inspect(context.Background(), q, w, pol, scanners...)
}

func rulesOf(v Verdict, level policy.Level) []string {
	var out []string
	for _, f := range v.Findings {
		if f.Level == level {
			out = append(out, f.Rule)
		}
	}
	return out
}
