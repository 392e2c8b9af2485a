package githubtest

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object. The shapes are those of GitHub's description; what
// kick does not read is filled with what a new repository has.
type object map[string]any

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func nodeID(kind string, id any) string {
	return base64.StdEncoding.EncodeToString(fmt.Append(nil, kind, ":", id))
}

// number makes a stable id from a name.
func number(name string) int64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return int64(h.Sum32())
}

func (s *Server) repoAPI(r *Repo) string { return s.API() + "repos/" + r.FullName() }

func (s *Server) userJSON(login string) object {
	kind := "User"
	if strings.HasSuffix(login, "[bot]") {
		kind = "Bot"
	}
	api, html := s.API()+"users/"+login, s.URL()+"/"+login
	return object{
		"login": login, "id": number(login), "node_id": nodeID("user", login), "type": kind, "site_admin": false,
		"avatar_url": html + ".png", "gravatar_id": "", "url": api, "html_url": html,
		"followers_url": api + "/followers", "following_url": api + "/following{/other_user}", "gists_url": api + "/gists{/gist_id}",
		"starred_url": api + "/starred{/owner}{/repo}", "subscriptions_url": api + "/subscriptions",
		"organizations_url": api + "/orgs", "repos_url": api + "/repos", "events_url": api + "/events{/privacy}",
		"received_events_url": api + "/received_events",
	}
}

func (s *Server) usersJSON(logins []string) []object {
	out := []object{}
	for _, l := range logins {
		out = append(out, s.userJSON(l))
	}
	return out
}

// first is the first of several, as JSON.
func first(list []object) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// repoJSON is a whole repository. With a grant it says what its holder may do.
func (s *Server) repoJSON(r *Repo, g *grant) object {
	api, html := s.repoAPI(r), s.URL()+"/"+r.FullName()
	o := object{
		"id": r.id, "node_id": nodeID("repo", r.id), "name": r.Name, "full_name": r.FullName(), "owner": s.userJSON(r.Owner),
		"private": !r.opts.Public, "html_url": html, "description": nil, "fork": false, "url": api,
		"clone_url": html + ".git", "git_url": "git://" + strings.TrimPrefix(html, "http://") + ".git",
		"ssh_url": "git@localhost:" + r.FullName() + ".git", "svn_url": html, "mirror_url": nil, "homepage": nil,
		"default_branch": r.opts.DefaultBranch, "archived": r.opts.Archived, "disabled": false, "language": nil, "license": nil,
		"forks": 0, "forks_count": 0, "open_issues": 0, "open_issues_count": 0, "size": 0, "stargazers_count": 0,
		"watchers": 0, "watchers_count": 0, "network_count": 0, "subscribers_count": 0,
		"has_issues": true, "has_projects": false, "has_wiki": false, "has_pages": false, "has_discussions": false, "has_downloads": true,
		"pushed_at": stamp(r.created), "created_at": stamp(r.created), "updated_at": stamp(r.created),
	}
	for name, suffix := range map[string]string{
		"archive": "/{archive_format}{/ref}", "assignees": "/assignees{/user}", "blobs": "/git/blobs{/sha}", "branches": "/branches{/branch}",
		"collaborators": "/collaborators{/collaborator}", "comments": "/comments{/number}", "commits": "/commits{/sha}",
		"compare": "/compare/{base}...{head}", "contents": "/contents/{+path}", "contributors": "/contributors", "deployments": "/deployments",
		"downloads": "/downloads", "events": "/events", "forks": "/forks", "git_commits": "/git/commits{/sha}", "git_refs": "/git/refs{/sha}",
		"git_tags": "/git/tags{/sha}", "hooks": "/hooks", "issue_comment": "/issues/comments{/number}", "issue_events": "/issues/events{/number}",
		"issues": "/issues{/number}", "keys": "/keys{/key_id}", "labels": "/labels{/name}", "languages": "/languages", "merges": "/merges",
		"milestones": "/milestones{/number}", "notifications": "/notifications{?since,all,participating}", "pulls": "/pulls{/number}",
		"releases": "/releases{/id}", "stargazers": "/stargazers", "statuses": "/statuses/{sha}", "subscribers": "/subscribers",
		"subscription": "/subscription", "tags": "/tags", "teams": "/teams", "trees": "/git/trees{/sha}",
	} {
		o[name+"_url"] = api + suffix
	}
	if g != nil {
		o["permissions"] = object{
			"admin": false, "maintain": false, "triage": false,
			"pull": g.Permissions.allows("contents", "read"), "push": g.Permissions.allows("contents", "write"),
		}
	}
	return o
}

func (s *Server) appJSON() object {
	return object{
		"id": AppID, "slug": AppSlug, "node_id": nodeID("app", AppID), "owner": s.userJSON("acme"), "name": "kick", "description": nil,
		"external_url": s.URL(), "html_url": s.URL() + "/apps/" + AppSlug, "created_at": stamp(time.Unix(0, 0)), "updated_at": stamp(time.Unix(0, 0)),
		"permissions": object{"contents": "write", "pull_requests": "write", "metadata": "read"}, "events": []string{},
	}
}

func (s *Server) installationJSON(r *Repo) object {
	return object{
		"id": installationID, "app_id": AppID, "app_slug": AppSlug, "target_id": number(r.Owner), "target_type": "Organization",
		"account": s.userJSON(r.Owner), "repository_selection": "selected", "single_file_name": nil, "events": []string{},
		"access_tokens_url": s.API() + "app/installations/" + strconv.Itoa(installationID) + "/access_tokens",
		"repositories_url":  s.API() + "installation/repositories", "html_url": s.URL() + "/organizations/" + r.Owner + "/settings/installations/42",
		"permissions": r.opts.Granted, "created_at": stamp(r.created), "updated_at": stamp(r.created), "suspended_by": nil, "suspended_at": nil,
	}
}

func (s *Server) branchJSON(r *Repo, branch, oid string) object {
	api := s.repoAPI(r)
	url := api + "/branches/" + branch
	protected := r.protected(branch)
	level := "off"
	if protected {
		level = "everyone"
	}
	name, _ := git(r.Dir, "log", "-1", "--format=%an", oid)
	email, _ := git(r.Dir, "log", "-1", "--format=%ae", oid)
	message, _ := git(r.Dir, "log", "-1", "--format=%B", oid)
	tree, _ := git(r.Dir, "rev-parse", oid+"^{tree}")
	who := object{"name": name, "email": email, "date": stamp(r.created)}
	return object{
		"name": branch, "protected": protected, "protection_url": url + "/protection",
		"protection": object{"enabled": protected, "required_status_checks": object{"enforcement_level": level, "contexts": []string{}, "checks": []string{}}},
		"_links":     object{"self": url, "html": s.URL() + "/" + r.FullName() + "/tree/" + branch},
		"commit": object{
			"sha": oid, "node_id": nodeID("commit", oid), "url": api + "/commits/" + oid, "html_url": s.URL() + "/" + r.FullName() + "/commit/" + oid,
			"comments_url": api + "/commits/" + oid + "/comments", "author": s.userJSON("octo"), "committer": s.userJSON("octo"), "parents": []object{},
			"commit": object{
				"url": api + "/git/commits/" + oid, "author": who, "committer": who, "message": message, "comment_count": 0,
				"tree": object{"sha": tree, "url": api + "/git/trees/" + tree},
			},
		},
	}
}

func (s *Server) labelJSON(r *Repo, name string) object {
	return object{
		"id": number(name), "node_id": nodeID("label", name), "url": s.repoAPI(r) + "/labels/" + name, "name": name,
		"description": "", "color": "ededed", "default": false,
	}
}

func (s *Server) labelsJSON(r *Repo, names []string) []object {
	out := []object{}
	for _, l := range names {
		out = append(out, s.labelJSON(r, l))
	}
	return out
}

// pullJSON is a pull request as in a list; whole adds what only a single one
// has.
func (s *Server) pullJSON(r *Repo, p Pull, whole bool) object {
	n := strconv.Itoa(p.Number)
	api := s.repoAPI(r)
	url, issue, html := api+"/pulls/"+n, api+"/issues/"+n, s.URL()+"/"+r.FullName()+"/pull/"+n
	end := func(branch, oid string) object {
		return object{"label": r.Owner + ":" + branch, "ref": branch, "sha": oid, "user": s.userJSON(r.Owner), "repo": s.repoJSON(r, nil)}
	}
	link := func(href string) object { return object{"href": href} }
	reviewers := s.usersJSON(p.Reviewers)
	assignees := s.usersJSON(p.Assignees)
	teams := []object{}
	for _, slug := range p.Teams {
		teams = append(teams, s.teamJSON(r, slug, !whole))
	}
	o := object{
		"id": r.id*1000 + int64(p.Number), "node_id": nodeID("pull", p.Number), "number": p.Number, "state": p.State, "locked": false,
		"title": p.Title, "body": p.Body, "draft": p.Draft, "user": s.userJSON(p.User), "author_association": "NONE",
		"labels": s.labelsJSON(r, p.Labels), "assignee": first(assignees), "assignees": assignees, "requested_reviewers": reviewers, "requested_teams": teams, "milestone": nil,
		"head": end(p.Head, p.HeadOID), "base": end(p.Base, p.BaseOID), "auto_merge": nil, "merge_commit_sha": nil,
		"created_at": stamp(p.Created), "updated_at": stamp(p.Created), "closed_at": nil, "merged_at": nil,
		"url": url, "html_url": html, "diff_url": html + ".diff", "patch_url": html + ".patch", "issue_url": issue,
		"commits_url": url + "/commits", "review_comments_url": url + "/comments", "review_comment_url": api + "/pulls/comments{/number}",
		"comments_url": issue + "/comments", "statuses_url": api + "/statuses/" + p.HeadOID,
		"_links": object{
			"self": link(url), "html": link(html), "issue": link(issue), "comments": link(issue + "/comments"), "review_comments": link(url + "/comments"),
			"review_comment": link(api + "/pulls/comments{/number}"), "commits": link(url + "/commits"), "statuses": link(api + "/statuses/" + p.HeadOID),
		},
	}
	if whole {
		commits, _ := git(r.Dir, "rev-list", "--count", p.HeadOID, "--not", p.BaseOID)
		n, _ := strconv.Atoi(commits)
		added, removed, files := r.stat(p)
		maps.Copy(o, object{
			"additions": added, "deletions": removed, "changed_files": files, "commits": n, "comments": 0, "review_comments": 0,
			"mergeable": nil, "mergeable_state": "unknown", "merged": false, "merged_by": nil, "maintainer_can_modify": false, "rebaseable": nil,
		})
	}
	return o
}

// stat counts what a pull request changes.
func (r *Repo) stat(p Pull) (added, removed, files int) {
	out, _ := git(r.Dir, "diff", "--numstat", "--no-renames", p.BaseOID+"..."+p.HeadOID)
	for line := range strings.Lines(out) {
		f := strings.SplitN(line, "\t", 3)
		if len(f) < 3 {
			continue
		}
		a, _ := strconv.Atoi(f[0]) // "-" for binary files
		d, _ := strconv.Atoi(f[1])
		added, removed, files = added+a, removed+d, files+1
	}
	return added, removed, files
}

func (s *Server) issueJSON(r *Repo, i Issue) object {
	n := strconv.Itoa(i.Number)
	url := s.repoAPI(r) + "/issues/" + n
	assignees := s.usersJSON(i.Assignees)
	return object{
		"id": r.id*1000 + int64(i.Number), "node_id": nodeID("issue", i.Number), "number": i.Number, "state": "open", "locked": false,
		"title": i.Title, "body": i.Body, "user": s.userJSON(i.User), "author_association": "NONE", "labels": s.labelsJSON(r, i.Labels),
		"assignee": first(assignees), "assignees": assignees, "milestone": nil, "comments": 0, "created_at": stamp(i.Created), "updated_at": stamp(i.Created), "closed_at": nil,
		"url": url, "html_url": s.URL() + "/" + r.FullName() + "/issues/" + n, "repository_url": s.repoAPI(r), "labels_url": url + "/labels{/name}",
		"comments_url": url + "/comments", "events_url": url + "/events",
	}
}
