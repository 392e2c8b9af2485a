package pushbroker

import (
	"context"
	"fmt"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/kickid"
	"github.com/kickhq/kick/policy"
)

// Squash makes the work one commit: the tip's tree on the base, by the kick's
// identity, with a message of kick's. What is in the commits in between alone
// is left behind. From here on q is about that one commit, and it must be
// inspected again; the bundle has the others.
//
// first is the verdict on the work as it came. title begins the message; below
// it stand the subjects of the commits, without those that have findings. A
// single commit without findings in its message keeps it. The same work of the
// same kick gives the same commit.
//
// It returns ErrNothing if the commits amount to no change.
func (q *Quarantine) Squash(ctx context.Context, w Work, first Verdict, title string) error {
	h := q.history
	switch {
	case h == nil || q.objects == nil:
		return fmt.Errorf("squash: the quarantine is closed: ingest the bundle again")
	case h.tipTree == h.baseTree:
		return ErrNothing
	}
	made, err := kickid.Time(w.KickID)
	if err != nil {
		return fmt.Errorf("squash: %w", err)
	}
	lim := DefaultIngestLimits()
	g := gitcmd.Git{Dir: q.Dir, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory, Alone: true}, Env: []string{
		"GIT_AUTHOR_NAME=" + w.IdentityName, "GIT_AUTHOR_EMAIL=" + w.IdentityEmail,
		"GIT_COMMITTER_NAME=" + w.IdentityName, "GIT_COMMITTER_EMAIL=" + w.IdentityEmail,
		fmt.Sprintf("GIT_AUTHOR_DATE=@%d +0000", made.Unix()), fmt.Sprintf("GIT_COMMITTER_DATE=@%d +0000", made.Unix()),
	}}
	out, err := g.Output(ctx, strings.NewReader(h.squashMessage(first, title)), "commit-tree", "--no-gpg-sign", "-p", q.BaseOID, "-F", "-", h.tipTree)
	if err != nil {
		return fmt.Errorf("squash: %w", err)
	}
	tip := strings.TrimSpace(string(out))
	if !gitcmd.IsOID(tip) {
		return fmt.Errorf("squash: git commit-tree printed %q", tip)
	}
	if err := q.become(ctx, tip); err != nil {
		return fmt.Errorf("squash: %w", err)
	}
	return nil
}

// become makes q about one commit on the base, of a tree that was ingested.
func (q *Quarantine) become(ctx context.Context, tip string) error {
	lim := DefaultIngestLimits()
	revs, err := startRevList(ctx, gitcmd.Git{Dir: q.Dir, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory, Alone: true}}, lim.Objects+lim.Commits)
	if err != nil {
		return err
	}
	defer revs.close()
	oids, err := revs.list(tip, q.BaseOID)
	if err != nil {
		return err
	}
	infos, err := q.objects.infos(oids)
	if err != nil {
		return err
	}
	h := &history{info: make(map[string]objectInfo, len(oids))}
	for i, oid := range oids {
		h.info[oid] = infos[i]
	}
	if err := h.checkCommits(q.objects, lim, []string{tip}, q.BaseOID); err != nil {
		return err
	}
	baseTree := q.history.baseTree
	if err := walkHistory(newTreeCache(q.objects, lim), h, baseTree, func(string) (string, error) { return baseTree, nil }); err != nil {
		return err
	}
	for _, oid := range oids {
		if _, seen := h.first[oid]; !seen {
			return fmt.Errorf("object %s would be pushed and was seen in no commit", oid)
		}
	}
	q.Tip, q.Commits, q.Objects, q.history = tip, []string{tip}, oids, h
	return nil
}

// maxSquashed is how many subjects a message lists.
const maxSquashed = 50

func (h *history) squashMessage(first Verdict, title string) string {
	bad := map[string]bool{} // commits whose own text has a finding
	for _, f := range first.Findings {
		if f.Path == "" && f.Level != policy.Report {
			bad[f.Commit] = true
		}
	}
	if c := h.commits[0]; len(h.commits) == 1 && !bad[c.OID] && strings.TrimSpace(c.Message) != "" {
		return c.Message
	}
	var b strings.Builder
	b.WriteString(title + "\n\n")
	listed := 0
	for _, c := range h.commits {
		if s := plain(c.Subject(), maxName); s != "" && !bad[c.OID] && listed < maxSquashed {
			fmt.Fprintf(&b, "* %s\n", s)
			listed++
		}
	}
	if n := len(h.commits) - listed; n > 0 && listed > 0 {
		fmt.Fprintf(&b, "* and %s\n", count(n, "more commit"))
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// WithLeftBehind adds what was found in the work as it came, and is no longer
// in what v is about. It stops nothing, and is worth knowing: the work holds
// it, and a secret in it was in the sandbox.
func (v Verdict) WithLeftBehind(first Verdict) Verdict {
	type key struct{ rule, path, place, fingerprint string }
	of := func(f policy.Finding) key { return key{f.Rule, f.Path, f.Place, f.Fingerprint} }
	still := map[key]bool{}
	for _, f := range v.Findings {
		still[of(f)] = true
	}
	findings := append([]policy.Finding{}, v.Findings...)
	for _, f := range first.Findings {
		if still[of(f)] {
			continue
		}
		f.Level = policy.Report
		f.Message = strings.TrimSuffix(f.Message, ".") + " (only in commits that were left behind)"
		f.Remedy = "Nothing for this pull request; the kept bundle holds it. Rotate a secret that is real."
		findings = append(findings, f)
	}
	v.Findings = findings
	return v
}
