package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/policy"
)

// policyOptions are the flags of the commands that look at a policy.
type policyOptions struct {
	path, repo, agent, output string
}

func newPolicy(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain the policy: what may be pushed and reached",
		Args:  args(known),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	o := &policyOptions{}
	c.PersistentFlags().StringVar(&o.path, "policy", "", "policy `file` (default: that of --agent in kick.yaml, else built in)")
	c.AddCommand(newPolicyCheck(o), newPolicyCI(g, o), newPolicyCheckFile(), newPolicyCompile(o), newPolicyDiff(), newPolicyExplain(o), newPolicyShow(o), newPolicySchema())
	return c
}

// flags adds those that say for whom.
func (o *policyOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.repo, "repo", "", "`repository` as the policy's scopes may name it: owner/name, a URL or a path")
	c.Flags().StringVar(&o.agent, "agent", "", "agent's `name`")
	addOutput(c, &o.output, "json")
}

func (o *policyOptions) load() (*policy.Policy, error) {
	if o.repo == "." || strings.HasPrefix(o.repo, "./") || strings.HasPrefix(o.repo, "../") {
		abs, err := filepath.Abs(o.repo) // as kick run knows it
		if err != nil {
			return nil, err
		}
		o.repo = abs
	}
	p, err := request.AgentPolicy(o.path, o.agent)
	if err != nil {
		return nil, usageError{err}
	}
	return p, nil
}

func newPolicyCheckFile() *cobra.Command {
	return &cobra.Command{
		Use:   "check-file FILE",
		Short: "Check a policy file: every mistake with its line and what to do",
		Args:  args(one),
		RunE: func(_ *cobra.Command, a []string) error {
			p, err := policy.Load(a[0])
			if err != nil {
				return usageError{err}
			}
			for _, w := range p.Warnings(time.Now()) {
				fmt.Printf("warning: %s\n", w)
			}
			fmt.Printf("%s: ok\n", a[0])
			return nil
		},
	}
}

type explainOptions struct {
	*policyOptions
	added, deleted   bool
	oldMode, newMode string
	target           string
}

func newPolicyExplain(of *policyOptions) *cobra.Command {
	o := &explainOptions{policyOptions: of}
	c := &cobra.Command{
		Use:   "explain PATH",
		Short: "Say which rule decides about a path, and why",
		Long: `Say what follows from a change of PATH, a path in the repository: which rule
decides, which others match, which exceptions and scopes of the policy apply,
and what one push may have. Without further flags, the path is looked at as
added, changed and deleted.`,
		Example: `  kick policy explain .github/workflows/ci.yml
  kick policy explain go.mod --policy policy.yaml --repo acme/api --agent fixer
  kick policy explain tool.sh --new-mode 100755
  kick policy explain current --new-mode 120000 --target ../other/dir`,
		Args: args(one),
		RunE: func(_ *cobra.Command, a []string) error { return explainRun(o, a[0]) },
	}
	of.flags(c)
	f := c.Flags()
	f.BoolVar(&o.added, "added", false, "the path is new")
	f.BoolVar(&o.deleted, "deleted", false, "the path is deleted")
	f.StringVar(&o.oldMode, "old-mode", "", "git `mode` before: 100644, 100755, 120000 (link) or 160000 (submodule)")
	f.StringVar(&o.newMode, "new-mode", "", "git `mode` after")
	f.StringVar(&o.target, "target", "", "what a link (mode 120000) points `to`")
	return c
}

func explainRun(o *explainOptions, name string) error {
	p, err := o.load()
	if err != nil {
		return err
	}
	changes, err := o.changes(name)
	if err != nil {
		return err
	}
	x := p.Explain(o.repo, o.agent, changes, time.Now())
	if o.output == "json" {
		return escape.JSON(os.Stdout, x)
	}
	ui.New(os.Stdout).Explanation(x)
	return nil
}

// changes are those that the flags ask about.
func (o *explainOptions) changes(name string) ([]policy.Change, error) {
	if clean := path.Clean(name); name == "" || path.IsAbs(name) || clean != name || clean == ".." || strings.HasPrefix(clean, "../") || clean == "." {
		return nil, usagef("%q is no path of a file in a repository: write it from the top of the repository, as git ls-files does", name)
	}
	before, err := mode("--old-mode", o.oldMode)
	if err != nil {
		return nil, err
	}
	after, err := mode("--new-mode", o.newMode)
	if err != nil {
		return nil, err
	}
	switch {
	case o.added && (o.deleted || before != 0), o.deleted && after != 0:
		return nil, usagef("--added goes with neither --deleted nor --old-mode, and --deleted not with --new-mode")
	case o.target != "" && after != 0o120000:
		return nil, usagef("--target is what a link points to: add --new-mode 120000")
	}
	var out []policy.Change
	for _, c := range policy.ExplainChanges(name) {
		kind := [2]bool{c.Old != 0, c.New != 0}
		if before != 0 && kind[0] {
			c.Old = before
		}
		if after != 0 && kind[1] {
			c.New = after
		}
		c.Target = o.target
		switch {
		case o.added && kind[0], o.deleted && kind[1]:
		case before != 0 && !kind[0], after != 0 && !kind[1]:
		default:
			out = append(out, c)
		}
	}
	return out, nil
}

func mode(flag, text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	m, err := strconv.ParseUint(text, 8, 32)
	if err != nil || len(text) != 6 || m == 0 {
		return 0, usagef("%s %s: want six octal digits as git writes them, such as 100644", flag, text)
	}
	return uint32(m), nil
}

func newPolicyShow(o *policyOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the whole policy as it holds for a repository and an agent",
		Args:  args(none),
		RunE:  func(*cobra.Command, []string) error { return policyShowRun(o) },
	}
	o.flags(c)
	return c
}

func policyShowRun(o *policyOptions) error {
	p, err := o.load()
	if err != nil {
		return err
	}
	q := p.For(o.repo, o.agent)
	if o.output == "json" {
		return escape.JSON(os.Stdout, struct {
			File   string           `json:"file"`
			Digest string           `json:"digest"`
			Rules  []policy.RuleRow `json:"rules"`
			Policy *policy.Policy   `json:"policy"`
		}{p.Name(), p.Digest(), q.Table(), q})
	}
	ui.New(os.Stdout).PolicyTable(q.Table(), q)
	return nil
}

func newPolicySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy file",
		Args:  args(none),
		RunE: func(*cobra.Command, []string) error {
			_, err := os.Stdout.Write(policy.Schema)
			return err
		},
	}
}
