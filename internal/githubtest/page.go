package githubtest

import (
	_ "embed"
	"html/template"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

var pullPage = regexp.MustCompile(`^/([^/]+)/([^/]+)/pull/([0-9]+)$`)

//go:embed pull.html
var pullHTML string

var pullTemplate = template.Must(template.New("pull").Parse(pullHTML))

// servePage shows a pull request to a person. Everything in it is text: the
// template escapes, and the body's Markdown is shown as it was sent.
func (s *Server) servePage(w http.ResponseWriter, owner, name, number string) {
	r := s.repo(owner, name)
	if r == nil {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	for _, p := range r.Pulls() {
		if strconv.Itoa(p.Number) != number {
			continue
		}
		commits, _ := git(r.Dir, "log", "--reverse", "--format=%h %s", p.HeadOID, "--not", p.BaseOID)
		files, _ := git(r.Dir, "-c", "core.quotePath=false", "diff", "--stat=100", "--no-renames", p.BaseOID+"..."+p.HeadOID)
		diff, _ := git(r.Dir, "diff", "--no-renames", "--no-ext-diff", "--no-textconv", p.BaseOID+"..."+p.HeadOID)
		const most = 200_000 // bytes; a page is for reading
		if len(diff) > most {
			diff = diff[:most] + "\n[cut]"
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = pullTemplate.Execute(w, map[string]any{
			"Repo": r.FullName(), "Pull": p, "Commits": strings.Split(commits, "\n"), "Files": files, "Diff": strings.Split(diff, "\n"),
		})
		return
	}
	http.Error(w, "Not Found", http.StatusNotFound)
}
