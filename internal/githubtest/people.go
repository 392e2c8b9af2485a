package githubtest

import (
	"slices"
	"strconv"
	"strings"
)

// knows reports whether a user can be asked or assigned. Without a list of
// People, everybody can.
func (r *Repo) knows(login string) bool {
	return r.opts.People == nil || slices.ContainsFunc(r.opts.People, func(p string) bool { return strings.EqualFold(p, login) })
}

func (r *Repo) knowsTeam(slug string) bool {
	return slices.ContainsFunc(r.opts.Teams, func(t string) bool { return strings.EqualFold(t, slug) })
}

// requestReviewers refuses all when it refuses one, as GitHub does.
func (c *call) requestReviewers(number string) {
	var in struct {
		Reviewers []string `json:"reviewers"`
		Teams     []string `json:"team_reviewers"`
	}
	if !c.decode(&in) {
		return
	}
	c.repo.mu.Lock()
	i := slices.IndexFunc(c.repo.pulls, func(p *Pull) bool { return strconv.Itoa(p.Number) == number })
	var refusal string
	var p Pull
	if i >= 0 {
		switch pull := c.repo.pulls[i]; {
		case slices.ContainsFunc(in.Reviewers, func(l string) bool { return strings.EqualFold(l, pull.User) }):
			refusal = "Review cannot be requested from pull request author."
		case slices.ContainsFunc(in.Reviewers, func(l string) bool { return !c.repo.knows(l) }),
			slices.ContainsFunc(in.Teams, func(t string) bool { return !c.repo.knowsTeam(t) }):
			refusal = "Reviews may only be requested from collaborators. One or more of the users or teams you requested is not a collaborator of the " + c.repo.FullName() + " repository."
		default:
			pull.Reviewers = append(pull.Reviewers, in.Reviewers...)
			pull.Teams = append(pull.Teams, in.Teams...)
		}
		p = *c.repo.pulls[i]
	}
	c.repo.mu.Unlock()
	switch {
	case i < 0:
		c.fail(404, "Not Found")
	case refusal != "":
		c.fail(422, refusal)
	default:
		c.answer(201, c.s.pullJSON(c.repo, p, false))
	}
}

// addAssignees leaves out whom it does not know, without a word, as GitHub does.
func (c *call) addAssignees(number string) {
	var in struct {
		Assignees []string `json:"assignees"`
	}
	if !c.decode(&in) {
		return
	}
	c.repo.mu.Lock()
	var i *Issue
	for _, p := range c.repo.pulls {
		if strconv.Itoa(p.Number) == number {
			p.Assignees = c.repo.known(p.Assignees, in.Assignees)
			i = &Issue{Number: p.Number, Title: p.Title, Body: p.Body, User: p.User, Labels: p.Labels, Assignees: p.Assignees, Created: p.Created}
		}
	}
	for _, issue := range c.repo.issues {
		if strconv.Itoa(issue.Number) == number {
			issue.Assignees = c.repo.known(issue.Assignees, in.Assignees)
			copied := *issue
			i = &copied
		}
	}
	c.repo.mu.Unlock()
	if i == nil {
		c.fail(404, "Not Found")
		return
	}
	c.answer(201, c.s.issueJSON(c.repo, *i))
}

// known adds those of more that the repository knows to the list.
func (r *Repo) known(list, more []string) []string {
	for _, l := range more {
		if r.knows(l) && !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	return list
}

func (s *Server) teamJSON(r *Repo, slug string, whole bool) object {
	api := s.API() + "organizations/" + strconv.FormatInt(number(r.Owner), 10) + "/team/" + strconv.FormatInt(number(slug), 10)
	o := object{
		"id": number(slug), "node_id": nodeID("team", slug), "name": slug, "slug": slug, "description": "", "privacy": "closed",
		"notification_setting": "notifications_enabled", "permission": "pull", "url": api, "members_url": api + "/members{/member}",
		"repositories_url": api + "/repos", "html_url": s.URL() + "/orgs/" + r.Owner + "/teams/" + slug, "type": "organization",
	}
	if whole {
		o["parent"] = nil
	}
	return o
}

func (c *call) addComment(number string) {
	var in struct{ Body string }
	if !c.decode(&in) {
		return
	}
	if in.Body == "" || len([]rune(in.Body)) > 65536 {
		c.fail(422, "Validation Failed")
		return
	}
	c.comments(number, in.Body)
}

// comments lists those of a pull request, or adds one.
func (c *call) comments(number, add string) {
	c.repo.mu.Lock()
	i := slices.IndexFunc(c.repo.pulls, func(p *Pull) bool { return strconv.Itoa(p.Number) == number })
	out := []object{}
	if i >= 0 {
		p := c.repo.pulls[i]
		if add != "" {
			p.Comments = append(p.Comments, add)
		}
		for n, body := range p.Comments {
			out = append(out, c.s.commentJSON(c.repo, *p, n+1, body))
		}
	}
	c.repo.mu.Unlock()
	switch {
	case i < 0:
		c.fail(404, "Not Found")
	case add != "":
		c.answer(201, out[len(out)-1])
	default:
		c.answer(200, out)
	}
}

func (s *Server) commentJSON(r *Repo, p Pull, n int, body string) object {
	id := r.id*1000000 + int64(p.Number)*1000 + int64(n)
	url := s.repoAPI(r) + "/issues/comments/" + strconv.FormatInt(id, 10)
	html := s.URL() + "/" + r.FullName() + "/pull/" + strconv.Itoa(p.Number) + "#issuecomment-" + strconv.FormatInt(id, 10)
	return object{
		"id": id, "node_id": nodeID("comment", id), "url": url, "html_url": html, "body": body, "user": s.userJSON(p.User), "author_association": "NONE",
		"created_at": stamp(p.Created), "updated_at": stamp(p.Created), "issue_url": s.repoAPI(r) + "/issues/" + strconv.Itoa(p.Number),
	}
}
