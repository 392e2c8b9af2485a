package exposure

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// Each file of testdata/shapes is one shape of workflows as repositories have
// them, with what must be said of it: a line a job, or a line for a workflow
// that does not run. "push?" is an event that may start it.
func TestShapes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/shapes/*.txtar")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d shapes, want 50 at least (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tree, want := memory{}, ""
			p, s := testPush(), Settings{}
			for _, f := range a.Files {
				switch f.Name {
				case "want":
					want = string(f.Data)
				case "settings":
					for line := range strings.Lines(string(f.Data)) {
						set(t, strings.Fields(line), &p, &s)
					}
				default:
					tree[f.Name] = f.Data
				}
			}
			r, err := Judge(t.Context(), tree, nil, p, s)
			if err != nil {
				t.Fatal(err)
			}
			if got := outline(r); got != want {
				t.Errorf("%s\ngot:\n%swant:\n%s", strings.TrimSpace(string(a.Comment)), got, want)
			}
		})
	}
}

func testPush() Push {
	return Push{Repo: "acme/api", Branch: "kick/fixer/k0000000000001", Base: "main", PullRequest: true, Labels: []string{"kick-review"}}
}

// set reads one line of a shape's settings.
func set(t *testing.T, words []string, p *Push, s *Settings) {
	switch words[0] {
	case "read-token":
		s.ReadToken = true
	case "guarded":
		s.Guarded = words[1:]
	case "hosted":
		s.Hosted = words[1:]
	case "draft":
		p.Draft = true
	case "issue":
		p.Issue = true
	case "no-pull-request":
		p.PullRequest = false
	case "changed":
		p.Changed = words[1:]
	default:
		t.Fatalf("unknown setting %q", words)
	}
}

// outline says in a line a job what matters of a report.
func outline(r Report) string {
	var b strings.Builder
	for _, w := range r.Workflows {
		switch name := path.Base(w.Path); {
		case w.Unreadable != "":
			fmt.Fprintf(&b, "%s unreadable: %s\n", name, w.Unreadable)
		case w.Idle != "":
			fmt.Fprintf(&b, "%s idle: %s\n", name, w.Idle)
		default:
			for _, j := range w.Jobs {
				fmt.Fprintf(&b, "%s %s %s %s\n", name, j.ID, events(j), outcome(j))
			}
		}
	}
	return b.String()
}

func events(j Job) []string {
	var names []string
	for _, t := range j.Triggers {
		name, _, _ := strings.Cut(t.Event, " ")
		if !t.Certain {
			name += "?"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func outcome(j Job) string {
	switch {
	case j.Waits != "":
		return "waits for " + j.Waits
	case j.Code == "":
		return "no code"
	case !j.Exposed():
		return "code"
	}
	var parts []string
	for _, r := range j.Exposes {
		switch part := string(r.Kind) + " " + r.Name; {
		case r.Kind == OIDC, r.Name == unsetToken:
			parts = append(parts, string(r.Kind))
		case r.Kind == Runner:
			parts = append(parts, r.Name)
		default:
			parts = append(parts, part)
		}
	}
	return "exposed " + strings.Join(parts, ", ")
}
