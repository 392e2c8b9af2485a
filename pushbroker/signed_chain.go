package pushbroker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/go-github/v66/github"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/githubapp"
)

// SignedChain is what GitHub shall make of inspected work in signed mode. It is
// recorded before the first commit: the ids are GitHub's and not known then, so
// that after a crash the branch is told by its trees, messages and parents.
type SignedChain struct {
	Base    string       `json:"base"` // commit on which the chain begins
	Commits []SignedStep `json:"commits"`
}

// SignedStep is one commit of the chain.
type SignedStep struct {
	Tree    string `json:"tree"`
	Message string `json:"message"` // SHA-256 of it, without blanks at its ends
}

func chainOf(base string, commits []signedCommit) SignedChain {
	chain := SignedChain{Base: base}
	for _, c := range commits {
		chain.Commits = append(chain.Commits, SignedStep{Tree: c.tree, Message: digestOf(c.headline + "\n\n" + c.body)})
	}
	return chain
}

// ParseSignedChain reads a SignedChain that a journal recorded.
func ParseSignedChain(text string) (SignedChain, error) {
	var c SignedChain
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Errorf("recorded signed commits: %w", err)
	}
	if !gitcmd.IsOID(c.Base) || len(c.Commits) == 0 {
		return c, fmt.Errorf("recorded signed commits: no base or no commit")
	}
	return c, nil
}

func digestOf(message string) string {
	sum := sha256.Sum256([]byte(strings.TrimSpace(message)))
	return hex.EncodeToString(sum[:])
}

// FindSigned says how many of the chain's commits a branch has that is at head,
// which is not empty. is tells that it has these and nothing else. It changes
// nothing; token, journal, errors and warnings are as for Lookup.
func FindSigned(ctx context.Context, t Target, head string, chain SignedChain, journal func(event string, fields map[string]string) error) (made int, is bool, warnings []string, err error) {
	op := "look at the signed commits on " + t.String()
	p := &publisher{req: PublishRequest{Target: t, Journal: journal}}
	err = p.withToken(ctx, "look", githubapp.Permissions{"contents": "read"}, func(token githubapp.Token) error {
		if !t.HasPullRequests() {
			return publishError(ReasonAuthentication, op, "the remote is reached without its API")
		}
		client, err := githubapp.NewClient(t.API, token)
		if err != nil {
			return asPublishError(op, ReasonUsage, err)
		}
		return p.retry(ctx, func() (err error) {
			made, is, err = chain.reached(ctx, client, t, op, head)
			return p.explainAuth(err, token)
		})
	})
	return made, is, p.pub.Warnings, err
}

// reached is how many of the commits head has; is tells that it has nothing
// else.
func (c SignedChain) reached(ctx context.Context, client *github.Client, t Target, op, head string) (made int, is bool, err error) {
	var have []*github.Commit // newest first
	for at := head; at != c.Base; {
		if at == "" || len(have) == len(c.Commits) {
			return 0, false, nil
		}
		commit, err := signedBy(ctx, client, t, op, at)
		if err != nil {
			return 0, false, err
		}
		if len(commit.Parents) != 1 {
			return 0, false, nil
		}
		have, at = append(have, commit), commit.Parents[0].GetSHA()
	}
	for i := range have {
		if commit, want := have[len(have)-1-i], c.Commits[i]; want.differs(commit) != "" || digestOf(commit.GetMessage()) != want.Message {
			return 0, false, nil
		}
	}
	return len(have), true, nil
}

// differs says in what a commit of GitHub's is not the inspected one.
func (s SignedStep) differs(got *github.Commit) string {
	switch {
	case got.GetTree().GetSHA() != s.Tree:
		return fmt.Sprintf("its tree is %s, and %s was inspected", got.GetTree().GetSHA(), s.Tree)
	case !got.GetVerification().GetVerified():
		return "it is not signed: " + got.GetVerification().GetReason()
	}
	return ""
}

func signedBy(ctx context.Context, client *github.Client, t Target, op, oid string) (*github.Commit, error) {
	c, _, err := client.Git.GetCommit(ctx, t.Owner, t.Name, oid)
	if err != nil {
		return nil, classifyAPI(ctx, op+": look at commit "+oid, err)
	}
	return c, nil
}
