package pushbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/policy"
)

// maxReviewers is GitHub's limit for one pull request.
const maxReviewers = 15

// decide makes the pull request, from the inspected work, the policy and the
// repository's own files at the base; nothing of the agent's chooses anything.
func (p *publisher) decide(ctx context.Context) (Proposal, error) {
	r := p.req
	want := Proposal{
		Branch: r.Refs.Branch, Base: r.Refs.into(), Commit: r.Quarantine.Tip, Draft: r.Verdict.Review || policy.Is(r.Form.Draft), DraftOnly: r.Verdict.DraftOnly,
		Labels: r.Form.Labels, Assignees: r.Form.Assignees, IssueFallback: policy.Is(r.Form.IssueFallback),
	}
	if r.Verdict.Review {
		want.Labels = append([]string{ReviewLabel}, r.Form.Labels...)
	}
	d := r.Description
	d.Refs, d.Verdict, d.Target, d.TitlePrefix = r.Refs, r.Verdict, r.Target, r.Form.TitlePrefix
	now := code(want.Commit)
	if policy.Is(r.Form.Signed) {
		now = "a commit of GitHub's with the tree " + code(r.Verdict.Tree)
		d.Notes = append(slices.Clip(d.Notes), "GitHub made and signed the commits of this branch: they have the inspected trees, and other ids than the commit that is named below.")
	}
	want.Title, want.Body = d.Text()
	if r.Refs.Old != "" {
		want.Comment = fmt.Sprintf("**Updated** (%s): %s is now at %s; it was at %s.\n\n%s", r.Refs.updated(r.Quarantine), code(r.Refs.Branch), now, code(r.Refs.Old), want.Body)
	}
	rules := cmp.Or(r.RulesAt, r.Quarantine.BaseOID)
	files, err := r.Quarantine.filesAt(ctx, rules)
	if err != nil && rules != r.Quarantine.BaseOID {
		p.warn("the branch no longer holds %s, where the first kick began, so that its code owners and its template are not known: %v", rules, err)
		return want, nil
	}
	if err != nil {
		return want, err
	}
	defer files.close()
	var note string
	if d.Template, note, err = templateAt(ctx, files, r.Form.Template); err != nil {
		return want, err
	}
	if note != "" {
		p.warn("%s", note)
	}
	want.Title, want.Body = d.Text()
	return want, p.chooseReviewers(&want, files)
}

// chooseReviewers takes those whom the policy names, and the code owners where
// the work asks for a review: of a draft, GitHub does not ask them itself.
func (p *publisher) chooseReviewers(want *Proposal, files *baseFiles) error {
	r := p.req
	var left []string
	add := func(to *[]string, names ...string) {
		for _, name := range names {
			switch {
			case slices.ContainsFunc(*to, func(has string) bool { return strings.EqualFold(has, name) }):
			case len(want.Reviewers)+len(want.Teams) == maxReviewers:
				left = append(left, name)
			default:
				*to = append(*to, name)
			}
		}
	}
	for _, name := range r.Form.Reviewers {
		if strings.Contains(name, "/") {
			add(&want.Teams, name)
		} else {
			add(&want.Reviewers, name)
		}
	}
	if r.Verdict.Review && (r.Form.CodeOwners == nil || *r.Form.CodeOwners) {
		owners, err := ownersOf(files, r.Quarantine.changedPaths())
		if err != nil {
			return err
		}
		for _, note := range owners.notes {
			p.warn("%s", note)
		}
		add(&want.Teams, owners.teams...)
		add(&want.Reviewers, owners.users...)
	}
	if len(left) > 0 {
		p.warn("GitHub takes %d reviewers; not asked: %s", maxReviewers, strings.Join(left, ", "))
	}
	return nil
}

// changedPaths are the paths that base..tip changes.
func (q *Quarantine) changedPaths() []string {
	paths := make([]string, len(q.history.net))
	for i, c := range q.history.net {
		paths[i] = c.path
	}
	return paths
}

// decorate adds labels, assignees and reviewers. Without them the pull request
// is as good, so what fails is a warning.
func (p *publisher) decorate(ctx context.Context, client *github.Client, pr *github.PullRequest) {
	t, n := p.req.Target, pr.GetNumber()
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(l string) bool { return strings.EqualFold(l, name) })
	}
	var labels []string
	for _, l := range pr.Labels {
		labels = append(labels, l.GetName())
	}
	if missing := without(p.proposal.Labels, func(l string) bool { return has(labels, l) }); len(missing) > 0 {
		if _, _, err := client.Issues.AddLabelsToIssue(ctx, t.Owner, t.Name, n, missing); err != nil {
			p.warn("label pull request #%d %s: %s", n, strings.Join(missing, ", "), classifyAPI(ctx, "", err).said())
		}
	}
	if missing := without(p.proposal.Assignees, func(l string) bool { return has(logins(pr.Assignees), l) }); len(missing) > 0 {
		p.assign(ctx, client, n, missing)
	}
	if p.pub.Existing && p.proposal.Comment != "" {
		p.comment(ctx, client, pr)
		p.ask(ctx, client, pr) // again, since there is something new to look at
		return
	}
	asked := logins(pr.RequestedReviewers)
	for _, team := range pr.RequestedTeams {
		asked = append(asked, team.GetSlug())
	}
	if p.pub.Existing && len(asked) > 0 {
		return // somebody was asked, and may have answered
	}
	p.ask(ctx, client, pr)
}

func without(list []string, drop func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(list), drop)
}

func logins(users []*github.User) []string {
	var out []string
	for _, u := range users {
		out = append(out, u.GetLogin())
	}
	return out
}

// assign tells whom GitHub left out: it does so without a word.
func (p *publisher) assign(ctx context.Context, client *github.Client, number int, names []string) {
	issue, _, err := client.Issues.AddAssignees(ctx, p.req.Target.Owner, p.req.Target.Name, number, names)
	if err != nil {
		p.warn("assign #%d to %s: %s", number, strings.Join(names, ", "), classifyAPI(ctx, "", err).said())
		return
	}
	got := logins(issue.Assignees)
	if left := without(names, func(name string) bool {
		return slices.ContainsFunc(got, func(l string) bool { return strings.EqualFold(l, name) })
	}); len(left) > 0 {
		p.warn("#%d could not be assigned to %s: they have no access to the repository", number, strings.Join(left, ", "))
	}
}

// ask requests reviews, never of the author. GitHub refuses all for the sake of
// one that it does not know, so then each is asked alone.
func (p *publisher) ask(ctx context.Context, client *github.Client, pr *github.PullRequest) {
	t := p.req.Target
	users := without(p.proposal.Reviewers, func(l string) bool { return strings.EqualFold(l, pr.GetUser().GetLogin()) })
	var teams []string
	for _, name := range p.proposal.Teams {
		org, slug, _ := strings.Cut(name, "/")
		if !strings.EqualFold(org, t.Owner) {
			p.warn("the team %s was not asked for a review: it is of another organisation than %s", name, t)
			continue
		}
		teams = append(teams, slug)
	}
	request := func(users, teams []string) error {
		if len(users)+len(teams) == 0 {
			return nil
		}
		_, _, err := client.PullRequests.RequestReviewers(ctx, t.Owner, t.Name, pr.GetNumber(), github.ReviewersRequest{Reviewers: users, TeamReviewers: teams})
		return err
	}
	err := request(users, teams)
	var answer *github.ErrorResponse
	if err == nil || !errors.As(err, &answer) || answer.Response.StatusCode != 422 || len(users)+len(teams) == 1 {
		p.notAsked(ctx, strings.Join(append(users, teams...), ", "), err)
		return
	}
	for _, user := range users {
		p.notAsked(ctx, user, request([]string{user}, nil))
	}
	for _, team := range teams {
		p.notAsked(ctx, "team "+team, request(nil, []string{team}))
	}
}

func (p *publisher) notAsked(ctx context.Context, who string, err error) {
	if err != nil {
		p.warn("%s was not asked for a review: %s", who, classifyAPI(ctx, "", err).said())
	}
}
