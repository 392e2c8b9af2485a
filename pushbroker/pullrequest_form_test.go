package pushbroker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubtest"
	"github.com/kickhq/kick/policy"
)

// seeded is a stage whose base has further files, which the script makes.
func seeded(t *testing.T, base string, repo githubtest.RepoOptions, work string) *stage {
	t.Helper()
	s := &stage{lab: newLab(t), tokens: map[string]bool{}}
	s.sh(s.clone, base+"; git add -A; git commit -q --allow-empty -m base; git push -q origin HEAD:main")
	s.base = s.sh(s.clone, "git rev-parse HEAD")
	return s.open(t, githubtest.Options{}, repo, work)
}

func (s *stage) review() {
	s.req.Verdict.Pass, s.req.Verdict.Review = false, true
	s.req.Verdict.Findings = []policy.Finding{{Rule: "protected-build", Level: policy.Review, Path: "Makefile", Message: "a build entry point", Remedy: "read it"}}
}

func TestReviewersAreTheCodeOwnersOfTheBase(t *testing.T) {
	t.Parallel()
	const work = "echo x > Makefile; echo '* @mallory' > .github/CODEOWNERS; mkdir -p web; echo x > web/a.js; echo x > docs/x.md; git add -A; git commit -qm work"
	for name, tc := range map[string]struct {
		base           string
		repo           githubtest.RepoOptions
		form           policy.Publish
		reviewers      []string
		teams          []string
		warning        string
		withoutReasons bool
	}{
		"last match wins":      {base: "printf '* @olga\\n/web/ @acme/web\\n*.md\\nMakefile @Olga @bob # two\\n' > .github/CODEOWNERS", reviewers: []string{"olga", "bob"}, teams: []string{"web"}},
		"first place":          {base: "printf '* @olga\\n' > .github/CODEOWNERS; printf '* @other\\n' > CODEOWNERS", reviewers: []string{"olga"}},
		"second place":         {base: "git rm -q .github/CODEOWNERS; printf '* @olga\\n' > CODEOWNERS; printf '* @other\\n' > docs/CODEOWNERS", reviewers: []string{"olga"}},
		"third place":          {base: "git rm -q .github/CODEOWNERS; printf '* @olga\\n' > docs/CODEOWNERS", reviewers: []string{"olga"}},
		"none":                 {base: "git rm -q .github/CODEOWNERS"},
		"a link is no file":    {base: "rm .github/CODEOWNERS; ln -s ../README.md .github/CODEOWNERS; printf '* @olga\\n' > CODEOWNERS", reviewers: []string{"olga"}},
		"unknown":              {base: "printf '* @olga @nobody @acme/gone\\n' > .github/CODEOWNERS", reviewers: []string{"olga"}, warning: "nobody was not asked for a review"},
		"other organisation":   {base: "printf '* @olga @other/web\\n' > .github/CODEOWNERS", reviewers: []string{"olga"}, warning: "other/web was not asked for a review: it is of another organisation"},
		"mail":                 {base: "printf '* olga@example.com\\n' > .github/CODEOWNERS", warning: "olga@example.com by mail address"},
		"author":               {base: "printf '* @kick-app[bot] @olga\\n' > .github/CODEOWNERS", warning: "line 1 was left out"},
		"bad line":             {base: "printf '!x @bob\\n* @olga\\n' > .github/CODEOWNERS", reviewers: []string{"olga"}, warning: ".github/CODEOWNERS, line 1 was left out"},
		"large":                {base: "head -c 3200000 /dev/zero | tr '\\0' x > .github/CODEOWNERS", warning: "larger than 3 MB"},
		"many":                 {base: "printf '* @u1 @u2 @u3 @u4 @u5 @u6 @u7 @u8 @u9 @u10 @u11 @u12 @u13 @u14 @u15 @u16 @u17\\n' > .github/CODEOWNERS", repo: githubtest.RepoOptions{Public: true}, warning: "GitHub takes 15 reviewers; not asked: u8, u9", reviewers: []string{"u1", "u10", "u11", "u12", "u13", "u14", "u15", "u16", "u17", "u2", "u3", "u4", "u5", "u6", "u7"}},
		"policy adds":          {base: "printf '* @bob\\n' > .github/CODEOWNERS", form: policy.Publish{Reviewers: []string{"olga", "acme/web"}}, reviewers: []string{"olga", "bob"}, teams: []string{"web"}},
		"policy leaves it":     {base: "printf '* @bob\\n' > .github/CODEOWNERS", form: policy.Publish{CodeOwners: new(bool)}},
		"nothing for review":   {base: "printf '* @bob\\n' > .github/CODEOWNERS", withoutReasons: true},
		"the agent's own file": {base: "printf '/web/ @bob\\n' > .github/CODEOWNERS", reviewers: []string{"bob"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !tc.repo.Public {
				tc.repo.People, tc.repo.Teams = []string{"olga", "bob"}, []string{"web"}
			}
			s := seeded(t, tc.base, tc.repo, work)
			if !tc.withoutReasons {
				s.review()
			}
			s.req.Form = tc.form
			pub, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			p := s.repo.Pulls()[0]
			if !slices.Equal(p.Reviewers, tc.reviewers) || !slices.Equal(p.Teams, tc.teams) {
				t.Errorf("asked %q and teams %q, want %q and %q; warnings %q", p.Reviewers, p.Teams, tc.reviewers, tc.teams, pub.Warnings)
			}
			if warnings := strings.Join(pub.Warnings, "\n"); (warnings == "") != (tc.warning == "") || !strings.Contains(warnings, tc.warning) {
				t.Errorf("warnings %q, want %q", pub.Warnings, tc.warning)
			}
		})
	}
}

// TestAuthorIsNeverAsked is about a token of the operator's own, whose user
// owns the code.
func TestAuthorIsNeverAsked(t *testing.T) {
	t.Parallel()
	s := seeded(t, "printf '* @Olga @bob\\n' > .github/CODEOWNERS", githubtest.RepoOptions{}, oneFile)
	s.review()
	s.asUser("olga")
	if pub, err := Publish(t.Context(), s.req); err != nil || len(pub.Warnings) > 0 || !slices.Equal(s.repo.Pulls()[0].Reviewers, []string{"bob"}) {
		t.Errorf("%+v, %v, asked %q", pub, err, s.repo.Pulls()[0].Reviewers)
	}
}

func TestPullRequestForm(t *testing.T) {
	t.Parallel()
	on := true
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{People: []string{"olga"}}, oneFile)
	s.req.Form = policy.Publish{Draft: &on, TitlePrefix: "[agent] ", Labels: []string{"agent", "bot"}, Assignees: []string{"olga", "gone"}}
	pub, err := Publish(t.Context(), s.req)
	if err != nil {
		t.Fatal(err)
	}
	p := s.repo.Pulls()[0]
	if !p.Draft || p.Title != "[agent] add a file" || !slices.Equal(p.Labels, []string{"agent", "bot"}) || !slices.Equal(p.Assignees, []string{"olga"}) || len(p.Reviewers) > 0 {
		t.Errorf("pull request %+v", p)
	}
	if len(pub.Warnings) != 1 || !strings.Contains(pub.Warnings[0], "could not be assigned to gone") {
		t.Errorf("warnings %q", pub.Warnings)
	}
	// A repetition adds what is missing, and nothing twice.
	if _, err := Publish(t.Context(), s.req); err != nil || s.hub.Count("/labels") != 1 {
		t.Errorf("%v, %d requests for labels", err, s.hub.Count("/labels"))
	}
	// Nothing ever asks for an automatic merge.
	for _, r := range s.hub.Requests() {
		if strings.Contains(r.Path, "merge") || strings.Contains(r.Path, "graphql") {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
}

func TestReasonsStandAtTheTop(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{}, githubtest.RepoOptions{}, oneFile)
	s.review()
	for i := range 12 {
		s.req.Verdict.Findings = append(s.req.Verdict.Findings, policy.Finding{Rule: "r", Level: policy.Review, Path: fmt.Sprint("file", i), Message: "odd", Remedy: "look"})
	}
	if _, err := Publish(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	p := s.repo.Pulls()[0]
	want := "> [!IMPORTANT]\n> A person must look at the following before this is merged:\n>\n> - `Makefile`: `a build entry point`\n"
	if !strings.Contains(p.Body, want) || !strings.Contains(p.Body, "> - and 3 findings more\n") || !p.Draft || !slices.Contains(p.Labels, ReviewLabel) {
		t.Errorf("draft %v, labels %q, body\n%s", p.Draft, p.Labels, p.Body)
	}
}

func TestRepositoryTemplate(t *testing.T) {
	t.Parallel()
	const text = "## Why\n\n<!-- say why -->\n\n## Checklist\n\n- [ ] tests\n"
	put := func(path, text string) string {
		return fmt.Sprintf("mkdir -p $(dirname %s); printf '%s' > %s", path, strings.ReplaceAll(text, "\n", "\\n"), path)
	}
	for name, tc := range map[string]struct {
		base, name, work, warning string
		used                      bool
	}{
		"in .github":          {base: put(".github/pull_request_template.md", text), used: true},
		"in upper case":       {base: put(".github/PULL_REQUEST_TEMPLATE.md", text), used: true},
		"at the top":          {base: put("pull_request_template.md", text), used: true},
		"in docs":             {base: put("docs/pull_request_template.txt", text), used: true},
		"first place counts":  {base: put(".github/pull_request_template.md", text) + ";" + put("pull_request_template.md", "other"), used: true},
		"none":                {base: "true"},
		"left out by policy":  {base: put("pull_request_template.md", text), name: policy.NoTemplate},
		"of several, by name": {base: put(".github/PULL_REQUEST_TEMPLATE/fix.md", text) + ";" + put(".github/PULL_REQUEST_TEMPLATE/feature.md", "other"), name: "fix.md", used: true},
		"of several, default": {base: put(".github/PULL_REQUEST_TEMPLATE/fix.md", text)},
		"no such name":        {base: put("pull_request_template.md", text), name: "fix.md", warning: "no template fix.md"},
		"the agent's own":     {base: "true", work: put(".github/pull_request_template.md", "by the agent") + "; git add -A; git commit -qm t"},
		"too large":           {base: "head -c 20000 /dev/zero | tr '\\0' x > pull_request_template.md", warning: "more than 16384 bytes"},
		"binary":              {base: "printf '\\377\\376' > pull_request_template.md", warning: "not UTF-8"},
		"a link":              {base: "ln -s README.md pull_request_template.md", warning: "no regular file"},
		"open comment":        {base: put("pull_request_template.md", "a\n<!-- b"), warning: "a comment in it is not closed"},
		"open block":          {base: put("pull_request_template.md", "a\n```\nb"), warning: "a code block in it is not closed"},
		"open details":        {base: put("pull_request_template.md", "<details>\nb"), warning: "a <details> block in it is not closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work := oneFile
			if tc.work != "" {
				work += "; " + tc.work
			}
			s := seeded(t, tc.base, githubtest.RepoOptions{}, work)
			s.req.Form.Template = tc.name
			pub, err := Publish(t.Context(), s.req)
			if err != nil {
				t.Fatal(err)
			}
			body := s.repo.Pulls()[0].Body
			if begins := strings.HasPrefix(body, strings.TrimSpace(text)+"\n\n---\n\nThe agent "); begins != tc.used || strings.Contains(body, "by the agent") {
				t.Errorf("the template begins the body: %v, want %v:\n%s", begins, tc.used, body)
			}
			if warnings := strings.Join(pub.Warnings, "\n"); (warnings == "") != (tc.warning == "") || !strings.Contains(warnings, tc.warning) {
				t.Errorf("warnings %q, want %q", pub.Warnings, tc.warning)
			}
		})
	}
}
