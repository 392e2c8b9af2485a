package pushbroker

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/repoaddr"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker/exposure"
)

// ci judges what the remote's CI would do with the branch. It comes last, since
// it matters there whether the pull request will be a draft.
func (in *inspection) ci(ctx context.Context) error {
	if _, err := in.base.reader(ctx); err != nil {
		return err
	}
	base := &in.base.tree
	var tip exposure.Tree
	if in.changesCI() {
		t := newCommitTree(in.q.objects, in.h.tipTree)
		tip = &t
	}
	d := in.w.Destination
	changed := make([]string, len(in.h.net))
	for i, c := range in.h.net {
		changed[i] = c.path
	}
	p := PushOf(in.pol, d, in.w.Branch)
	p.Changed = changed
	found, err := in.judgeCI(ctx, base, tip, p)
	if err != nil {
		return err
	}
	draft := in.found.counts[policy.Review] > 0 || policy.Is(in.pol.Publish.Draft)
	if more := stopping(found); d.PullRequest && draft && more > 0 {
		// Not every repository has drafts: that it must be one is then a part of
		// the verdict.
		p.Draft = true
		asDraft, err := in.judgeCI(ctx, base, tip, p)
		if err != nil {
			return err
		}
		if stopping(asDraft) < more {
			found, in.verdict.DraftOnly = asDraft, true
		}
	}
	in.found.add(found...)
	return nil
}

func (in *inspection) judgeCI(ctx context.Context, base, tip exposure.Tree, p exposure.Push) ([]policy.Finding, error) {
	report, err := exposure.Judge(ctx, base, tip, p, exposure.SettingsOf(in.pol))
	if err != nil {
		return nil, fmt.Errorf("judge the workflows: %w", err)
	}
	found := report.Findings(in.pol, in.now)
	if !in.w.Destination.GitHub {
		for i, f := range found {
			found[i] = elsewhere(f)
		}
	}
	return found, nil
}

// stopping counts the findings that are more than a report.
func stopping(found []policy.Finding) int {
	n := 0
	for _, f := range found {
		if f.Level != policy.Report {
			n++
		}
	}
	return n
}

// Destination says what the target's CI sees of a branch that started from
// base, and of its pull request where there is one.
func (t Target) Destination(base string, pullRequest bool) Destination {
	host := hostOnly(t.Host)
	d := Destination{Base: base, GitHub: t.API != "" || host == "github.com" || host == "ssh.github.com" || strings.HasSuffix(host, ".ghe.com")}
	d.PullRequest = d.GitHub && pullRequest
	if a, err := repoaddr.Parse(t.URL); err == nil {
		if owner, name := ownerAndName(a.Path); owner != "" {
			d.Repo = owner + "/" + name
		}
	}
	return d
}

// PushOf is what kick is about to make, as the judgement of CI sees it.
func PushOf(pol *policy.Policy, d Destination, branch string) exposure.Push {
	return exposure.Push{
		Repo: d.Repo, Branch: branch, Base: d.Base, PullRequest: d.PullRequest,
		Issue:  policy.Is(pol.Publish.IssueFallback),
		Labels: append([]string{ReviewLabel}, pol.Publish.Labels...),
	}
}

// changesCI reports whether the work brings workflows of its own that no rule
// blocks.
func (in *inspection) changesCI() bool {
	blocked := slices.ContainsFunc(in.found.list, func(f policy.Finding) bool { return f.Rule == "protected-ci" && f.Level == policy.Block })
	return !blocked && slices.ContainsFunc(in.h.net, func(c change) bool { return strings.HasPrefix(c.path, ".github/") })
}

// elsewhere makes a finding one to know of: on a plain git remote no workflow of
// GitHub's runs, but the branch may be mirrored to where they do. What the
// operator declared of an external service holds on every remote.
func elsewhere(f policy.Finding) policy.Finding {
	if f.Level == policy.Report || f.Rule == "ci-exposure" && f.Path == "" {
		return f
	}
	f.Level = policy.Report
	f.Message += "; this remote is not GitHub, so that this holds only where the branch is mirrored there"
	return f
}

// Exposure judges the CI of a base commit in a mirror.
func Exposure(ctx context.Context, mirror, base string, p exposure.Push, s exposure.Settings) (exposure.Report, error) {
	lim := DefaultIngestLimits()
	git := gitcmd.Git{Dir: mirror, Limits: gitcmd.Limits{CPU: lim.CPU, Memory: lim.Memory, Alone: true}}
	tree, err := git.Line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", base+"^{tree}")
	if err != nil {
		return exposure.Report{}, fmt.Errorf("read commit %s: %w", base, err)
	}
	r, err := startObjectReader(ctx, git)
	if err != nil {
		return exposure.Report{}, err
	}
	defer r.close()
	t := newCommitTree(r, tree)
	return exposure.Judge(ctx, &t, nil, p, s)
}
