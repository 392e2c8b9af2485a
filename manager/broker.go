package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan"
	"github.com/kickhq/kick/sandbox"
)

// broker takes the work through ingest, inspection and publication.
func (r *run) broker(ctx context.Context) {
	bundle, ok := r.sink.Path(sandbox.FinalBundle)
	if !ok && r.summary.Head == "" {
		// To say that there is nothing would be a guess.
		r.fail(AgentFailed, errors.New("the agent left a repository that git cannot read; its files are kept"))
		return
	}
	if !ok {
		r.fail(Nothing, nil)
		return
	}
	work := pushbroker.Work{
		KickID: r.k.ID, Agent: r.req.Agent, Repo: r.req.Source.Repo, Bundle: bundle, Mirror: r.base.Mirror, BaseOID: r.base.OID,
		Branch:       r.branch(),
		Destination:  r.req.Target.Destination(r.into(), r.req.Publish != PublishBranch),
		IdentityName: r.req.Identity.Name, IdentityEmail: r.req.Identity.Email,
	}
	dir := r.k.Path("quarantine.git")
	defer func() { r.note("remove the quarantine", os.RemoveAll(dir)) }()
	var q *pushbroker.Quarantine
	err := r.step("ingest", func() (detail string, err error) {
		if q, err = pushbroker.Ingest(ctx, dir, work, pushbroker.IngestLimits{}); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, %s, every one checked", count(len(q.Commits), "new commit"), count(len(q.Objects), "object")), r.k.Journal.Note("ingested", map[string]string{"commit": q.Tip})
	})
	var refusal *pushbroker.Refusal
	switch {
	case errors.Is(err, pushbroker.ErrNothing):
		r.fail(Nothing, nil)
		return
	case errors.As(err, &refusal):
		r.refuse(refusal.Verdict(work), err)
		return
	case err != nil:
		r.fail(codeFor(ctx, err, Internal), err)
		return
	}
	defer func() { r.note("close the quarantine", q.Close()) }()
	r.out.Commit, r.out.Commits = q.Tip, len(q.Commits)

	var v pushbroker.Verdict
	err = r.step("inspect", func() (detail string, err error) {
		if policy.Is(r.form().Squash) {
			v, err = r.squash(ctx, q, work)
		} else {
			v, err = r.inspect(ctx, q, work)
		}
		if err != nil {
			return "", err
		}
		return verdictDetail(v), r.k.Journal.Note("inspected", map[string]string{"pass": fmt.Sprint(v.Pass), "review": fmt.Sprint(v.Review)})
	})
	switch {
	case errors.Is(err, pushbroker.ErrNothing): // of squashed work
		r.fail(Nothing, nil)
		return
	case err != nil:
		r.fail(codeFor(ctx, err, Internal), err)
		return
	}
	r.out.Findings, r.out.Files = v.Findings, v.Files
	switch {
	case !v.Pass && !v.Review:
		r.refuse(v, fmt.Errorf("the work does not pass: %s", verdictDetail(v)))
	case v.Review && r.req.Publish != PublishPR && !r.req.AcceptReview && !r.req.LocalCheckout:
		r.out.Remedy = "Look at the kept work, then run again with --accept-review, or publish to a forge with pull requests."
		r.refuse(v, errors.New("findings ask for a review, and nobody reviews here"))
	case r.req.Publish == PublishNone:
		r.saveVerdict(v)
		r.fail(Inspected, nil)
	case r.duplicate(ctx, &v, work):
		r.refuse(v, fmt.Errorf("the work is in an open pull request already: %s", r.out.PullRequest))
	default:
		r.saveVerdict(v)
		r.publish(ctx, q, v, work.Branch)
	}
}

// duplicate asks for an open pull request of another kick with the same result,
// adds it to the verdict, and reports whether that blocks. A forge that does
// not answer is no reason not to publish.
func (r *run) duplicate(ctx context.Context, v *pushbroker.Verdict, work pushbroker.Work) bool {
	if r.req.Publish != PublishPR {
		return false
	}
	refs := pushbroker.Refs{Branch: work.Branch, Base: r.into()}
	found, warnings, err := pushbroker.FindDuplicate(ctx, r.req.Target, refs, v.Tree, r.k.Journal.Intend)
	r.out.Notes = append(r.out.Notes, warnings...)
	if err != nil {
		r.out.Notes = append(r.out.Notes, "open pull requests were not compared with this work: "+err.Error())
		return false
	}
	if found.Number == 0 {
		return false
	}
	what := fmt.Sprintf("pull request #%d, %s", found.Number, found.URL)
	v.Add(r.policy().Judge(policy.Subject{Work: &policy.Work{Duplicate: what}}, time.Now())...)
	r.out.Findings = v.Findings
	if v.Blocks() {
		r.out.PullRequest = found.URL
	}
	return v.Blocks()
}

// judgeWork judges the work alone.
func (r *run) judgeWork(ctx context.Context, q *pushbroker.Quarantine, work pushbroker.Work) (pushbroker.Verdict, error) {
	scanner, err := r.scanner()
	if err != nil {
		return pushbroker.Verdict{}, err
	}
	return pushbroker.Inspect(ctx, q, work, r.req.Policy, scanner)
}

// inspect judges the work and, where there will be a pull request, its text.
func (r *run) inspect(ctx context.Context, q *pushbroker.Quarantine, work pushbroker.Work) (pushbroker.Verdict, error) {
	v, err := r.judgeWork(ctx, q, work)
	if err != nil || r.req.Publish != PublishPR {
		return v, err
	}
	scanner, err := r.scanner()
	if err != nil {
		return v, err
	}
	title, body := r.description(v, work.Branch).Text()
	found, err := scanner.Text(ctx, []byte(title+"\n"+body))
	if err != nil {
		return v, err
	}
	pol := r.policy()
	for _, f := range found {
		judged := pol.ApplySecret(f, time.Now()) // f, and an exception that has expired
		if f = judged[0]; f.Level == policy.Report {
			continue
		}
		// Prompt and report are quoted there, and nobody reviews a text before
		// it is public: what asks for a review blocks here.
		f.Level, f.Place = policy.Block, "pull request text"
		f.Remedy = "Take it out of the prompt, or have the agent leave it out of its report and its commit messages."
		v.Findings = slices.Concat([]policy.Finding{f}, judged[1:], v.Findings)
		v.Pass, v.Review = false, false
	}
	return v, nil
}

// scanner returns the one that judges the task and the work. It is for one
// goroutine at a time.
func (r *run) scanner() (*scan.Scanner, error) {
	if r.scan != nil {
		return r.scan, nil
	}
	var err error
	r.scan, err = r.m.State.scanner(r.req.Held)
	return r.scan, err
}

// errSecretTask is a task that would carry a credential into the sandbox.
var errSecretTask = errors.New("no credential enters a sandbox")

// admit refuses a task that holds a credential: any in the prompt and in the
// variables, and one that this process holds also in the command. A script may
// well name the form of one, to write a test for instance.
func (r *run) admit(ctx context.Context) error {
	scanner, err := r.scanner()
	if err != nil {
		return err
	}
	type place struct {
		name, text string
		heldOnly   bool
	}
	places := []place{{"the prompt", r.req.Prompt, false}, {"the agent's command", strings.Join(r.req.Command, "\n"), true}}
	for _, name := range slices.Sorted(maps.Keys(r.req.Env)) {
		places = append(places, place{"the agent's variable " + name, name + "=" + r.req.Env[name], false})
	}
	for _, name := range slices.Sorted(maps.Keys(r.req.Home)) {
		places = append(places, place{"the agent's home file " + name, r.req.Home[name], false})
	}
	for _, p := range places {
		found, err := scanner.Text(ctx, []byte(p.text))
		if err != nil {
			return fmt.Errorf("scan %s: %w", p.name, err)
		}
		for _, f := range found {
			if f.Level == policy.Block && (f.Rule == scan.HeldRule || !p.heldOnly) {
				f.Place, f.Remedy = p.name, "take it out; rotate it if others could read it"
				r.out.Findings = append(r.out.Findings, f)
			}
		}
	}
	if len(r.out.Findings) > 0 {
		return fmt.Errorf("the task holds a secret, and %w", errSecretTask)
	}
	return nil
}

func (r *run) refuse(v pushbroker.Verdict, err error) {
	r.out.Findings = v.Findings
	r.saveVerdict(v)
	r.fail(Refused, err)
}

func (r *run) saveVerdict(v pushbroker.Verdict) {
	if err := writeJSON(r.k.Path("verdict.json"), v); err != nil {
		r.out.Notes = append(r.out.Notes, "save the verdict: "+err.Error())
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func verdictDetail(v pushbroker.Verdict) string {
	if len(v.Findings) == 0 {
		return "no findings"
	}
	var parts []string
	for _, l := range []struct {
		level     policy.Level
		one, many string
	}{
		{policy.Block, "finding blocks", "findings block"},
		{policy.Review, "finding asks for a review", "findings ask for a review"},
		{policy.Report, "finding to know of", "findings to know of"},
	} {
		n := 0
		for _, f := range v.Findings {
			if f.Level == l.level {
				n++
			}
		}
		switch {
		case n == 1:
			parts = append(parts, "1 "+l.one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, l.many))
		}
	}
	return strings.Join(parts, ", ")
}
