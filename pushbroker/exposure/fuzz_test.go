package exposure

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// A workflow is judged or reported as unreadable, never dropped, and twice the
// same.
func FuzzWorkflow(f *testing.F) {
	files, err := filepath.Glob("testdata/shapes/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatal("no shapes", err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range a.Files {
			if filepath.Ext(part.Name) == ".yml" {
				f.Add(part.Data)
			}
		}
	}
	f.Add([]byte("on: push\njobs: {a: {runs-on: &x [*x]}}"))
	f.Add([]byte("on: [push]\njobs: {a: {if: !x y, steps: [{run: '${{ secrets'}]}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tree := memory{".github/workflows/w.yml": data, ".github/workflows/x.yml": []byte("on: workflow_call\njobs: {a: {uses: ./.github/workflows/w.yml}}")}
		r, err := Judge(t.Context(), tree, nil, testPush(), Settings{})
		if err != nil {
			t.Fatal(err)
		}
		w := r.Workflows[0]
		if len(r.Workflows) != 2 || w.Unreadable == "" && w.Idle == "" && len(w.Jobs) == 0 {
			t.Errorf("nothing is said of the workflow: %+v", r)
		}
		again, err := Judge(t.Context(), tree, nil, testPush(), Settings{})
		if err != nil || outline(again) != outline(r) {
			t.Errorf("judged twice:\n%s%s", outline(r), outline(again))
		}
	})
}

// An expression that is certain is what its negation is not.
func FuzzExpression(f *testing.F) {
	for _, s := range []string{
		"github.ref == 'refs/heads/main' && !cancelled()", "contains(fromJSON('[\"a\",1,null]'), github.actor)", "a.b['c'][0].*.d", "((((1))))",
		"'it''s' != \"x\"", "-1.5 <= 0x1F || NaN", "github.event.pull_request.labels.*.name", "!!!true", "a &&", "}}", "f(", "'",
	} {
		f.Add(s)
	}
	p := testPush()
	in := p.scope(occurrence{event: "pull_request", action: "opened"})
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseExpr(s)
		if err != nil {
			return
		}
		v := e.eval(in).truthy()
		neg, err := parseExpr("!(" + s + ")")
		if err != nil {
			return // one level deeper than is read
		}
		if got := neg.eval(in).truthy(); got != v.not() {
			t.Errorf("%q is %d and its negation %d", s, v, got)
		}
		e.contexts(func(path []string) {
			if len(path) == 0 || path[0] == "" {
				t.Errorf("%q reads a context without a name", s)
			}
		})
	})
}
