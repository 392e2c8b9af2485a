package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
)

// The services of git's smart HTTP protocol (gitprotocol-http(5)).
const (
	uploadPack  = "git-upload-pack"  // a fetch
	receivePack = "git-receive-pack" // a push
	infoRefs    = "info/refs"        // the first request of either
)

// gitLimits bound one request of a fetch.
type gitLimits struct {
	ask    int64         // bytes of a request's body, as sent; git compresses it
	answer int64         // bytes of an answer's body
	time   time.Duration // from the request to the end of the answer
	idle   time.Duration // from one part of the answer to the next, either side
}

// A fetch names each commit that it wants and has in some 50 bytes, so 8 MiB
// are more than 160,000 of them before compression. GitHub recommends
// repositories of less than 1 GB and advises strongly to stay below 5 GB.
var defaultGitLimits = gitLimits{
	ask:    8 << 20,
	answer: 5 << 30,
	time:   time.Hour,
	idle:   2 * time.Minute,
}

// gitCall is a request of a fetch, taken apart. All of it is as safe in a URL
// as it stands.
type gitCall struct {
	host    string // DNS name
	repo    string // "acme/lib", without ".git"
	suffix  string // ".git" if the agent wrote it
	service string // infoRefs or uploadPack
}

func (c gitCall) String() string { return "https://" + c.host + "/" + c.repo }

func (c gitCall) url() string {
	u := c.String() + c.suffix + "/" + c.service
	if c.service == infoRefs {
		u += "?service=" + uploadPack
	}
	return u
}

// gitPath is a path below gitPrefix: host, owner, name, service. Neither begins
// or ends with what could be a dot segment, and nothing is percent-encoded, so
// that the policy and the host cannot take it for two different things. HEAD and
// objects are what the dumb protocol asks for.
var gitPath = lazyregexp.New(`^/git/([a-z0-9][a-z0-9.-]{0,252})/([A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]*[A-Za-z0-9_-])/(info/refs|git-upload-pack|git-receive-pack|HEAD|objects/.*)$`)

// newGitCall takes apart what gitPath matched.
func newGitCall(m []string) gitCall {
	repo := m[2]
	if short := strings.TrimSuffix(repo, ".git"); !strings.HasSuffix(short, "/") {
		repo = short
	}
	return gitCall{host: m[1], repo: repo, suffix: m[2][len(repo):], service: m[3]}
}

// gitRead answers a request below gitPrefix: a fetch from a repository. Of what
// the agent sent, the repository's name, the version of the protocol and the
// body reach the host, and nothing but git's own answer comes back.
func (g *Gateway) gitRead(w http.ResponseWriter, r *http.Request, req Request) {
	call, a := g.decideGit(r, req)
	d := Decision{Allow: a.Allow, Rule: a.Rule, Detail: a.Detail}
	var addrs []netip.Addr
	var unresolved error
	if d.Allow {
		addrs, unresolved = g.resolve(r.Context(), call.host, a)
		var forbidden *forbiddenError
		if errors.As(unresolved, &forbidden) {
			d = Decision{Rule: forbidden.rule, Detail: forbidden.Error() + ". The operator of this sandbox can permit private addresses of a git host under egress.git_hosts."}
		}
	}
	rec, d := g.log.decided(req, d)
	if !d.Allow {
		answerGit(w, http.StatusForbidden, d.Rule+": "+d.Detail)
		return
	}
	if unresolved != nil {
		answerGit(w, http.StatusBadGateway, unresolved.Error())
		g.log.done(rec, End{Status: http.StatusBadGateway, Error: unresolved.Error()})
		return
	}
	end, whole := g.fetch(w, r, call, a, addrs)
	g.log.done(rec, end)
	if !whole {
		panic(http.ErrAbortHandler) // so that git does not take it for whole
	}
}

// decideGit decides about one request of a fetch.
func (g *Gateway) decideGit(r *http.Request, req Request) (gitCall, policy.Answer) {
	if strings.Contains(req.Path, "/info/lfs/") {
		return gitCall{}, policy.Answer{Rule: "git-lfs", Detail: "Large files (Git LFS) are not served: set GIT_LFS_SKIP_SMUDGE=1 to get the pointers in their place."}
	}
	m := gitPath.FindStringSubmatch(req.Path)
	if m == nil {
		return gitCall{}, policy.Answer{Rule: "git-path", Detail: fmt.Sprintf("The path %s names no repository: "+
			"it has to be %sHOST/OWNER/NAME, of letters, digits, dots, dashes and underscores, with HOST in lower case.", cut(req.Path), gitPrefix)}
	}
	c := newGitCall(m)
	if c.service == receivePack || r.URL.RawQuery == "service="+receivePack {
		return c, policy.Answer{Rule: "git-push", Detail: fmt.Sprintf("Pushing to %s is not permitted from a sandbox. "+
			"Commit instead: kick inspects what is on HEAD when the work ends, and publishes it.", c)}
	}
	if rule, detail := checkGit(r, c); rule != "" {
		return c, policy.Answer{Rule: rule, Detail: detail}
	}
	return c, g.reach.Decide(policy.Request{Scheme: policy.SchemeGit, Method: r.Method, Host: c.host, Path: "/" + c.repo + c.suffix}) // it takes one suffix away, too
}

// checkGit refuses what a fetch by the smart protocol does not send.
func checkGit(r *http.Request, c gitCall) (rule, detail string) {
	first, query := c.service == infoRefs, r.URL.RawQuery
	switch {
	case first && query == "", !first && c.service != uploadPack:
		return "git-dumb-http", "The dumb HTTP protocol is not served: leave GIT_SMART_HTTP unset."
	case first && (r.Method != http.MethodGet || query != "service="+uploadPack), !first && (r.Method != http.MethodPost || query != ""):
		return "git-request", fmt.Sprintf("%s of %s with the query %q is no request of a fetch.", r.Method, c.service, cut(query))
	case first && r.ContentLength != 0:
		return "git-request", "The first request of a fetch has no body."
	case !first && !isOneOf(r.Header, "Content-Type", "application/x-git-upload-pack-request"):
		return "git-request", "The body is not of the type application/x-git-upload-pack-request."
	case !isOneOf(r.Header, "Content-Encoding", "", "gzip"):
		return "git-request", "The body is encoded otherwise than with gzip, which is all that git uses."
	case !isOneOf(r.Header, "Git-Protocol", "", "version=0", "version=1", "version=2"):
		return "git-request", "Git-Protocol is none of version=0, version=1 and version=2: leave GIT_PROTOCOL unset."
	}
	return "", ""
}

// isOneOf tells whether a header is there at most once, with one of the values;
// the empty one stands for its absence.
func isOneOf(h http.Header, name string, values ...string) bool {
	return len(h.Values(name)) <= 1 && slices.Contains(values, h.Get(name))
}

// fetch asks the host and passes its answer on. The answer is not whole if it
// broke off when a part had been sent.
func (g *Gateway) fetch(w http.ResponseWriter, r *http.Request, c gitCall, a policy.Answer, addrs []netip.Addr) (end End, whole bool) {
	lim := g.limits.git
	x := newPassage(r.Context(), lim.time, lim.idle)
	defer x.end()
	ask := x.flow(lim.ask, fmt.Errorf("the request is larger than the %d bytes that a fetch may send: fetch fewer refs at once", lim.ask))
	answer := x.flow(lim.answer, fmt.Errorf("the answer is larger than the %d bytes that a fetch may get: fetch less at once, as with --depth 1", lim.answer))
	defer func() { end.Sent, end.Got = ask.n.Load(), answer.n.Load() }()

	fail := func(status int, err error) (End, bool) {
		if cause := context.Cause(x.ctx); cause != nil {
			err = cause
		}
		answerGit(w, status, err.Error())
		return End{Status: status, Error: err.Error()}, true
	}
	release, err := x.hold(w)
	if err != nil {
		return fail(http.StatusInternalServerError, err)
	}
	defer release()
	out, err := g.gitRequest(x.ctx, r, c, a, ask.reader(r.Body))
	if err != nil {
		return fail(http.StatusBadGateway, err)
	}
	transport := g.transport(c.host, func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, addrs, 443) })
	transport.DisableKeepAlives = true
	res, err := transport.RoundTrip(out)
	switch {
	case ask.err() != nil:
		return fail(http.StatusRequestEntityTooLarge, ask.over)
	case err != nil:
		return fail(http.StatusBadGateway, fmt.Errorf("fetch from %s: %w", c, err))
	}
	defer res.Body.Close()
	if status, err := checkGitAnswer(res, c); err != nil {
		return fail(status, err)
	}
	w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
	w.Header().Set("Cache-Control", "no-cache")
	end.Status = http.StatusOK
	err = passGit(w, answer.reader(res.Body))
	if cause := context.Cause(x.ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		end.Error = err.Error()
	}
	return end, err == nil
}

// gitRequest is what goes to the host.
func (g *Gateway) gitRequest(ctx context.Context, r *http.Request, c gitCall, a policy.Answer, body io.Reader) (*http.Request, error) {
	if c.service == infoRefs {
		body = nil
	}
	out, err := http.NewRequestWithContext(ctx, r.Method, c.url(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		out.ContentLength = r.ContentLength
	}
	// GitHub takes only what begins with git/ for git.
	out.Header.Set("User-Agent", "git/kick")
	out.Header.Set("Accept", gitType(c))
	for _, name := range []string{"Content-Type", "Content-Encoding", "Git-Protocol"} {
		if v := r.Header.Get(name); v != "" {
			out.Header.Set(name, v)
		}
	}
	// A preset is for what is public: only who names a private repository in the
	// policy opens all of its branches to the agent.
	if g.cfg.GitCredential == nil || !strings.HasPrefix(a.Rule, "git:") {
		return out, nil
	}
	user, password, err := g.cfg.GitCredential(ctx, c.host, c.repo)
	if err != nil {
		return nil, fmt.Errorf("get the credential to read %s: %w", c, err)
	}
	if password != "" {
		out.SetBasicAuth(user, password)
	}
	return out, nil
}

// gitType is the type of the answer.
func gitType(c gitCall) string {
	if c.service == infoRefs {
		return "application/x-git-upload-pack-advertisement"
	}
	return "application/x-git-upload-pack-result"
}

// checkGitAnswer refuses what is not git's own answer, and says with which
// status. An answer of 401 would have git ask for a password.
func checkGitAnswer(res *http.Response, c gitCall) (int, error) {
	switch code := res.StatusCode; {
	case code == http.StatusOK && isOneOf(res.Header, "Content-Type", gitType(c)) && isOneOf(res.Header, "Content-Encoding", ""):
		return 0, nil
	case code == http.StatusOK && !isOneOf(res.Header, "Content-Encoding", ""):
		return http.StatusBadGateway, fmt.Errorf("%s answered in the encoding %q, which was not asked for", c, cut(res.Header.Get("Content-Encoding")))
	case code == http.StatusOK:
		return http.StatusBadGateway, fmt.Errorf("%s answered with the type %q, which is not that of the smart protocol", c, cut(res.Header.Get("Content-Type")))
	case code >= 300 && code < 400:
		to, err := res.Location()
		if err != nil {
			return http.StatusBadGateway, fmt.Errorf("%s answered %s", c, cut(res.Status))
		}
		return http.StatusBadGateway, fmt.Errorf("%s was moved to https://%s: no redirect is followed, so fetch from there, if the policy allows it",
			c, cut(to.Host+strings.TrimSuffix(to.EscapedPath(), "/"+c.service)))
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusNotFound:
		return http.StatusNotFound, fmt.Errorf("%s answered %s: there is no such repository, or it may not be read with what kick holds for it", c, cut(res.Status))
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		return code, fmt.Errorf("%s answered %s: try again later", c, cut(res.Status))
	}
	return http.StatusBadGateway, fmt.Errorf("%s answered %s", c, cut(res.Status))
}

// passGit writes what it reads at once.
func passGit(w http.ResponseWriter, r io.Reader) error {
	rc := http.NewResponseController(w)
	return relay(r, func(p []byte) error {
		_, err := w.Write(p)
		if err == nil {
			err = rc.Flush()
		}
		if err != nil {
			return fmt.Errorf("pass the answer on: %w", err)
		}
		return nil
	})
}

// answerGit answers with words. Git shows them, as "remote: ...", if they are
// plain text.
func answerGit(w http.ResponseWriter, status int, words string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Connection", "close") // the body of the request may not have been read
	w.WriteHeader(status)
	// An agent that does not wait for the answer is no matter.
	_, _ = io.WriteString(w, "kick: "+strings.ToValidUTF8(words, "?")+"\n")
}

// SetGitEnvironment adds the settings with which git in a sandbox, where port of
// loopback leads to the gateway, fetches from the hosts of allowed repositories
// through it: whoever writes https://github.com/acme/lib gets there, and so does
// git@github.com:acme/lib. Settings that env has already are kept.
func (g *Gateway) SetGitEnvironment(env map[string]string, port int) {
	const count = "GIT_CONFIG_COUNT"
	n, err := strconv.Atoi(env[count])
	if err != nil && env[count] != "" {
		return // git in the sandbox says what is wrong with it
	}
	for _, host := range g.reach.GitHosts() {
		key := fmt.Sprintf("url.http://127.0.0.1:%d%s%s/.insteadOf", port, gitPrefix, host)
		for _, form := range []string{"https://%s/", "http://%s/", "git://%s/", "ssh://git@%s/", "git@%s:"} {
			env[fmt.Sprintf("GIT_CONFIG_KEY_%d", n)], env[fmt.Sprintf("GIT_CONFIG_VALUE_%d", n)] = key, fmt.Sprintf(form, host)
			n++
			env[count] = strconv.Itoa(n)
		}
	}
}
