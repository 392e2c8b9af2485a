package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/exposure"
	"github.com/kickhq/kick/workspace"
)

// CIReport is what a repository's CI would do with a kick's branch and pull
// request.
type CIReport struct {
	Repo   string `json:"repo"`
	Commit string `json:"commit"` // of the base
	// GitHub is false for a plain git remote, where no workflow runs: the report
	// is of what would happen if the branch were on GitHub.
	GitHub bool `json:"github"`
	exposure.Report
	Findings []policy.Finding `json:"findings"`
	Exposed  bool             `json:"exposed"` // a finding blocks, or asks for a review
}

// sampleID stands for the id of a kick that is yet to come.
const sampleID = "k0000000000000"

// CI fetches the request's base and judges its CI by the policy. Of the request
// it takes the source, the target, the agent and the policy.
func (m *Manager) CI(ctx context.Context, req Request) (report CIReport, err error) {
	cache := workspace.Cache{Dir: m.State.MirrorsDir()}
	base, err := cache.Fetch(ctx, req.Source)
	if req.AfterFetch != nil {
		if rerr := req.AfterFetch(context.WithoutCancel(ctx)); rerr != nil {
			err = errors.Join(err, fmt.Errorf("revoke the token of the fetch: %w", rerr))
		}
	}
	if base != nil {
		defer func() { err = errors.Join(err, base.Release()) }()
	}
	if err != nil {
		return CIReport{}, err
	}
	pol := req.Policy.For(req.Target.String(), req.Agent)
	d := req.Target.Destination(base.Branch, true)
	report = CIReport{Repo: req.Target.String(), Commit: base.OID, GitHub: d.GitHub}
	d.GitHub, d.PullRequest = true, true
	push := pushbroker.PushOf(pol, d, BranchName(req.Agent, sampleID))
	if report.Report, err = pushbroker.Exposure(ctx, base.Mirror, base.OID, push, exposure.SettingsOf(pol)); err != nil {
		return CIReport{}, err
	}
	report.Findings = report.Report.Findings(pol, time.Now())
	report.Exposed = slices.ContainsFunc(report.Findings, func(f policy.Finding) bool { return f.Level != policy.Report })
	return report, nil
}
