package pushbroker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// TestPushUnknown loses the connection for good right when the push arrived.
func TestPushUnknown(t *testing.T) {
	t.Parallel()
	var s *stage
	s = newStage(t, githubtest.Options{Intercept: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" && strings.HasSuffix(r.URL.Path, "git-receive-pack") {
				s.hub.AddFault(githubtest.Fault{Match: "info/refs", Status: 503})
			}
			next.ServeHTTP(w, r)
		})
	}}, githubtest.RepoOptions{}, oneFile)
	s.hub.AddFault(githubtest.Fault{Match: "POST /acme/api.git/git-receive-pack", After: true, Cut: true})
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonUnknown {
		t.Errorf("got %v", err)
	}
	if s.hub.LiveTokens() != 0 {
		t.Error("the token is alive")
	}
}

// TestPushGain rewinds the remote's base, so that the remote would gain a
// commit of the base too: refused, until that was inspected.
func TestPushGain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q, dir := *l.quarantine(oneFile), l.bare()
	l.sh(dir, "git update-ref refs/heads/main main~1")
	target, err := NewTarget(dir, Access{})
	if err != nil {
		t.Fatal(err)
	}
	push := func() error {
		_, err := Push(t.Context(), &q, target, Refs{Branch: kickBranch, Base: "main"}, githubapp.Token{})
		return err
	}
	if err := push(); reasonOf(err) != ReasonRepublish {
		t.Fatalf("got %v", err)
	}
	q.Objects = append(slices.Clone(q.Objects), strings.Fields(l.sh(l.mirror, "git rev-list --objects --no-object-names main~1..main"))...)
	if err := push(); err != nil {
		t.Errorf("all that the remote gains is in the set: %v", err)
	}
}

func TestPushPlain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	q := l.quarantine(oneFile)
	for name, repo := range map[string]string{"path": l.bare(), "file URL": "file://" + l.bare(), "checkout": l.checkout()} {
		t.Run(name, func(t *testing.T) {
			target, err := NewTarget(repo, Access{})
			if err != nil {
				t.Fatal(err)
			}
			req := PublishRequest{Target: target, Quarantine: q, Verdict: passing(q), Refs: Refs{Branch: kickBranch, Base: "main"}}
			for _, pushed := range []bool{true, false} {
				pub, err := Publish(t.Context(), req)
				if err != nil || pub.Pushed != pushed || pub.Commit != q.Tip || pub.Number != 0 {
					t.Fatalf("publication: %+v, %v", pub, err)
				}
			}
			if got := l.sh(target.URL, "git rev-parse refs/heads/"+kickBranch); got != q.Tip {
				t.Errorf("the branch is at %s", got)
			}
			req.PullRequest = true
			if _, err := Publish(t.Context(), req); reasonOf(err) != ReasonUsage {
				t.Errorf("a pull request on a plain remote: %v", err)
			}
		})
	}
}

// TestPushToAnothersRepository is a path of another owner: git takes it where
// the user has said so, in the configuration that git itself reads. It changes
// its own process's environment, so it runs alone.
func TestPushToAnothersRepository(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root can give a repository away: run this package's tests as root too")
		}
		t.Skip("only root can give a repository away")
	}
	l := newLab(t)
	q, dir := l.quarantine(oneFile), l.bare()
	l.sh(dir, "chown -R 12345 .")
	target, err := NewTarget(dir, Access{})
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	push := func() error {
		_, err := Push(t.Context(), q, target, Refs{Branch: kickBranch, Base: "main"}, githubapp.Token{})
		return err
	}
	if err := push(); reasonOf(err) != ReasonOwnership {
		t.Fatalf("before the user trusts it: %v", err)
	}
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[safe]\n\tdirectory = "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := push(); err != nil {
		t.Fatalf("after: %v", err)
	}
	if got := l.sh(dir, "git -c safe.directory='*' rev-parse refs/heads/"+kickBranch); got != q.Tip {
		t.Errorf("the branch is at %s", got)
	}
}

func BenchmarkPushPlain(b *testing.B) {
	t := &testing.T{}
	l := newLab(t)
	q := l.quarantine(oneFile)
	dir := l.bare()
	target, err := NewTarget(dir, Access{})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if _, err := Push(context.Background(), q, target, Refs{Branch: fmt.Sprintf("kick/b/%d", n), Base: "main"}, githubapp.Token{}); err != nil {
			b.Fatal(err)
		}
	}
}
