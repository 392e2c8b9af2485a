package pushbroker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/githubapp"
)

// Push timeouts. gitcmd.Remote ends a talk with a remote that says nothing;
// these bound the whole. They are variables for this package's tests.
var (
	listTimeout = time.Minute
	pushTimeout = 10 * time.Minute
	askTimeout  = 20 * time.Second // after a cancel or a lost connection
)

// Refs names the branches of a push, without refs/heads/.
type Refs struct {
	Branch string // where the work goes; must not exist with other work, but see Old
	Base   string // where the work started
	// Old is the commit that Branch has and that the work replaces; it must not
	// have moved. Empty: Branch is new.
	Old string
	// Into is the branch that the pull request asks to go into. Empty: Base.
	Into string
}

// Push sends q.Tip, by its id, to a new branch of t and returns whether it had
// to: false means that the branch was there before with this very commit. The token is
// the zero one for a remote without.
//
// Before that it holds what the remote would gain against q.Objects. An error
// is a *PublishError; its Pushed field is never set, since a push that arrived
// although its answer was lost is no error.
func Push(ctx context.Context, q *Quarantine, t Target, refs Refs, token githubapp.Token) (pushed bool, err error) {
	op := fmt.Sprintf("push %s to %s", refs.Branch, t)
	if err := checkRefs(refs); err != nil {
		return false, &PublishError{Reason: ReasonUsage, Op: op, Message: escape.String(err.Error())}
	}
	if !gitcmd.IsOID(q.Tip) || !gitcmd.IsOID(q.BaseOID) {
		return false, publishError(ReasonUsage, op, "the quarantine's tip and base are no full ids")
	}
	remote, err := newRemoteGit(t, token)
	if err != nil {
		return false, err
	}
	p := &push{q: q, refs: refs, remote: remote, op: op}
	have, err := p.remote.list(ctx, "HEAD", "refs/heads/"+refs.Base, "refs/heads/"+refs.Branch)
	if err != nil {
		return false, err
	}
	if have.head == "refs/heads/"+refs.Branch {
		return false, publishError(ReasonUsage, op, "that is the repository's default branch")
	}
	switch there := have.refs["refs/heads/"+refs.Branch]; there {
	case q.Tip:
		return false, nil
	case refs.Old: // both are "" for a new branch
	default:
		return false, refs.taken(op, there)
	}
	if err := p.checkGain(ctx, have.refs["refs/heads/"+refs.Base]); err != nil {
		return false, err
	}
	return p.send(ctx)
}

func checkRefs(r Refs) error {
	for _, name := range []string{r.Branch, r.Base} {
		if err := checkBranchName(name); err != nil {
			return err
		}
	}
	if r.Old != "" && !gitcmd.IsOID(r.Old) {
		return errors.New("the commit that is replaced is no full id")
	}
	if r.Branch == r.into() || r.Branch == r.Base && r.Old == "" {
		return errors.New("the work cannot go to the branch that it started from")
	}
	return nil
}

// checkBranchName also refuses a ref's full name, which is a caller's mistake.
func checkBranchName(name string) error {
	fault := gitcmd.BranchNameFault(name)
	if fault == "" && strings.HasPrefix(name, "refs/") {
		fault = "is not a branch's name alone"
	}
	if fault != "" {
		return fmt.Errorf("branch name %q %s", escape.String(name), fault)
	}
	return nil
}

type push struct {
	q      *Quarantine
	refs   Refs
	remote *remoteGit
	op     string
}

// checkGain holds what the remote would gain against what was inspected. If the
// base branch is where it was, the two are equal by construction.
func (p *push) checkGain(ctx context.Context, remoteBase string) error {
	if remoteBase == p.q.BaseOID {
		return nil
	}
	tips, err := p.knownTips(ctx, remoteBase)
	if err != nil {
		return err
	}
	if len(tips) == 0 {
		return publishError(ReasonRepublish, p.op, "the remote has nothing left of the base %s", p.q.BaseOID)
	}
	g := gitcmd.Git{Dir: p.q.Dir}
	out, err := g.Output(ctx, strings.NewReader(p.q.Tip+"\n^"+strings.Join(tips, "\n^")+"\n"), "rev-list", "--objects", "--no-object-names", "--stdin")
	if err != nil {
		return classifyGit(ctx, p.op+": list what the remote would gain", "", err)
	}
	extra := map[string]error{}
	for oid := range strings.Lines(string(out)) {
		extra[strings.TrimSpace(oid)] = nil
	}
	for _, oid := range p.q.Objects {
		delete(extra, oid)
	}
	// rev-list may name what the remote has deeper in its history.
	for _, tip := range tips {
		if len(extra) == 0 {
			return nil
		}
		if err := dropReachable(ctx, g, tip, extra); err != nil {
			return classifyGit(ctx, p.op+": list what the remote has", "", err)
		}
	}
	if len(extra) > 0 {
		return publishError(ReasonRepublish, p.op, "the remote would gain %d objects that were not inspected, because its branch %s no longer holds the base", len(extra), p.refs.Base)
	}
	return nil
}

// knownTips returns commits that the remote has and the quarantine knows. A
// base branch that moved on is fetched: without it git would send the whole
// history again, and nobody could tell what the remote gains.
func (p *push) knownTips(ctx context.Context, remoteBase string) ([]string, error) {
	if remoteBase != "" {
		if known, err := p.known(ctx, []string{remoteBase}); err != nil || len(known) > 0 {
			return known, err
		}
		const ref = "refs/kick/remote-base"
		_, err := p.remote.git.Output(ctx, p.q.Dir, pushTimeout, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance",
			"--negotiation-tip="+p.q.BaseOID, "--", p.remote.target.URL, "+refs/heads/"+p.refs.Base+":"+ref)
		if err != nil {
			return nil, classifyGit(ctx, p.op+": fetch "+p.refs.Base+", which moved on", "", err)
		}
		tip, err := gitcmd.Git{Dir: p.q.Dir}.Line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
		if err != nil {
			return nil, classifyGit(ctx, p.op, "", err)
		}
		return []string{tip}, nil
	}
	all, err := p.remote.list(ctx, "refs/heads/*", "refs/tags/*")
	if err != nil {
		return nil, err
	}
	var oids []string
	for _, oid := range all.refs {
		oids = append(oids, oid)
	}
	slices.Sort(oids)
	return p.known(ctx, slices.Compact(oids))
}

// known returns those of the ids that are commits, or tags, in the quarantine.
func (p *push) known(ctx context.Context, oids []string) ([]string, error) {
	if len(oids) == 0 {
		return nil, nil
	}
	out, err := gitcmd.Git{Dir: p.q.Dir}.Output(ctx, strings.NewReader(strings.Join(oids, "\n")+"\n"), "cat-file", "--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return nil, classifyGit(ctx, p.op, "", err)
	}
	var known []string
	for line := range strings.Lines(string(out)) {
		oid, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind == "commit" || kind == "tag" {
			known = append(known, oid)
		}
	}
	return known, nil
}

// send pushes, and when the answer is lost or doubtful asks the remote what
// became of it.
func (p *push) send(ctx context.Context) (pushed bool, err error) {
	ref := "refs/heads/" + p.refs.Branch
	report, err := p.remote.git.Output(ctx, p.q.Dir, pushTimeout, "push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--no-progress",
		"--recurse-submodules=no", "--force-with-lease="+ref+":"+p.refs.Old, "--", p.remote.target.URL, p.q.Tip+":"+ref)
	if err == nil {
		return true, nil
	}
	e := classifyGit(ctx, p.op, string(report), err)
	refused := refReason.MatchString(string(report)) // by the remote, in the push protocol itself
	if refused && e.Reason != ReasonBranchExists {
		return false, e
	}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	have, askErr := p.remote.list(ask, ref)
	switch {
	case askErr != nil && (refused || e.Reason.atTheDoor()):
		return false, e
	case askErr != nil:
		e.Reason, e.Begun = ReasonUnknown, true
		e.Message += "; asking the remote what arrived: " + asPublishError("", ReasonNetwork, askErr).said()
		return false, e
	case have.refs[ref] == p.q.Tip:
		// It arrived; or another broker of the same kick was faster.
		return true, nil
	case have.refs[ref] != p.refs.Old:
		return false, p.refs.taken(p.op, have.refs[ref])
	}
	return false, e
}

// remoteGit runs git against a target.
type remoteGit struct {
	target Target
	git    gitcmd.Remote
}

// newRemoteGit refuses a token that no server made, without repeating it.
func newRemoteGit(t Target, token githubapp.Token) (*remoteGit, error) {
	r := &remoteGit{target: t, git: gitcmd.Remote{Protocol: t.Protocol}}
	if t.Protocol == "file" {
		r.git.Path = t.URL
	}
	if token.IsZero() {
		return r, nil
	}
	value := token.Value()
	if len(value) > 4096 || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, publishError(ReasonUsage, "use the token", "it is longer than 4096 characters or holds some that no token has: check how it was given")
	}
	// hostForm leaves nothing that a shell or git would interpret.
	r.git.Origin, r.git.User, r.git.Password = t.Protocol+"://"+t.Host, githubapp.GitUser, value
	return r, nil
}

// advertised is what a remote says of its refs.
type advertised struct {
	head string            // full name of the branch that HEAD names
	refs map[string]string // full name to id
}

// list asks the remote for the refs that match. A name with "*" is a pattern;
// any other must match as a whole.
func (r *remoteGit) list(ctx context.Context, names ...string) (advertised, error) {
	op := "list the branches of " + r.target.String()
	out, err := r.git.Output(ctx, "", listTimeout, append([]string{"ls-remote", "--quiet", "--symref", "--", r.target.URL}, names...)...)
	if err != nil {
		return advertised{}, classifyGit(ctx, op, "", err)
	}
	a := advertised{refs: map[string]string{}}
	for line := range bytes.Lines(out) {
		oid, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), "\t")
		target, isSymref := strings.CutPrefix(oid, "ref: ")
		switch {
		case !ok || !isSymref && len(oid) != 40 && len(oid) != 64:
			return a, publishError(ReasonGit, op, "unexpected line %q", line)
		case isSymref && name == "HEAD":
			a.head = target
		case !isSymref && (slices.Contains(names, name) || strings.Contains(names[0], "*")):
			a.refs[name] = oid
		}
	}
	return a, nil
}
