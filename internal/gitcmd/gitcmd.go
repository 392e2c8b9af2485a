// Package gitcmd runs the host's git as a child process whose environment is
// built from empty: no system or user configuration, no hooks, no pager, no
// prompt, no replace refs, no lazy fetch, and only the protocols that were
// named. It is used on repositories that kick itself made (mirrors and
// quarantines) and on remotes that the operator named, never on a directory
// that an agent could write.
package gitcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Git runs git commands for one repository.
type Git struct {
	// Dir is the repository's git directory, passed as --git-dir, and the
	// working directory of the child. Empty: none (ls-remote, config).
	Dir string
	// Protocols are the transports that may be used, as in
	// GIT_ALLOW_PROTOCOL ("https", "file:https:ssh"). Empty: none.
	Protocols string
	// Config are further "key=value" settings, passed with -c.
	Config []string
	// Env are further environment entries, e.g. SSH_AUTH_SOCK for an ssh remote.
	Env []string
	// ExtraFiles are inherited as descriptors 3 and up.
	ExtraFiles []*os.File
	// Limits of the child. Zero fields: not limited.
	Limits Limits
}

// Limits are resource limits of one git child and its descendants, each. No
// git child dumps core, whatever they are.
type Limits struct {
	CPU      time.Duration // RLIMIT_CPU, rounded up to seconds
	Memory   uint64        // RLIMIT_AS in bytes
	FileSize uint64        // RLIMIT_FSIZE in bytes
	Alone    bool          // it starts no process or thread (RLIMIT_NPROC; does not bind root)
	Deadline time.Duration // wall time; the whole process group is killed
}

// Error is a git command that failed.
type Error struct {
	Args     []string // subcommand and arguments
	ExitCode int      // -1 when it did not exit by itself
	Stderr   string   // the last 8 KiB, trimmed; may hold text of a remote: escape before showing
	Err      error
}

func (e *Error) Error() string {
	msg := e.Stderr
	if msg == "" {
		msg = e.Err.Error()
	}
	args := e.Args
	for len(args) > 2 && args[0] == "-c" {
		args = args[2:]
	}
	return fmt.Sprintf("git %s: %s", args[0], msg)
}

func (e *Error) Unwrap() error { return e.Err }

// ErrMissing is a host without git.
var ErrMissing = errors.New("git is not installed or not in PATH: install git 2.39 or newer, with its security updates")

var gitPath = sync.OnceValues(func() (string, error) {
	p, err := exec.LookPath("git")
	if err != nil {
		return "", ErrMissing
	}
	return filepath.Abs(p)
})

// Path returns the absolute path of the host's git.
func Path() (string, error) { return gitPath() }

// Environ returns the environment that every git child gets.
func (g Git) Environ() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=",
		"SSH_ASKPASS=",
		"GIT_ALLOW_PROTOCOL=" + g.Protocols,
		"GIT_ADVICE=0",
	}
	if g.Dir == "" {
		env = append(env, noRepository)
	}
	return append(env, g.Env...)
}

// noRepository keeps git from finding a repository around its working
// directory, whose configuration would have a say.
const noRepository = "GIT_DIR=/nonexistent"

var baseConfig = []string{
	"core.hooksPath=/dev/null",
	"core.fsmonitor=false",
	"core.commitGraph=false",
	"core.bigFileThreshold=1m", // a 400 MB blob then costs 4 MB of memory
	"credential.helper=",
	"gc.auto=0",
	"maintenance.auto=false",
	"http.followRedirects=false",
	"protocol.version=2",
}

// Command prepares git with args. Killing it kills its whole process group.
func (g Git) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := gitPath()
	if err != nil {
		return nil, err
	}
	var full []string
	if g.Dir != "" {
		full = append(full, "--git-dir="+g.Dir)
	}
	for _, c := range append(append([]string{}, baseConfig...), g.Config...) {
		full = append(full, "-c", c)
	}
	full = append(full, args...)
	cmd := exec.CommandContext(ctx, path, full...)
	cmd.Env = g.Environ()
	cmd.Dir = g.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.ExtraFiles = g.ExtraFiles
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd, nil
}

// Run runs git with stdin from in (may be nil) and stdout to out (may be nil).
func (g Git) Run(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	if g.Limits.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, g.Limits.Deadline)
		defer cancel()
	}
	cmd, err := g.Command(ctx, args...)
	if err != nil {
		return err
	}
	stderr := &tail{max: 8 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, stderr
	if err := g.start(cmd); err != nil {
		return &Error{Args: args, ExitCode: -1, Err: err}
	}
	err = cmd.Wait()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	}
	return &Error{Args: args, ExitCode: cmd.ProcessState.ExitCode(), Stderr: strings.TrimSpace(stderr.String()), Err: err}
}

// coreLimit is one byte, which makes no core file and, unlike none, also keeps
// the kernel from piping the dump to a handler (core(5)).
func coreLimit() uint64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return 0
	}
	return min(1, l.Max)
}

// start starts cmd with the limits in force before git runs: Linux applies
// prlimit to a live process, so the child is limited from the parent, and a
// child that reads its data from stdin has not seen any yet.
func (g Git) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	set := func(resource int, wanted bool, v uint64) error {
		if !wanted {
			return nil
		}
		lim := unix.Rlimit{Cur: v, Max: v}
		err := unix.Prlimit(cmd.Process.Pid, resource, &lim, nil)
		if errors.Is(err, unix.ESRCH) {
			return nil // already ended
		}
		return err
	}
	secs := uint64((g.Limits.CPU + time.Second - 1) / time.Second)
	err := errors.Join(
		set(unix.RLIMIT_CORE, true, coreLimit()),
		set(unix.RLIMIT_CPU, secs > 0, secs),
		set(unix.RLIMIT_AS, g.Limits.Memory > 0, g.Limits.Memory),
		set(unix.RLIMIT_FSIZE, g.Limits.FileSize > 0, g.Limits.FileSize),
		set(unix.RLIMIT_NPROC, g.Limits.Alone, 1),
	)
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		return fmt.Errorf("limit git: %w", err)
	}
	return nil
}

// Output runs git and returns its stdout, at most 64 MiB of it.
func (g Git) Output(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	out := &capped{max: 64 << 20}
	err := g.Run(ctx, in, out, args...)
	if err == nil && out.over {
		err = &Error{Args: args, ExitCode: -1, Err: errors.New("output exceeds 64 MiB")}
	}
	return out.Bytes(), err
}

// Line is Output for a command that prints one line.
func (g Git) Line(ctx context.Context, args ...string) (string, error) {
	out, err := g.Output(ctx, nil, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

type capped struct {
	bytes.Buffer
	max  int
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > c.max {
		c.over = true
		return 0, errors.New("output too large")
	}
	return c.Buffer.Write(p)
}

type tail struct {
	max int
	b   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > t.max {
		t.b = append(t.b[:0], t.b[len(t.b)-t.max:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.b) }
