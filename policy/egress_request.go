package policy

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Check decides about a request as people ask about it: a method and a URL.
// FETCH and PUSH are of a repository's URL, MODEL of a route and a model's
// name, as anthropic/claude-opus. A request of git's smart HTTP is allowed as
// a fetch too. The error says what is wrong with the question.
func (r *Reach) Check(method, rawURL string) (Answer, error) {
	if method == "MODEL" {
		route, name, ok := strings.Cut(rawURL, "/")
		if !ok || route == "" || name == "" {
			return Answer{}, fmt.Errorf("%q is no model: write ROUTE/NAME, as anthropic/claude-opus", rawURL)
		}
		return r.Decide(Request{Scheme: SchemeModel, Host: route, Path: "/" + name}), nil
	}
	u, err := url.Parse(rawURL)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("%q is no URL: %w", rawURL, err)
	case u.Scheme == "" || u.Host == "":
		return Answer{}, fmt.Errorf("%q is no URL: begin with https:// or http:// and a host", rawURL)
	case u.User != nil:
		return Answer{}, fmt.Errorf("the URL has a user or a password: leave them out")
	}
	q := Request{Scheme: u.Scheme, Method: method, Host: u.Hostname(), Port: 443, Path: u.EscapedPath()}
	if u.Scheme == SchemeHTTP {
		q.Port = 80
	}
	if p := u.Port(); p != "" {
		if q.Port, err = strconv.Atoi(p); err != nil || q.Port < 1 || q.Port > 65535 {
			return Answer{}, fmt.Errorf("port %s of %q is none: write 1 to 65535", p, rawURL)
		}
	}
	switch {
	case method == "FETCH", method == "PUSH":
		if q.Scheme != SchemeHTTPS || q.Port != 443 {
			return Answer{}, fmt.Errorf("%q is no repository that can be asked for: write https://HOST/OWNER/NAME", rawURL)
		}
		return r.Decide(Request{Scheme: SchemeGit, Method: method, Host: q.Host, Path: q.Path}), nil
	case checkMethod(method) != nil && method != "CONNECT":
		return Answer{}, fmt.Errorf("%q is no method: write GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE or CONNECT, FETCH or PUSH with a repository, or MODEL with a route and a name", method)
	case method == "CONNECT":
		q.Path = ""
	case q.Path == "":
		q.Path = "/"
	}
	a := r.Decide(q)
	if repo, ok := fetchOf(method, u); ok && !a.Allow && q.Scheme == SchemeHTTPS && q.Port == 443 {
		if git := r.Decide(Request{Scheme: SchemeGit, Host: q.Host, Path: repo}); git.Allow {
			return git, nil
		}
	}
	return a, nil
}

// fetchOf returns the path of the repository if the request is of a fetch.
func fetchOf(method string, u *url.URL) (string, bool) {
	switch method {
	case "GET":
		if services := u.Query()["service"]; len(services) == 1 && services[0] == "git-upload-pack" {
			return strings.CutSuffix(u.EscapedPath(), "/info/refs")
		}
	case "POST":
		return strings.CutSuffix(u.EscapedPath(), "/git-upload-pack")
	}
	return "", false
}
