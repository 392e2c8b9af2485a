package pushbroker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
)

func signedStage(t *testing.T, opts githubtest.Options, repo githubtest.RepoOptions, script string) *stage {
	t.Helper()
	s := newStage(t, opts, repo, script)
	on := true
	s.req.Form.Signed = &on
	return s
}

const twoCommits = "printf 'hi\\n' > new.txt; : > empty; mkdir d; printf '\\0\\377' > d/bin; git add -A; printf 'add files\\n\\nBecause.\\n' | git commit -qF -; git rm -q README.md; echo two > new.txt; echo x > docs/index.md; git commit -qam 'second'"

func TestSigned(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{"github.com": {}, "enterprise": {APIPath: "/api/v3"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := signedStage(t, opts, githubtest.RepoOptions{}, twoCommits)
			s.must(s.repo.AddRule("refs/heads/kick/*", "Commits must have verified signatures."))
			pub, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			head := s.repo.Ref("refs/heads/" + kickBranch)
			if pub.Commit != head || !pub.Signed || !pub.Pushed || pub.Number != 1 || head == s.req.Quarantine.Tip || s.hub.Pushes() != 0 {
				t.Errorf("%+v, branch at %s, %d pushes", pub, head, s.hub.Pushes())
			}
			want := s.sh(s.clone, "git log --format='%T %s%n%b' "+s.base+"..HEAD")
			if got := s.sh(s.repo.Dir, "git log --format='%T %s%n%b' "+s.base+".."+head); got != want {
				t.Errorf("the branch has\n%s\nwant\n%s", got, want)
			}
			again, err := Publish(t.Context(), s.req)
			if err != nil || again.Pushed || again.Commit != head || s.repo.Ref("refs/heads/"+kickBranch) != head || len(s.repo.Pulls()) != 1 || s.hub.LiveTokens() != 0 {
				t.Errorf("a repetition: %+v, %v", again, err)
			}
		})
	}
}

// TestUnsignable: what the API cannot express is refused before anything is
// sent, and never sent unsigned.
func TestUnsignable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ base, work, want string }{
		"merge":           {"true", "git switch -qc s; echo a > a; git add a; git commit -qm a; git switch -q main; echo b > b; git add b; git commit -qm b; git merge -q --no-edit s", "is a merge"},
		"new link":        {"true", "ln -s README.md l; git add l; git commit -qm l", "l is or was a symbolic link"},
		"deleted link":    {"ln -s README.md l", "git rm -q l; git commit -qm l", "l is or was a symbolic link"},
		"renamed link":    {"ln -s README.md l", "git mv l m; git commit -qm l", "is or was a symbolic link"},
		"new executable":  {"true", "echo x > x; chmod +x x; git add x; git commit -qm x", "x is new with mode 100755"},
		"made executable": {"true", "chmod +x README.md; git commit -qam x", "README.md changes its mode from 100644 to 100755"},
		"no longer one":   {"echo x > x; chmod +x x", "chmod -x x; echo y > x; git commit -qam x", "x changes its mode from 100755 to 100644"},
		"renamed exec":    {"echo x > x; chmod +x x", "git mv x y; git commit -qm x", "y is new with mode 100755"},
		"submodule":       {"true", "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git commit -qm sub", "sub is or was a submodule"},
		"only in between": {"true", "ln -s README.md l; git add l; git commit -qm l; git rm -q l; echo a > a; git add a; git commit -qm a", "l is or was a symbolic link"},
		"path not UTF-8":  {"true", "printf x > \"$(printf 'a\\377')\"; git add -A; git commit -qm x", "is not UTF-8"},
		"large in one":    {"true", "head -c 26000000 /dev/urandom > big; git add big; git commit -qm big", "they go in one request"},
		"empty message":   {"true", "echo a > a; git add a; git commit -q --allow-empty-message -m ''", "has no message"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seeded(t, tc.base, githubtest.RepoOptions{}, tc.work)
			on := true
			s.req.Form.Signed = &on
			_, err := Publish(t.Context(), s.req)
			if reasonOf(err) != ReasonUnsignable || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if s.repo.Ref("refs/heads/"+kickBranch) != "" || len(s.hub.Requests()) > 0 {
				t.Errorf("%d requests were sent", len(s.hub.Requests()))
			}
		})
	}
}

// TestSignedTakesBack: a commit of the server's with another tree, or without a
// signature, does not stay.
func TestSignedTakesBack(t *testing.T) {
	t.Parallel()
	const exec = "echo x > x; chmod +x x"
	for name, tc := range map[string]struct {
		repo githubtest.RepoOptions
		want string
	}{
		"other tree": {githubtest.RepoOptions{DropModes: true}, "was inspected; the branch was removed again"},
		"unsigned":   {githubtest.RepoOptions{Unsigned: true}, "it is not signed: unsigned; the branch was removed again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seeded(t, exec, tc.repo, "echo y > x; git commit -qam x")
			on := true
			s.req.Form.Signed = &on
			_, err := Publish(t.Context(), s.req)
			if reasonOf(err) != ReasonTreeDiffers || !strings.Contains(err.Error(), tc.want) || s.repo.Ref("refs/heads/"+kickBranch) != "" || len(s.repo.Pulls()) != 0 || s.hub.LiveTokens() != 0 {
				t.Errorf("got %v; the branch is at %q", err, s.repo.Ref("refs/heads/"+kickBranch))
			}
		})
	}
	s := seeded(t, exec, githubtest.RepoOptions{}, "echo y > x; git commit -qam x")
	on := true
	s.req.Form.Signed = &on
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Errorf("an executable that stays one: %v", err)
	}
}

// TestSignedGoesOn: what passes is tried again; what does not leaves no branch
// behind, unless nobody can tell what became of it.
func TestSignedGoesOn(t *testing.T) {
	t.Parallel()
	const mutation = "POST /graphql"
	for name, tc := range map[string]struct {
		fault  githubtest.Fault
		reason Reason // empty: it succeeds
		begun  bool   // the branch stays, and a later start asks about it
	}{
		"answer lost":             {githubtest.Fault{Match: mutation, Times: 1, After: true, Status: 502}, "", false},
		"server error":            {githubtest.Fault{Match: mutation, Times: 1, Status: 502}, "", false},
		"branch's answer lost":    {githubtest.Fault{Match: "POST /repos/acme/api/git/refs", Times: 1, After: true, Status: 502}, "", false},
		"not there":               {githubtest.Fault{Match: "GET /repos/acme/api/git/commits", Times: 1, Status: 500}, "", false},
		"secondary limit":         {githubtest.Fault{Match: mutation, Times: 1, Status: 200, Body: `{"data":null,"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}`}, "", false},
		"forbidden":               {githubtest.Fault{Match: mutation, Status: 200, Body: `{"data":null,"errors":[{"type":"FORBIDDEN","message":"Resource not accessible by integration"}]}`}, ReasonPermission, false},
		"ruleset":                 {githubtest.Fault{Match: mutation, Status: 200, Body: `{"errors":[{"type":"UNPROCESSABLE","message":"Repository rule violations found\n\nCommit message must match a given regex pattern"}]}`}, ReasonRuleset, false},
		"ruleset at the second":   {githubtest.Fault{Match: mutation, Skip: 1, Status: 200, Body: `{"errors":[{"type":"UNPROCESSABLE","message":"Repository rule violations found"}]}`}, ReasonRuleset, false},
		"unknown words":           {githubtest.Fault{Match: mutation, Status: 200, Body: `{"errors":[{"message":"no"}]}`}, ReasonRejected, false},
		"nothing in it":           {githubtest.Fault{Match: mutation, Status: 200, Body: `{"data":{"createCommitOnBranch":null}}`}, ReasonAnswer, true},
		"not even JSON":           {githubtest.Fault{Match: mutation, Status: 200, Body: `<html>`}, ReasonAnswer, true},
		"down after the first":    {githubtest.Fault{Match: mutation, Skip: 1, Status: 503}, ReasonServer, true},
		"base is gone for API":    {githubtest.Fault{Match: "POST /repos/acme/api/git/refs", Status: 422, Body: `{"message":"Object does not exist"}`}, ReasonRejected, false},
		"down before anything":    {githubtest.Fault{Match: "git-upload-pack", Status: 503}, ReasonServer, false},
		"never sure of the last":  {githubtest.Fault{Match: "GET /repos/acme/api/git/commits", Status: 500}, ReasonServer, true},
		"another tree's id there": {githubtest.Fault{Match: "GET /repos/acme/api/git/commits", Status: 200, Body: `{"tree":{"sha":"` + strings.Repeat("2", 40) + `"},"parents":[],"verification":{"verified":true}}`}, ReasonTreeDiffers, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := signedStage(t, githubtest.Options{}, githubtest.RepoOptions{}, twoCommits)
			s.hub.AddFault(tc.fault)
			pub, err := Publish(t.Context(), s.req)
			if reasonOf(err) != tc.reason {
				t.Fatalf("got %v, want %q", err, tc.reason)
			}
			head := s.repo.Ref("refs/heads/" + kickBranch)
			var e *PublishError
			switch {
			case tc.reason == "":
				if n := s.sh(s.repo.Dir, "git rev-list --count "+s.base+".."+head); n != "2" || pub.Commit != head {
					t.Errorf("the branch has %s commits, %+v", n, pub)
				}
			case !errors.As(err, &e) || e.Begun != tc.begun || (head != "") != tc.begun:
				t.Errorf("begun is %v, the branch is at %q: %v", e.Begun, head, err)
			}
			if s.hub.LiveTokens() != 0 {
				t.Error("a token lives")
			}
		})
	}
}

// TestSignedAnswersThatLie: the API names a commit that the branch does not have.
// What the branch has counts.
func TestSignedAnswersThatLie(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		parent string // of the commit that the answer names
		repo   githubtest.RepoOptions
		reason Reason
		says   string
	}{
		"with another parent":           {"main~1", githubtest.RepoOptions{}, ReasonTreeDiffers, "it does not follow"},
		"and the branch has other work": {"main", githubtest.RepoOptions{DropModes: true}, ReasonBranchMoved, "the last signed commit"},
		"and the branch has the work":   {"main", githubtest.RepoOptions{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := seeded(t, "echo x > x; chmod +x x", tc.repo, "echo y > x; git commit -qam x")
			on := true
			s.req.Form.Signed = &on
			s.sh(s.repo.Dir, "git fetch -q "+s.clone+" HEAD")
			lie := s.sh(s.repo.Dir, "printf 'tree %s\\nparent %s\\nauthor x <x@x> 1700000000 +0000\\ncommitter x <x@x> 1700000000 +0000\\ngpgsig x\\n\\nother\\n' $(git rev-parse FETCH_HEAD^{tree}) $(git rev-parse "+tc.parent+") | git hash-object -w -t commit --stdin")
			s.hub.AddFault(githubtest.Fault{Match: "POST /graphql", After: true, Status: 200, Body: `{"data":{"createCommitOnBranch":{"commit":{"oid":"` + lie + `"}}}}`})
			pub, err := Publish(t.Context(), s.req)
			switch {
			case reasonOf(err) != tc.reason || s.hub.LiveTokens() != 0:
				t.Errorf("got %v, want %q", err, tc.reason)
			case err == nil && (pub.Commit == lie || pub.Commit != s.repo.Ref("refs/heads/"+kickBranch)):
				t.Errorf("published %s, and the branch is at %s", pub.Commit, s.repo.Ref("refs/heads/"+kickBranch))
			case err != nil && (!strings.Contains(err.Error(), tc.says) || len(s.repo.Pulls()) != 0):
				t.Errorf("got %v, %d pull requests", err, len(s.repo.Pulls()))
			}
		})
	}
}

// TestSignedLeavesOthersAlone: a branch with other work is not touched.
func TestSignedLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	s := signedStage(t, githubtest.Options{}, githubtest.RepoOptions{}, twoCommits)
	s.sh(s.repo.Dir, "git update-ref refs/heads/"+kickBranch+" $(git -c user.name=x -c user.email=x commit-tree -p main -m other main^{tree})")
	there := s.repo.Ref("refs/heads/" + kickBranch)
	if _, err := Publish(t.Context(), s.req); reasonOf(err) != ReasonBranchExists || s.repo.Ref("refs/heads/"+kickBranch) != there {
		t.Errorf("got %v", err)
	}
}

func TestSignedUpdate(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.next("echo more > more.txt; git add -A; git commit -qm more")
	on := true
	s.req.Form.Signed = &on
	pub, err := Publish(t.Context(), s.req)
	if err != nil || pub.Updated != FastForward || !pub.Signed || pub.Number != 1 {
		t.Errorf("%+v, %v", pub, err)
	}
	s.req.Refs.Old = strings.Repeat("1", 40)
	if _, err := Publish(context.Background(), s.req); reasonOf(err) != ReasonUnsignable {
		t.Errorf("a rewrite: %v", err)
	}
}
