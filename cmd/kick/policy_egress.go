package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/policy"
)

// Exit codes of the commands below, for scripts and CI.
const (
	exitDenied  = 1 // kick policy check: the request is denied
	exitWidened = 3 // kick policy diff: the second policy reaches more
)

func newPolicyCheck(of *policyOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "check METHOD URL",
		Short: "Say whether a sandbox may make a request, and by which rule",
		Long: `Say whether the egress gateway lets a request out of a sandbox, and which rule
decides. METHOD is an HTTP method, CONNECT for a TLS connection, FETCH or PUSH
with the URL of a git repository, or MODEL with a route and a model's name. The
exit code is 1 if the request is denied. Nothing is sent or resolved: addresses
are decided about when a name is resolved.`,
		Example: `  kick policy check GET https://registry.npmjs.org/left-pad --policy policy.yaml
  kick policy check FETCH https://github.com/acme/api --policy policy.yaml --repo acme/api
  kick policy check MODEL anthropic/claude-opus --policy policy.yaml`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(_ *cobra.Command, a []string) error { return policyCheckRun(of, a[0], a[1]) },
	}
	of.flags(c)
	return c
}

func policyCheckRun(o *policyOptions, method, url string) error {
	p, err := o.load()
	if err != nil {
		return err
	}
	reach, err := p.For(o.repo, o.agent).Egress.Compile()
	if err != nil {
		return usageError{err}
	}
	a, err := reach.Check(method, url)
	if err != nil {
		return usageError{err}
	}
	verdict := "denied"
	if a.Allow {
		verdict = "allowed"
	}
	if o.output == "json" {
		err = escape.JSON(os.Stdout, struct {
			Verdict   string `json:"verdict"`
			Rule      string `json:"rule"`
			Detail    string `json:"detail"`
			Terminate bool   `json:"terminate"`
		}{verdict, a.Rule, a.Detail, a.Terminate})
	} else {
		_, err = fmt.Printf("%s by %s\n%s\n", verdict, a.Rule, a.Detail)
	}
	if err != nil {
		return err
	}
	if !a.Allow {
		return exit{exitDenied}
	}
	return nil
}

func newPolicyDiff() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what sandboxes reach by a policy that they did not by another",
		Long: `Say what becomes reachable, and what no longer is, between two policy files. The
policies are compared by their decisions, not by their text, for every
repository and agent that their scopes tell apart. The exit code is 3 if the
reach widens in anything, so that CI can ask for a person.`,
		Example: "  kick policy diff main/policy.yaml policy.yaml",
		Args:    args(cobra.ExactArgs(2)),
		RunE:    func(_ *cobra.Command, a []string) error { return policyDiffRun(a[0], a[1], output) },
	}
	addOutput(c, &output, "json")
	return c
}

func policyDiffRun(oldFile, newFile, output string) error {
	before, err := policy.Load(oldFile)
	if err != nil {
		return usageError{err}
	}
	after, err := policy.Load(newFile)
	if err != nil {
		return usageError{err}
	}
	wider, err := after.Widened(before)
	if err != nil {
		return usageError{err}
	}
	narrower, err := before.Widened(after)
	if err != nil {
		return usageError{err}
	}
	if output == "json" {
		err = escape.JSON(os.Stdout, struct {
			Widened  []policy.ReachChange `json:"widened"`
			Narrowed []policy.ReachChange `json:"narrowed"`
		}{append([]policy.ReachChange{}, wider...), append([]policy.ReachChange{}, narrower...)})
	} else {
		err = printReach(wider, narrower)
	}
	if err != nil {
		return err
	}
	if len(wider) > 0 {
		return exit{exitWidened}
	}
	return nil
}

func printReach(wider, narrower []policy.ReachChange) error {
	if len(wider)+len(narrower) == 0 {
		_, err := fmt.Println("the reach is the same")
		return err
	}
	return errors.Join(printChanges("+", wider), printChanges("-", narrower))
}

func printChanges(sign string, list []policy.ReachChange) error {
	for _, c := range list {
		line := fmt.Sprintf("%s %s (%s)", sign, c.What, c.Rule)
		if c.For != "" {
			line += " for " + c.For
		}
		if _, err := fmt.Println(line); err != nil {
			return err
		}
	}
	return nil
}

type compileOptions struct {
	*policyOptions
	to       string
	binaries []string
	cluster  policy.Cluster
}

func newPolicyCompile(of *policyOptions) *cobra.Command {
	o := &compileOptions{policyOptions: of, cluster: policy.DefaultCluster()}
	c := &cobra.Command{
		Use:   "compile --to openshell|networkpolicy",
		Short: "Write the egress rules in the form of another runtime",
		Long: `Write the egress rules as a policy of an OpenShell sandbox, with enforcement, or
as Kubernetes NetworkPolicies for a namespace whose pods reach the gateway and
nothing else. What the form cannot say is an error or a comment in it.`,
		Example: `  kick policy compile --to openshell --policy policy.yaml > sandbox-policy.yaml
  kick policy compile --to networkpolicy --policy policy.yaml | kubectl apply -f -`,
		Args: args(cobra.NoArgs),
		RunE: func(_ *cobra.Command, _ []string) error { return policyCompileRun(o) },
	}
	f := c.Flags()
	f.StringVar(&o.to, "to", "", "`form`: openshell or networkpolicy")
	f.StringVar(&o.repo, "repo", "", "`repository` as the policy's scopes may name it: owner/name, a URL or a path")
	f.StringVar(&o.agent, "agent", "", "agent's `name`")
	f.StringArrayVar(&o.binaries, "binary", nil, "openshell: real `path` of a program that may use the network; may be repeated (default: git, curl and interpreters of common images)")
	f.StringVar(&o.cluster.Sandboxes, "sandbox-namespace", o.cluster.Sandboxes, "networkpolicy: `namespace` of the sandboxes")
	f.StringVar(&o.cluster.Gateway, "gateway-namespace", o.cluster.Gateway, "networkpolicy: `namespace` of the gateway")
	f.Var(&o.cluster.Ports, "gateway-port", "networkpolicy: `ports` of the gateways, the first and the last, or one")
	return c
}

func policyCompileRun(o *compileOptions) error {
	o.output = "text"
	p, err := o.load()
	if err != nil {
		return err
	}
	out, err := o.compile(p.For(o.repo, o.agent).Egress)
	if err != nil {
		return usageError{err}
	}
	_, err = os.Stdout.Write(out)
	return err
}

func (o *compileOptions) compile(e policy.Egress) ([]byte, error) {
	switch o.to {
	case "openshell":
		binaries := o.binaries
		if len(binaries) == 0 {
			binaries = policy.OpenShellBinaries()
		}
		s, err := e.OpenShell(binaries)
		if err != nil {
			return nil, err
		}
		return s.YAML()
	case "networkpolicy":
		n, err := e.NetworkPolicies(o.cluster)
		if err != nil {
			return nil, err
		}
		return policy.NetworkPoliciesYAML(n)
	}
	return nil, fmt.Errorf("--to %q: want openshell or networkpolicy", o.to)
}
