package githubtest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"regexp"
	"strconv"
	"strings"
)

var gitRoute = regexp.MustCompile(`^/([^/]+)/([^/]+?)(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack)$`)

func gitPath(path string) (owner, name, rest string, ok bool) {
	m := gitRoute.FindStringSubmatch(path)
	if m == nil {
		return "", "", "", false
	}
	return m[1], m[2], m[3], true
}

// maxPush is the largest request body that is taken, in bytes.
const maxPush = 512 << 20

// serveGit serves git over smart HTTP, and reports whether the request was a
// push that updates refs.
func (s *Server) serveGit(w http.ResponseWriter, r *http.Request, owner, name, rest string) (push bool) {
	write := rest == "git-receive-pack" || r.URL.Query().Get("service") == "git-receive-pack"
	repo, g, ok := s.authorizeGit(w, r, owner, name, write)
	if !ok {
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPush))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return false
	}
	// CGI has no chunked bodies.
	r = r.Clone(r.Context())
	r.Header.Del("Authorization") // CGI would put it into the environment
	r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	r.URL.Path = "/" + repo.Owner + "/" + repo.Name + ".git/" + rest

	handler := s.cgi(repo, g)
	if rest != "git-receive-pack" {
		handler.ServeHTTP(w, r)
		return false
	}
	reason, err := os.CreateTemp("", "githubtest-reason-")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return false
	}
	defer func() { _, _ = reason.Close(), os.Remove(reason.Name()) }()
	handler.Env = append(handler.Env, "GITHUBTEST_REASON="+reason.Name())
	answer := &memoryWriter{header: http.Header{}, status: http.StatusOK}
	handler.ServeHTTP(answer, r)
	words, _ := io.ReadAll(reason)
	out := answer.body.Bytes()
	if len(words) > 0 {
		out = reword(out, string(words))
	}
	for k, v := range answer.header {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(out)
	return len(body) > 4 // a lone flush packet only probes
}

// authorizeGit answers as GitHub does when the token does not suffice.
func (s *Server) authorizeGit(w http.ResponseWriter, r *http.Request, owner, name string, write bool) (*Repo, *grant, bool) {
	refuse := func(status int, words string) (*Repo, *grant, bool) {
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="GitHub"`)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, words)
		return nil, nil, false
	}
	repo := s.repo(owner, name)
	token := presentedToken(r)
	if token == "" {
		if repo != nil && repo.opts.Public && !write {
			return repo, &grant{}, true
		}
		return refuse(http.StatusUnauthorized, "No anonymous write access.")
	}
	g := s.lookup(token)
	if g == nil {
		return refuse(http.StatusUnauthorized, "Invalid username or token. Password authentication is not supported for Git operations.")
	}
	if repo == nil || !g.covers(repo) && !repo.opts.Public {
		return refuse(http.StatusNotFound, "Repository not found.")
	}
	level := "read"
	if write {
		level = "write"
	}
	if !g.covers(repo) || !g.Permissions.allows("contents", level) {
		if !write && repo.opts.Public {
			return repo, g, true
		}
		return refuse(http.StatusForbidden, "Permission to "+repo.FullName()+".git denied to "+g.login+".")
	}
	if write && repo.opts.Archived {
		return refuse(http.StatusForbidden, "This repository was archived so it is read-only.")
	}
	return repo, g, true
}

func (s *Server) cgi(repo *Repo, g *grant) *cgi.Handler {
	actor, scope, kind := "a GitHub App", "workflows", "permission"
	if !g.app {
		actor, scope, kind = "a Personal Access Token", "workflow", "scope"
	}
	env := append(gitEnv(),
		"GIT_PROJECT_ROOT="+s.opts.Dir, "GIT_HTTP_EXPORT_ALL=1",
		"GITHUBTEST_URL="+s.URL()+"/"+repo.FullName(),
		"GITHUBTEST_ACTOR="+actor, "GITHUBTEST_SCOPE="+scope, "GITHUBTEST_SCOPEKIND="+kind,
		"GITHUBTEST_WORKFLOWS="+g.Permissions["workflows"])
	if g.login != "" {
		env = append(env, "REMOTE_USER="+g.login)
	}
	return &cgi.Handler{Path: s.backend, Dir: repo.Dir, Env: env, Stderr: io.Discard}
}

// memoryWriter keeps an answer.
type memoryWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (m *memoryWriter) Header() http.Header         { return m.header }
func (m *memoryWriter) WriteHeader(status int)      { m.status = status }
func (m *memoryWriter) Write(b []byte) (int, error) { return m.body.Write(b) }

// reword replaces git's own words for a hook's refusal in a push report by
// GitHub's. Only a server that is not git can choose them.
func reword(answer []byte, reason string) []byte {
	var messages, report bytes.Buffer
	for len(answer) >= 4 {
		n, err := strconv.ParseUint(string(answer[:4]), 16, 16)
		if err != nil || n > uint64(len(answer)) {
			return answer
		}
		if n < 5 {
			answer = answer[4:]
			continue
		}
		line := answer[:n]
		answer = answer[n:]
		if line[4] == 1 {
			report.Write(line[5:])
		} else {
			messages.Write(line)
		}
	}
	var inner bytes.Buffer
	for rest := report.Bytes(); len(rest) >= 4; {
		n, err := strconv.ParseUint(string(rest[:4]), 16, 16)
		if err != nil || n > uint64(len(rest)) {
			break
		}
		if n < 5 {
			inner.WriteString("0000")
			rest = rest[4:]
			continue
		}
		line := strings.Replace(string(rest[4:n]), "pre-receive hook declined", reason, 1)
		inner.WriteString(packet(line))
		rest = rest[n:]
	}
	return append(append(messages.Bytes(), packet("\x01"+inner.String())...), "0000"...)
}

func packet(s string) string {
	const hex = "0123456789abcdef"
	n := len(s) + 4
	return string([]byte{hex[n>>12&15], hex[n>>8&15], hex[n>>4&15], hex[n&15]}) + s
}
