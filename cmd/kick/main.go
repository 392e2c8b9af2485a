// Command kick runs an untrusted coding agent on a task, in a sandbox that
// holds no credential, and turns its commits into a pull request.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/request"
	"github.com/kickhq/kick/internal/spelling"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/pushbroker"
)

// version is set by the build.
var version = "dev"

func main() {
	if err := pushbroker.NoCoreDumps(); err != nil {
		fmt.Fprintln(os.Stderr, "kick:", err)
		os.Exit(manager.Internal.ExitCode())
	}
	// Collecting garbage cost a tenth of a kick's time when it began at 4 MB: a
	// usual kick ends before 20. One that needs more goes on as usual.
	debug.SetGCPercent(400)
	runtime.AddCleanup(new([64]byte), func(percent int) { debug.SetGCPercent(percent) }, 100)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

// exit is an error that only carries an exit code: what there is to say has
// been said.
type exit struct{ code int }

func (e exit) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usageError is wrong usage or configuration.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	var e exit
	var u usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.code
	}
	fmt.Fprintln(os.Stderr, "kick:", err)
	if errors.As(err, &u) {
		return manager.Usage.ExitCode()
	}
	return manager.Internal.ExitCode()
}

// globals are the flags of every command.
type globals struct {
	stateDir string
}

func (g *globals) state() (*manager.State, error) {
	dir := g.stateDir
	if dir == "" {
		var err error
		if dir, err = manager.DefaultStateDir(); err != nil {
			return nil, usageError{err}
		}
	}
	s, err := manager.OpenState(dir)
	if err != nil {
		return nil, usageError{err}
	}
	return s, nil
}

// find opens the state and resolves the name of one kick in it.
func (g *globals) find(name string) (*manager.State, string, error) {
	state, err := g.state()
	if err != nil {
		return nil, "", err
	}
	id, err := state.Find(name)
	if err != nil {
		return nil, "", usageError{err}
	}
	return state, id, nil
}

// completeKicks offers the ids of kicks to the shell, the newest first.
func (g *globals) completeKicks(_ *cobra.Command, a []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const keep = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	if len(a) > 0 {
		return nil, keep
	}
	state, err := g.state()
	if err != nil {
		return nil, keep
	}
	list, err := state.List()
	if err != nil {
		return nil, keep
	}
	ids := []cobra.Completion{"last"}
	for _, k := range list {
		ids = append(ids, cobra.CompletionWithDesc(k.ID, fmt.Sprintf("%s by %s", k.Status, k.Agent)))
	}
	return ids, keep
}

// completeWords offers the values of a flag to the shell.
func completeWords(c *cobra.Command, flag string, words ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

// manager opens the state and every runtime. Repositories of dead kicks are
// reached by what the environment says.
func (g *globals) manager() (*manager.Manager, error) {
	state, err := g.state()
	if err != nil {
		return nil, err
	}
	shim, err := openShim()
	if err != nil {
		return nil, err
	}
	defer func() { _ = shim.Close() }() // only read
	m, err := manager.New(state, shim, version)
	if err != nil {
		return nil, err
	}
	m.Target = request.TargetFromEnvironment
	return m, nil
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "kick",
		Short: "Run an untrusted coding agent and get a pull request",
		Long: `kick runs any coding agent on a task, in a sandbox that holds no credential
and has no network but a gateway, and turns its commits into a pull request
through a push broker that trusts nothing that the sandbox wrote.

In a git checkout, this is the whole of it:

  kick run -p "fix the flaky test" -- my-agent --prompt-file .hive/kick-prompt.txt`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          args(known),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("kick {{.Version}}\n")
	root.PersistentFlags().StringVar(&g.stateDir, "state-dir", "", "`directory` of kicks, mirrors and kept work (default $XDG_STATE_HOME/kick, else ~/.local/state/kick)")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w\nRun `%s --help` for the flags.", err, c.CommandPath())
	})
	root.AddGroup(
		&cobra.Group{ID: "kick", Title: "Kicks:"},
		&cobra.Group{ID: "host", Title: "This host:"},
	)
	for _, c := range []*cobra.Command{newRun(g), newLs(g), newShow(g), newLogs(g), newDiff(g), newSalvage(g), newInspect(g)} {
		c.GroupID = "kick"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{newDoctor(g), newAgents(), newConfig(g), newPolicy(g), newGC(g), newImage(), newManifests(g), newDemo(g), newVersion()} {
		c.GroupID = "host"
		root.AddCommand(c)
	}
	// Cobra's own two commands show their help for a word that they do not know.
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = args(func(c *cobra.Command, a []string) error {
				found, rest, err := c.Root().Find(a)
				if err != nil {
					return err
				}
				return known(found, rest)
			})
		case "completion":
			c.Args = args(known)
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

// args wraps a check of positional arguments so that its error is a usage
// error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if err := check(c, a); err != nil {
			return usagef("%w\nUsage: %s", err, c.UseLine())
		}
		return nil
	}
}

// one takes the argument that the command's usage names.
func one(c *cobra.Command, a []string) error {
	if len(a) == 1 {
		return nil
	}
	_, use, _ := strings.Cut(c.Use, " ")
	return fmt.Errorf("%s takes one %s, and there are %d arguments", c.CommandPath(), use, len(a))
}

func none(c *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no argument, and there is %q", c.CommandPath(), a[0])
}

// known refuses a word that is no command, and names the ones that are near.
func known(c *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	if near := spelling.Nearest(a[0], names); near != "" {
		return fmt.Errorf("unknown command %q: did you mean %s?", a[0], near)
	}
	return fmt.Errorf("unknown command %q: `%s --help` lists the commands", a[0], c.CommandPath())
}
