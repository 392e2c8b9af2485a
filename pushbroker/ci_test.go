package pushbroker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/exposure"
)

const (
	exposedWorkflow = "name: CI\non: push\npermissions: read-all\njobs:\n  test:\n    runs-on: ubuntu-latest\n    steps:\n      - uses: actions/checkout@v4\n      - run: make ${{ secrets.KEY }}\n"
	quietWorkflow   = "on: {push: {branches-ignore: ['kick/**']}}\njobs: {a: {runs-on: self-hosted, steps: [{uses: actions/checkout@v4}, {run: make}]}}\n"
)

// ciLab is a lab whose base has the workflows, and the work of an agent that
// ran a script.
func ciLab(t *testing.T, workflows map[string]string, agent string) (*lab, Work) {
	t.Helper()
	l := newLab(t)
	for name, body := range workflows {
		if err := os.WriteFile(filepath.Join(l.clone, ".github/workflows", name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.base = l.sh(l.clone, "git add -A; git commit -q --allow-empty -m 'base with CI'; git push -q origin HEAD:main; git rev-parse HEAD")
	l.sh(l.clone, agent)
	w := l.work(l.bundle())
	w.Destination = Destination{GitHub: true, Repo: "acme/demo", Base: "main", PullRequest: true}
	return l, w
}

func TestCIExposure(t *testing.T) {
	t.Parallel()
	const edit = "echo x >> README.md; git commit -qam x"
	accept := "version: 1\nci: {accept: [{workflow: .github/workflows/ci.yml, job: test, reason: no harm, expires: "
	for name, c := range map[string]struct {
		workflows map[string]string
		agent     string
		policy    string
		plain     bool // a plain git remote
		want      []string
	}{
		"exposed":                {map[string]string{"ci.yml": exposedWorkflow}, edit, "", false, []string{"block ci-exposure .github/workflows/ci.yml:5 job test"}},
		"left out":               {map[string]string{"ci.yml": quietWorkflow}, edit, "", false, nil},
		"unreadable":             {map[string]string{"ci.yml": "on: ["}, edit, "", false, []string{"block ci-unreadable .github/workflows/ci.yml:0 "}},
		"plain remote":           {map[string]string{"ci.yml": exposedWorkflow}, edit, "", true, []string{"report ci-exposure .github/workflows/ci.yml:5 job test"}},
		"accepted":               {map[string]string{"ci.yml": exposedWorkflow}, edit, accept + "2999-01-01}]}", false, []string{"report ci-exposure .github/workflows/ci.yml:5 job test"}},
		"accepted, expired":      {map[string]string{"ci.yml": exposedWorkflow}, edit, accept + "2020-01-01}]}", false, []string{"block ci-exposure .github/workflows/ci.yml:5 job test", "report exception-expired .github/workflows/ci.yml:0 "}},
		"another job accepted":   {map[string]string{"ci.yml": exposedWorkflow}, edit, strings.Replace(accept, "job: test", "job: lint", 1) + "2999-01-01}]}", false, []string{"block ci-exposure .github/workflows/ci.yml:5 job test"}},
		"level":                  {map[string]string{"ci.yml": exposedWorkflow}, edit, "version: 1\nchanges: {rules: {ci-exposure: review}}", false, []string{"review ci-exposure .github/workflows/ci.yml:5 job test"}},
		"external with secrets":  {nil, edit, "version: 1\nci: {external: [{name: jenkins, secrets: true}]}", true, []string{"block ci-exposure :0 external service jenkins"}},
		"external without":       {nil, "echo pipeline > Jenkinsfile; git add -A; git commit -qm x", "version: 1\nchanges: {rules: {protected-ci: report}}\nci: {external: [{name: Jenkins, secrets: false}]}", true, nil},
		"workflow of the agent":  {nil, "printf '" + strings.ReplaceAll(strings.ReplaceAll(exposedWorkflow, "\n", `\n`), "%", "%%") + "' > .github/workflows/new.yml; git add -A; git commit -qm x", "version: 1\nchanges: {rules: {protected-ci: report}}", false, []string{"block ci-exposure .github/workflows/new.yml:5 job test"}},
		"link in place of one":   {nil, "ln -s ../../README.md .github/workflows/new.yml; git add -A; git commit -qm x", "version: 1\nchanges: {rules: {protected-ci: report}}", false, []string{"block ci-unreadable .github/workflows/new.yml:0 "}},
		"paths of the work":      {map[string]string{"ci.yml": strings.Replace(exposedWorkflow, "on: push", "on: {push: {paths: ['src/**']}}", 1)}, edit, "", false, nil},
		"paths of the work, hit": {map[string]string{"ci.yml": strings.Replace(exposedWorkflow, "on: push", "on: {push: {paths: ['*.md']}}", 1)}, edit, "", false, []string{"block ci-exposure .github/workflows/ci.yml:5 job test"}},
		"draft": {map[string]string{"ci.yml": strings.NewReplacer("on: push", "on: {pull_request: {types: [opened]}}", "    runs-on", "    if: github.event.pull_request.draft == false\n    runs-on").Replace(exposedWorkflow)},
			"echo x > Makefile; git add -A; git commit -qm x", "", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, w := ciLab(t, c.workflows, c.agent)
			w.Destination.GitHub = !c.plain
			pol := policy.Default()
			if c.policy != "" {
				var err error
				if pol, err = policy.Parse("p.yaml", []byte(c.policy)); err != nil {
					t.Fatal(err)
				}
			}
			v, err := l.try(w, pol)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range v.Findings {
				if strings.HasPrefix(f.Rule, "ci-") || f.Rule == "exception-expired" {
					got = append(got, fmt.Sprintf("%s %s %s:%d %s", f.Level, f.Rule, f.Path, f.Line, f.Place))
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q\nall: %+v", got, c.want, v.Findings)
			}
			if v.DraftOnly != (name == "draft") {
				t.Errorf("the verdict holds for a draft alone: %v", v.DraftOnly)
			}
			if blocks := slices.ContainsFunc(c.want, func(s string) bool { return strings.HasPrefix(s, "block") }); blocks && v.Pass {
				t.Error("a finding blocks, and the verdict passes")
			}
		})
	}
}

func TestExposureOfMirror(t *testing.T) {
	t.Parallel()
	l, w := ciLab(t, map[string]string{"ci.yml": exposedWorkflow}, "git commit -q --allow-empty -m x")
	p := PushOf(policy.Default(), w.Destination, w.Branch)
	r, err := Exposure(context.Background(), l.mirror, l.base, p, exposure.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	found := r.Findings(policy.Default().For("", ""), time.Unix(0, 0))
	if len(r.Workflows) != 1 || len(found) != 1 {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"`run` works on the branch's files (line 9)", "push (line 2: push has no branch filter)", "secret KEY (line 9)"} {
		if !strings.Contains(found[0].Message, want) {
			t.Errorf("%q is not in %q", want, found[0].Message)
		}
	}
	for _, want := range []string{"branches-ignore: ['kick/**']", "ci.guarded_environments", "ci.accept: {workflow: .github/workflows/ci.yml, job: test}"} {
		if !strings.Contains(found[0].Remedy, want) {
			t.Errorf("%q is not in %q", want, found[0].Remedy)
		}
	}
	if _, err := Exposure(context.Background(), l.mirror, strings.Repeat("0", 40), p, exposure.Settings{}); err == nil {
		t.Error("a commit that is not there was judged")
	}
}
