package manager

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// openGateway opens the kick's own egress gateway, if its sandbox is to have one, and
// leads the sandbox there. The function is called after the run, with whether the agent's
// command started; the gateway may be closed before.
func (r *run) openGateway(ctx context.Context, spec *sandbox.LaunchSpec) (_ *egress.Gateway, _ func(started bool), err error) {
	own, other := r.req.OpenShell, r.req.Runtime == openShellRuntime
	if spec.Network == sandbox.NetworkNone || other && own.Gateway == "" {
		return nil, func(bool) {}, nil
	}
	var ends []func(started bool) // in the order in which things were opened
	done := func(started bool) {
		for i := range ends {
			ends[len(ends)-1-i](started)
		}
	}
	defer func() {
		if err != nil {
			done(false)
		}
	}()
	audit, err := os.OpenFile(r.k.Path("egress.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, &sandbox.Error{Kind: sandbox.ErrRuntime, Op: "open the egress audit", Err: err}
	}
	ends = append(ends, func(bool) { r.note("close the egress audit", audit.Close()) })
	cfg := egress.Config{Kick: r.k.ID, Agent: r.req.Agent, Repo: r.req.Source.Repo, Policy: r.policy().Egress, Audit: audit, Ledgers: r.m.State.BudgetsDir()}
	git := newReadCredential(r.req)
	cfg.GitCredential = git.get
	at, reached := r.req.Kubernetes.Gateway, ""
	if other { // all but models is OpenShell's
		cfg.Policy, at = policy.Egress{Models: cfg.Policy.Models}, own.Gateway
	}
	if other || r.req.Runtime == "kubernetes" {
		way, end, err := openWayIn(at)
		if err != nil {
			return nil, nil, err
		}
		cfg.TCP, reached = way.tcp, way.at
		before, _ := way.tcp.Refused()
		ends = append(ends, func(started bool) {
			if note := strangersNote(way.tcp, before); note != "" && !started {
				r.out.Notes = append(r.out.Notes, note)
			}
			r.note("close the gateway's way in", end())
		})
	}
	gateway, err := egress.Listen(ctx, r.k.Path("egress"), cfg)
	if err != nil {
		return nil, nil, &sandbox.Error{Kind: sandbox.ErrRuntime, Op: "open the egress gateway", Err: err}
	}
	ends = append(ends, func(bool) {
		r.note("egress", gateway.Close())
		counts := gateway.Summary()
		r.out.Egress = &counts
		if counts.Restarts > 0 {
			r.out.Notes = append(r.out.Notes, fmt.Sprintf("the egress gateway failed and was started again (restarts: %d): %s says why", counts.Restarts, r.k.Path("egress.jsonl")))
		}
		r.hold(gateway.Keys())
		r.note("revoke the token for fetches", git.revoke(context.WithoutCancel(ctx)))
	})
	if other {
		spec.Egress.Port = openShellPort
	} else {
		gateway.SetGitEnvironment(spec.Env, agents.GatewayPort)
		spec.Egress = sandbox.Egress{Socket: r.k.Path("egress/gateway.sock"), Port: agents.GatewayPort}
	}
	if way := cfg.TCP; way != nil {
		spec.Egress.Socket, spec.Egress.TCP = "", &sandbox.EgressTCP{
			Address: reached, Secret: gateway.Secret(), Pin: way.Pin(), Trust: string(gateway.Trust()), Admit: gateway.Admit,
		}
		if other {
			spec.Egress.TCP.Admit = func(netip.Addr) error { return gateway.AdmitFrom(own.GatewayFrom) }
		}
	}
	if gateway.Terminates() {
		maps.Copy(spec.Env, egress.TrustEnvironment(sandbox.EgressTrustPath))
	}
	return gateway, done, nil
}
