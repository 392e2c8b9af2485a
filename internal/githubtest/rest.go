package githubtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// call is one API request on its way through.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	token string
	grant *grant // nil: an App's own request, or none
	repo  *Repo
}

// serveAPI dispatches a path below the API's base.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request, path string) {
	c := &call{s: s, w: w, r: r, token: presentedToken(r)}
	p := strings.Split(path, "/")
	switch {
	case path == "app" && r.Method == "GET":
		c.asApp(func() { c.answer(200, s.appJSON()) })
	case len(p) == 4 && p[0] == "app" && p[1] == "installations" && p[3] == "access_tokens" && r.Method == "POST":
		c.asApp(func() { c.createToken(p[2]) })
	case len(p) == 4 && p[0] == "repos" && p[3] == "installation" && r.Method == "GET":
		c.asApp(func() { c.findInstallation(p[1], p[2]) })
	case path == "installation/token" && r.Method == "DELETE":
		c.asToken(func() {
			if !c.grant.app {
				c.fail(403, "Resource not accessible by personal access token")
				return
			}
			s.revoke(c.token)
			w.WriteHeader(204)
		})
	case len(p) >= 3 && p[0] == "repos":
		c.asToken(func() {
			c.repo = s.repo(p[1], p[2])
			if c.repo == nil || !c.grant.covers(c.repo) {
				c.fail(404, "Not Found")
				return
			}
			c.repository(strings.Join(p[3:], "/"))
		})
	default:
		c.fail(404, "Not Found")
	}
}

func (c *call) repository(path string) {
	p := strings.Split(path, "/")
	method := c.r.Method
	branch, isBranch := strings.CutPrefix(path, "branches/")
	protection, isProtection := strings.CutSuffix(branch, "/protection")
	switch {
	case path == "" && method == "GET":
		c.need("metadata", "read", func() { c.answer(200, c.s.repoJSON(c.repo, c.grant)) })
	case strings.HasPrefix(path, "git/ref/") && method == "GET":
		c.need("contents", "read", func() { c.getRef("refs/" + strings.TrimPrefix(path, "git/ref/")) })
	case isBranch && isProtection && method == "GET":
		c.need("administration", "read", func() { c.getProtection(protection) })
	case isBranch && method == "GET":
		c.need("contents", "read", func() { c.getBranch(branch) })
	case path == "pulls" && method == "GET":
		c.need("pull_requests", "read", c.listPulls)
	case path == "pulls" && method == "POST":
		c.need("pull_requests", "write", c.createPull)
	case len(p) == 3 && p[0] == "pulls" && p[2] == "requested_reviewers" && method == "POST":
		c.need("pull_requests", "write", func() { c.requestReviewers(p[1]) })
	case len(p) == 3 && p[0] == "issues" && p[2] == "labels" && method == "POST":
		c.needEither("issues", "pull_requests", func() { c.addLabels(p[1]) })
	case len(p) == 3 && p[0] == "issues" && p[2] == "assignees" && method == "POST":
		c.needEither("issues", "pull_requests", func() { c.addAssignees(p[1]) })
	case len(p) == 3 && p[0] == "issues" && p[2] == "comments" && method == "GET":
		c.needEither("issues", "pull_requests", func() { c.comments(p[1], "") })
	case len(p) == 3 && p[0] == "issues" && p[2] == "comments" && method == "POST":
		c.needEither("issues", "pull_requests", func() { c.addComment(p[1]) })
	case path == "git/refs" && method == "POST":
		c.need("contents", "write", c.createRef)
	case strings.HasPrefix(path, "git/refs/") && method == "DELETE":
		c.need("contents", "write", func() { c.deleteRef("refs/" + strings.TrimPrefix(path, "git/refs/")) })
	case len(p) == 3 && p[0] == "git" && p[1] == "commits" && method == "GET":
		c.need("contents", "read", func() { c.getCommit(p[2]) })
	case path == "issues" && method == "GET":
		c.need("issues", "read", c.listIssues)
	case path == "issues" && method == "POST":
		c.need("issues", "write", c.createIssue)
	default:
		c.fail(404, "Not Found")
	}
}

func (c *call) asApp(do func()) {
	if refusal := c.s.verifyApp(c.token); refusal != "" {
		c.fail(401, refusal)
		return
	}
	do()
}

func (c *call) asToken(do func()) {
	if c.token == "" {
		c.fail(401, "Requires authentication")
		return
	}
	if c.grant = c.s.lookup(c.token); c.grant == nil {
		c.fail(401, "Bad credentials")
		return
	}
	do()
}

func (c *call) need(permission, level string, do func()) {
	// Every token may read metadata.
	if permission != "metadata" && !c.grant.Permissions.allows(permission, level) {
		c.fail(403, "Resource not accessible by integration")
		return
	}
	if level == "write" && c.repo.opts.Archived {
		c.fail(403, "Repository was archived so is read-only.")
		return
	}
	do()
}

func (c *call) needEither(a, b string, do func()) {
	if c.grant.Permissions.allows(a, "write") {
		b = a
	}
	c.need(b, "write", do)
}

func (c *call) answer(status int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err) // only our own maps come here
	}
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	c.w.Header().Set("X-GitHub-Media-Type", "github.v3; format=json")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(b)
}

func (c *call) fail(status int, message string) {
	c.answer(status, object{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

// invalid is GitHub's 422.
func (c *call) invalid(errs ...object) {
	c.answer(422, object{"message": "Validation Failed", "errors": errs, "documentation_url": "https://docs.github.com/rest", "status": "422"})
}

// decode reads a JSON body of at most 1 MiB.
func (c *call) decode(v any) bool {
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, 1<<20))
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		c.fail(400, "Problems parsing JSON")
		return false
	}
	return true
}

func (c *call) findInstallation(owner, name string) {
	r := c.s.repo(owner, name)
	if r == nil || r.opts.NotInstalled {
		c.fail(404, "Not Found")
		return
	}
	c.answer(200, c.s.installationJSON(r))
}

func (c *call) createToken(installation string) {
	if installation != strconv.Itoa(installationID) {
		c.fail(404, "Not Found")
		return
	}
	var in struct {
		Repositories []string    `json:"repositories"`
		Permissions  Permissions `json:"permissions"`
	}
	if !c.decode(&in) {
		return
	}
	g := Grant{Selection: "all", Permissions: Permissions{"metadata": "read"}}
	var repos []*Repo
	for _, name := range in.Repositories {
		r := c.s.installedRepo(name)
		if r == nil {
			c.fail(422, "There is at least one repository that does not exist or is not accessible to the parent installation.")
			return
		}
		g.Selection, g.Repositories, repos = "selected", append(g.Repositories, r.FullName()), append(repos, r)
	}
	for name, level := range in.Permissions {
		for _, r := range repos {
			if !r.opts.Granted.allows(name, level) {
				c.fail(422, "The permissions requested are not granted to this installation.")
				return
			}
		}
		g.Permissions[name] = level
	}
	token, g, err := c.s.mint(g)
	if err != nil {
		c.fail(500, "Server Error")
		return
	}
	answer := object{
		"token": token, "expires_at": stamp(g.Expires), "permissions": g.Permissions, "repository_selection": g.Selection,
	}
	if g.Selection == "selected" {
		list := []object{}
		for _, full := range g.Repositories {
			owner, name, _ := strings.Cut(full, "/")
			if r := c.s.repo(owner, name); r != nil {
				list = append(list, c.s.repoJSON(r, nil))
			}
		}
		answer["repositories"] = list
	}
	c.answer(201, answer)
}

// installedRepo finds a repository of the installation by its bare name.
func (s *Server) installedRepo(name string) *Repo {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.repos {
		if strings.EqualFold(r.Name, name) && !r.opts.NotInstalled {
			return r
		}
	}
	return nil
}

func (c *call) getRef(ref string) {
	oid := c.repo.Ref(ref)
	if oid == "" {
		c.fail(404, "Not Found")
		return
	}
	c.answer(200, c.refJSON(ref, oid))
}

func (c *call) getBranch(branch string) {
	oid := c.repo.Ref("refs/heads/" + branch)
	if oid == "" {
		c.fail(404, "Branch not found")
		return
	}
	c.answer(200, c.s.branchJSON(c.repo, branch, oid))
}

func (c *call) getProtection(branch string) {
	switch {
	case c.repo.Ref("refs/heads/"+branch) == "":
		c.fail(404, "Branch not found")
	case !c.repo.protected(branch):
		c.fail(404, "Branch not protected")
	default:
		c.answer(200, object{"url": c.s.repoAPI(c.repo) + "/branches/" + branch + "/protection", "enforce_admins": object{
			"url": c.s.repoAPI(c.repo) + "/branches/" + branch + "/protection/enforce_admins", "enabled": true}})
	}
}

func (c *call) listPulls() {
	q := c.r.URL.Query()
	state := q.Get("state")
	if state == "" {
		state = "open"
	}
	out := []object{}
	for _, p := range slices.Backward(c.repo.Pulls()) {
		head := c.repo.Owner + ":" + p.Head
		if (state == "all" || p.State == state) && (q.Get("head") == "" || q.Get("head") == head) && (q.Get("base") == "" || q.Get("base") == p.Base) {
			out = append(out, c.s.pullJSON(c.repo, p, false))
		}
	}
	c.answer(200, out)
}

func (c *call) createPull() {
	if c.repo.opts.NoPulls {
		c.fail(404, "Not Found")
		return
	}
	var in struct {
		Title, Body, Head, Base string
		Draft                   bool
	}
	if !c.decode(&in) {
		return
	}
	bad := func(field string) { c.invalid(object{"resource": "PullRequest", "field": field, "code": "invalid"}) }
	custom := func(words string) {
		c.invalid(object{"resource": "PullRequest", "code": "custom", "message": words})
	}
	in.Head = strings.TrimPrefix(in.Head, c.repo.Owner+":")
	head, base := c.repo.Ref("refs/heads/"+in.Head), c.repo.Ref("refs/heads/"+in.Base)
	switch {
	case in.Title == "":
		c.invalid(object{"resource": "PullRequest", "field": "title", "code": "missing_field"})
		return
	case len([]rune(in.Title)) > 256:
		custom("title is too long (maximum is 256 characters)")
		return
	case len([]rune(in.Body)) > 65536:
		custom("body is too long (maximum is 65536 characters)")
		return
	case head == "":
		bad("head")
		return
	case base == "":
		bad("base")
		return
	}
	if n, err := git(c.repo.Dir, "rev-list", "--count", head, "--not", base); err != nil || n == "0" {
		custom(fmt.Sprintf("No commits between %s and %s", in.Base, in.Head))
		return
	}
	c.repo.mu.Lock()
	for _, p := range c.repo.pulls {
		if p.State == "open" && p.Head == in.Head && p.Base == in.Base {
			c.repo.mu.Unlock()
			custom(fmt.Sprintf("A pull request already exists for %s:%s.", c.repo.Owner, in.Head))
			return
		}
	}
	c.repo.last++
	p := &Pull{
		Number: c.repo.last, Title: in.Title, Body: in.Body, Head: in.Head, Base: in.Base, HeadOID: head, BaseOID: base,
		Draft: in.Draft, State: "open", User: c.grant.login, Created: time.Now().UTC().Truncate(time.Second),
	}
	c.repo.pulls = append(c.repo.pulls, p)
	made := *p
	c.repo.mu.Unlock()
	c.answer(201, c.s.pullJSON(c.repo, made, true))
}

// ClosePull closes a pull request without merging it.
func (r *Repo) ClosePull(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pulls {
		if p.Number == number {
			p.State = "closed"
		}
	}
}

func (c *call) addLabels(number string) {
	var in struct {
		Labels []string `json:"labels"`
	}
	// GitHub takes a bare array too, and that is what go-github sends.
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, 1<<20))
	if err != nil || (json.Unmarshal(b, &in.Labels) != nil && json.Unmarshal(b, &in) != nil) {
		c.fail(400, "Problems parsing JSON")
		return
	}
	c.repo.mu.Lock()
	var labels *[]string
	for _, p := range c.repo.pulls {
		if strconv.Itoa(p.Number) == number {
			labels = &p.Labels
		}
	}
	for _, i := range c.repo.issues {
		if strconv.Itoa(i.Number) == number {
			labels = &i.Labels
		}
	}
	out := []object{}
	if labels != nil {
		for _, l := range in.Labels {
			if !slices.Contains(*labels, l) {
				*labels = append(*labels, l)
			}
		}
		for _, l := range *labels {
			out = append(out, c.s.labelJSON(c.repo, l))
		}
	}
	c.repo.mu.Unlock()
	if labels == nil {
		c.fail(404, "Not Found")
		return
	}
	c.answer(200, out)
}

func (c *call) createIssue() {
	var in struct {
		Title, Body       string
		Labels, Assignees []string
	}
	if !c.decode(&in) {
		return
	}
	if in.Title == "" {
		c.invalid(object{"resource": "Issue", "field": "title", "code": "missing_field"})
		return
	}
	c.repo.mu.Lock()
	c.repo.last++
	i := &Issue{Number: c.repo.last, Title: in.Title, Body: in.Body, Labels: in.Labels, Assignees: c.repo.known(nil, in.Assignees), User: c.grant.login, Created: time.Now().UTC().Truncate(time.Second)}
	c.repo.issues = append(c.repo.issues, i)
	c.repo.mu.Unlock()
	c.answer(201, c.s.issueJSON(c.repo, *i))
}

func (c *call) listIssues() {
	state := c.r.URL.Query().Get("state")
	if state == "" {
		state = "open"
	}
	out := []object{}
	for _, i := range slices.Backward(c.repo.Issues()) {
		if state != "closed" { // nothing closes an issue here
			out = append(out, c.s.issueJSON(c.repo, i))
		}
	}
	c.answer(200, out)
}
