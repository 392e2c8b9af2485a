package pushbroker

import (
	"context"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
)

func TestFindDuplicate(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	tree := s.sh(s.clone, "git rev-parse HEAD^{tree}")
	first := s.req.Refs
	look := func(refs Refs, tree string) Found {
		t.Helper()
		f, warnings, err := FindDuplicate(context.Background(), s.req.Target, refs, tree, s.req.Journal)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		return f
	}
	second := Refs{Branch: "kick/claude/k0000000000001", Base: first.Base}
	if f := look(second, tree); f != (Found{}) {
		t.Errorf("before there is any: %+v", f)
	}
	pub, err := Publish(context.Background(), s.req)
	s.must(err)
	if f := look(second, tree); f.Number != pub.Number || f.URL != pub.URL || f.Commit != s.req.Quarantine.Tip {
		t.Errorf("found %+v, the pull request is %+v", f, pub)
	}
	for name, f := range map[string]Found{
		"its own pull request": look(first, tree),
		"another result":       look(second, s.sh(s.clone, "git rev-parse HEAD~1^{tree}")),
		"another base":         look(Refs{Branch: second.Branch, Base: "release"}, tree),
	} {
		if f != (Found{}) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	s.repo.ClosePull(pub.Number)
	if f := look(second, tree); f != (Found{}) {
		t.Errorf("a closed one: %+v", f)
	}
}
