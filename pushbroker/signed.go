package pushbroker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/githubapp"
)

// In signed mode nothing is pushed: GitHub makes each commit anew from whole
// files, by its mutation createCommitOnBranch, and signs it. The commits get
// other ids, and so each one's tree is held against the inspected one. The
// mutation knows regular files alone, no modes and one parent.

// maxSignedContent bounds the files of one commit, in bytes: they go in one
// request, a third larger in base64. GitHub publishes no limit; the client
// waits 30 seconds for an answer.
const maxSignedContent = 24 << 20

// signedCommit is a commit as GitHub shall make it.
type signedCommit struct {
	oid, tree      string
	headline, body string
	changes        []change
}

// signable returns the commits in order, or says what cannot be expressed.
// Nothing was sent then.
func (q *Quarantine) signable(ctx context.Context, refs Refs) ([]signedCommit, error) {
	const op = "have the commits made and signed by GitHub"
	cannot := func(format string, args ...any) error { return publishError(ReasonUnsignable, op, format, args...) }
	if refs.updated(q) == Rewritten {
		return nil, cannot("a branch that is written anew cannot be made so that nobody else's commit is lost")
	}
	files, err := q.filesAt(ctx, q.BaseOID)
	if err != nil {
		return nil, asPublishError(op, ReasonGit, err)
	}
	defer files.close()
	parent, parentTree := q.BaseOID, q.history.baseTree
	var out []signedCommit
	for _, c := range q.history.commits {
		if len(c.Parents) != 1 || c.Parents[0] != parent {
			return nil, cannot("commit %.12s is a merge, or does not follow the one before it", c.OID)
		}
		s := signedCommit{oid: c.OID, tree: c.Tree}
		s.headline, s.body, _ = strings.Cut(strings.TrimSpace(c.Message), "\n")
		s.body = strings.TrimSpace(s.body)
		if s.headline == "" || !utf8.ValidString(c.Message) {
			return nil, cannot("commit %.12s has no message, or one that is not UTF-8", c.OID)
		}
		if s.changes, err = changesBetween(files.r, c.Tree, parentTree); err != nil {
			return nil, asPublishError(op, ReasonGit, err)
		}
		if fault := unsignable(s.changes); fault != "" {
			return nil, cannot("commit %.12s: %s", c.OID, fault)
		}
		if err := s.checkSize(files.r); err != nil {
			return nil, asPublishError(op, ReasonGit, err)
		}
		out, parent, parentTree = append(out, s), c.OID, c.Tree
	}
	return out, nil
}

// changesBetween are the changed files between two trees.
func changesBetween(r *objectReader, tree, parent string) ([]change, error) {
	lim := DefaultIngestLimits()
	var out []change
	w := &walker{treeCache: newTreeCache(r, lim), h: &history{first: map[string]place{}, baseSeen: map[string]bool{}}, done: map[visit]bool{}}
	d := diff{w: w, commit: -1, out: &out}
	return out, d.trees("", tree, parent, parent, 0)
}

// unsignable says what of the changes the mutation cannot express.
func unsignable(changes []change) string {
	for _, c := range changes {
		shown := escape.String(c.path)
		switch {
		case !utf8.ValidString(c.path):
			return shown + " is not UTF-8"
		case c.old.mode == modeLink || c.new.mode == modeLink:
			return shown + " is or was a symbolic link"
		case c.old.mode == modeGitlink || c.new.mode == modeGitlink:
			return shown + " is or was a submodule"
		case c.new.mode == 0:
		case c.old.mode == 0 && c.new.mode != modeFile|0o644:
			return fmt.Sprintf("%s is new with mode %06o; only ordinary files can be new", shown, c.new.mode)
		case c.old.mode != 0 && c.old.mode != c.new.mode:
			return fmt.Sprintf("%s changes its mode from %06o to %06o", shown, c.old.mode, c.new.mode)
		}
	}
	return ""
}

func (s signedCommit) checkSize(r *objectReader) error {
	infos, err := r.infos(s.added())
	if err != nil {
		return err
	}
	var total int64
	for _, info := range infos {
		total += info.size
	}
	if total > maxSignedContent {
		return publishError(ReasonUnsignable, "have the commits made and signed by GitHub", "commit %.12s has %d bytes in its files, more than %d, and they go in one request", s.oid, total, maxSignedContent)
	}
	return nil
}

// added are the ids of the files that the commit adds or changes.
func (s signedCommit) added() []string {
	var oids []string
	for _, c := range s.changes {
		if c.new.mode != 0 {
			oids = append(oids, c.new.oid)
		}
	}
	return oids
}

// signer makes the commits of one publication.
type signer struct {
	p       *publisher
	push    *push
	client  *github.Client
	commits []signedCommit
	chain   SignedChain // of commits
	begun   bool        // something was asked for
	head    string      // what the branch has of the chain, as far as is known; empty: nothing
}

// pushSigned is push for signed mode.
func (p *publisher) pushSigned(ctx context.Context) error {
	r := p.req
	commits, err := r.Quarantine.signable(ctx, r.Refs)
	if err != nil {
		return err
	}
	op := fmt.Sprintf("make %s on %s", r.Refs.Branch, r.Target)
	if err := checkRefs(r.Refs); err != nil {
		return asPublishError(op, ReasonUsage, err)
	}
	return p.withToken(ctx, "push", githubapp.Permissions{"contents": "write"}, func(token githubapp.Token) error {
		remote, err := newRemoteGit(r.Target, token)
		if err != nil {
			return err
		}
		client, err := githubapp.NewClient(r.Target.API, token)
		if err != nil {
			return asPublishError(op, ReasonUsage, err)
		}
		s := &signer{p: p, push: &push{q: r.Quarantine, refs: r.Refs, remote: remote, op: op}, client: client, commits: commits, chain: chainOf(r.Quarantine.BaseOID, commits)}
		if err := p.retry(ctx, func() error { return p.explainAuth(s.run(ctx), token) }); err != nil {
			return s.undo(ctx, err)
		}
		return nil
	})
}

// run makes the branch and the commits that are not there yet.
func (s *signer) run(ctx context.Context) error {
	r := s.p.req
	ref := "refs/heads/" + r.Refs.Branch
	have, err := s.push.remote.list(ctx, "HEAD", "refs/heads/"+r.Refs.Base, ref)
	if err != nil {
		return err
	}
	if have.head == ref {
		return publishError(ReasonUsage, s.push.op, "that is the repository's default branch")
	}
	if err := s.push.checkGain(ctx, have.refs["refs/heads/"+r.Refs.Base]); err != nil {
		return err
	}
	head := have.refs[ref]
	done, err := s.done(ctx, head)
	if err != nil {
		return err
	}
	chain, err := json.Marshal(s.chain)
	if err != nil {
		return asPublishError(s.push.op, ReasonJournal, err)
	}
	if err := s.p.journal("push", map[string]string{"target": r.Target.String(), "branch": r.Refs.Branch, "commit": r.Quarantine.Tip, "old": r.Refs.Old, "signed": string(chain)}); err != nil {
		return err
	}
	s.begun, s.head = true, head
	if head == "" {
		head = r.Quarantine.BaseOID
		_, _, err := s.client.Git.CreateRef(ctx, r.Target.Owner, r.Target.Name, &github.Reference{Ref: &ref, Object: &github.GitObject{SHA: &head}})
		if err != nil {
			return classifyAPI(ctx, s.push.op, err)
		}
		s.head = head
	}
	for i, c := range s.commits[done:] {
		if err := s.p.journal("sign", map[string]string{"branch": r.Refs.Branch, "commit": c.oid, "on": head}); err != nil {
			return err
		}
		made, err := s.make(ctx, c, head)
		if err != nil {
			return err
		}
		s.head = made
		if err := s.verify(ctx, s.chain.Commits[done+i], made, head); err != nil {
			return err
		}
		head = made
	}
	if err := s.onBranch(ctx, ref, head); err != nil {
		return err
	}
	pub := &s.p.pub
	pub.Branch, pub.Commit, pub.Signed, pub.Updated = r.Refs.Branch, head, true, r.Refs.updated(r.Quarantine)
	pub.Pushed = pub.Pushed || done < len(s.commits)
	return s.p.journal("signed", map[string]string{"branch": r.Refs.Branch, "commit": head})
}

// onBranch holds what git says of the branch against the last commit that the
// API named: the work is what the branch has.
func (s *signer) onBranch(ctx context.Context, ref, head string) error {
	have, err := s.push.remote.list(ctx, ref)
	if err != nil {
		return err
	}
	there := have.refs[ref]
	if there == head {
		return nil
	}
	if _, is, err := s.chain.reached(ctx, s.client, s.p.req.Target, s.push.op, there); err == nil && is {
		return publishError(ReasonServer, s.push.op, "the branch is still at %s, and the last signed commit is %s", there, head)
	}
	return publishError(ReasonBranchMoved, s.push.op, "the branch is at %s, no longer at %s, the last signed commit", there, head)
}

// done is how many of the commits the branch has already, from an attempt
// before. What it has must be those and nothing else.
func (s *signer) done(ctx context.Context, head string) (int, error) {
	r := s.p.req
	if head == "" && r.Refs.Old == "" {
		return 0, nil
	}
	done, is, err := s.chain.reached(ctx, s.client, r.Target, s.push.op, head)
	if err == nil && !is {
		err = r.Refs.taken(s.push.op, head)
	}
	return done, err
}

// verify holds a commit that was just made against the inspected one.
func (s *signer) verify(ctx context.Context, want SignedStep, made, parent string) error {
	c, err := signedBy(ctx, s.client, s.p.req.Target, s.push.op, made)
	if err != nil {
		return err
	}
	op := fmt.Sprintf("%s: check commit %.12s", s.push.op, made)
	if len(c.Parents) != 1 || c.Parents[0].GetSHA() != parent {
		return publishError(ReasonTreeDiffers, op, "it does not follow %s", parent)
	}
	if words := want.differs(c); words != "" {
		return publishError(ReasonTreeDiffers, op, "%s", words)
	}
	return nil
}

// undo takes back what must not stay, or is not the whole work: a new branch
// goes, an updated one returns to where it was, unless somebody moved it
// meanwhile. What may be whole, and only its answer was lost, stays to be asked
// about.
func (s *signer) undo(ctx context.Context, cause error) error {
	e := asPublishError(s.push.op, ReasonRejected, cause)
	switch {
	case e.Reason.Temporary():
		e.Begun = s.begun
		return e
	case s.head == s.p.req.Refs.Old || e.Reason == ReasonBranchExists || e.Reason == ReasonBranchMoved:
		return e
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	ref := "refs/heads/" + s.p.req.Refs.Branch
	_, err := s.push.remote.git.Output(ctx, s.push.q.Dir, askTimeout, "push", "--porcelain", "--no-verify", "--no-signed", "--no-follow-tags", "--no-progress",
		"--recurse-submodules=no", "--force-with-lease="+ref+":"+s.head, "--", s.push.remote.target.URL, s.p.req.Refs.Old+":"+ref)
	switch {
	case err != nil:
		e.Message += "; and the branch could not be taken back: " + classifyGit(ctx, "", "", err).said()
	case s.p.req.Refs.Old == "":
		e.Message += "; the branch was removed again"
	default:
		e.Message += "; the branch is back at " + s.p.req.Refs.Old
	}
	return e
}

const createCommit = `mutation ($input: CreateCommitOnBranchInput!) { createCommitOnBranch(input: $input) { commit { oid } } }`

// The mutation's file changes.
type (
	signedDeletion struct {
		Path string `json:"path"`
	}
	signedAddition struct {
		Path     string `json:"path"`
		Contents string `json:"contents"` // base64
	}
)

// make has GitHub make one commit on top of head, where the branch must be.
func (s *signer) make(ctx context.Context, c signedCommit, head string) (string, error) {
	r := s.p.req
	additions, deletions := []signedAddition{}, []signedDeletion{}
	q := gitcmd.Git{Dir: r.Quarantine.Dir}
	reader, err := startObjectReader(ctx, q)
	if err != nil {
		return "", asPublishError(s.push.op, ReasonGit, err)
	}
	defer reader.close()
	for _, ch := range c.changes {
		if ch.new.mode == 0 {
			deletions = append(deletions, signedDeletion{ch.path})
			continue
		}
		data, err := reader.one(ch.new.oid, "blob", maxSignedContent)
		if err != nil {
			return "", asPublishError(s.push.op, ReasonGit, err)
		}
		additions = append(additions, signedAddition{ch.path, base64.StdEncoding.EncodeToString(data)})
	}
	req, err := s.client.NewRequest("POST", graphQLAddress(r.Target.API), map[string]any{
		"query": createCommit,
		"variables": map[string]any{"input": map[string]any{
			"branch":          map[string]string{"repositoryNameWithOwner": r.Target.Owner + "/" + r.Target.Name, "branchName": r.Refs.Branch},
			"message":         map[string]string{"headline": c.headline, "body": c.body},
			"fileChanges":     map[string]any{"additions": additions, "deletions": deletions},
			"expectedHeadOid": head,
		}},
	})
	if err != nil {
		return "", asPublishError(s.push.op, ReasonGit, err)
	}
	var answer graphQLAnswer
	if _, err := s.client.Do(ctx, req, &answer); err != nil {
		return "", classifyAPI(ctx, s.push.op, err)
	}
	return answer.commit(r.Refs, s.push.op)
}

// graphQLAddress is where GraphQL is beside REST: /graphql on github.com, and
// /api/graphql beside /api/v3 on an Enterprise host.
func graphQLAddress(api string) string {
	return strings.TrimSuffix(strings.TrimSuffix(api, "/"), "/v3") + "/graphql"
}

// graphQLAnswer is the answer to the one mutation. Errors come with status 200.
type graphQLAnswer struct {
	Data struct {
		Create *struct {
			Commit struct {
				OID string `json:"oid"`
			} `json:"commit"`
		} `json:"createCommitOnBranch"`
	} `json:"data"`
	Errors []struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"errors"`
}

func (a graphQLAnswer) commit(refs Refs, op string) (string, error) {
	if len(a.Errors) == 0 && a.Data.Create != nil && gitcmd.IsOID(a.Data.Create.Commit.OID) {
		return a.Data.Create.Commit.OID, nil
	}
	if len(a.Errors) == 0 {
		return "", publishError(ReasonAnswer, op, "the answer names no commit")
	}
	e := publishError(ReasonRejected, op, "%s", strings.Join(strings.Fields(a.Errors[0].Message), " "))
	for _, more := range a.Errors[1:] {
		if len(e.Details) < maxDetails {
			e.Details = append(e.Details, escape.String(more.Message))
		}
	}
	switch a.Errors[0].Type {
	case "STALE_DATA":
		e.Reason = ReasonBranchExists
		if refs.Old != "" {
			e.Reason = ReasonBranchMoved
		}
	case "NOT_FOUND":
		e.Reason = ReasonNotFound
	case "FORBIDDEN":
		e.Reason = ReasonPermission
	case "RATE_LIMITED":
		e.Reason, e.RetryAfter = ReasonRateLimit, time.Minute
	default:
		for _, known := range gitAnswers {
			if m := a.Errors[0].Message; known.match.MatchString(m) || known.match.MatchString(strings.ToLower(m)) {
				e.Reason = known.reason
				break
			}
		}
		if strings.Contains(a.Errors[0].Message, "Something went wrong while executing your query") {
			e.Reason = ReasonServer
		}
	}
	return "", e
}
