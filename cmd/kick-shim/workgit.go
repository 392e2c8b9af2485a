package main

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
	"syscall"
	"time"

	"github.com/kickhq/kick/internal/frame"
)

// systemPath is where git is looked for, before the PATH of the command.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findGit returns the path of git. Directories in the workspace and relative
// ones are not searched: what lies there may be the agent's.
func findGit(cfg frame.Config) (string, error) {
	dirs := filepath.SplitList(systemPath)
	for _, kv := range cfg.Env {
		if list, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = append(dirs, filepath.SplitList(list)...)
		}
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || within(cfg.WorkDir, dir) {
			continue
		}
		p := filepath.Join(dir, "git")
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", errors.New("git is not installed in the sandbox: install it in the image, or in /usr of the host")
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// gitEnv is the environment of every git, from empty.
func gitEnv() []string {
	return []string{
		"PATH=" + systemPath,
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ALLOW_PROTOCOL=",
		"GIT_PAGER=cat",
		"GIT_ADVICE=0",
	}
}

// runner runs one program with one environment.
type runner struct {
	git string
	env []string
	dir string
	max time.Duration // for one run
}

// command prepares git. Ending ctx kills its whole process group.
func (r runner) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.git, args...)
	cmd.Env, cmd.Dir = r.env, r.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// run runs git to its end and returns its output, at most 64 MiB of it.
func (r runner) run(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	out := &capped{max: 64 << 20}
	err := r.stream(ctx, in, out, args...)
	return out.Bytes(), err
}

// stream runs git to its end with its output to out. The error has git's words.
func (r runner) stream(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.max, fmt.Errorf("%w after %v", errKilled, r.max))
	defer cancel()
	cmd := r.command(ctx, args...)
	words := &capped{max: 2 << 10, drop: true}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, words
	return gitError(ctx, cmd.Run(), args, words)
}

// gitError adds git's words to err. They may hold text of the repository.
func gitError(ctx context.Context, err error, args []string, words *capped) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if s := strings.TrimSpace(words.String()); s != "" {
		err = errors.New(s)
	}
	return fmt.Errorf("git %s: %w", subcommand(args), err)
}

// errKilled is a git that took too long.
var errKilled = errors.New("took too long and was killed")

func subcommand(args []string) string {
	for i := 0; i < len(args); i++ {
		if args[i] == "-c" {
			i++
			continue
		}
		return args[i]
	}
	return ""
}

// capped is a buffer with a limit: more is an error, or dropped.
type capped struct {
	bytes.Buffer
	max  int
	drop bool
}

func (c *capped) Write(p []byte) (int, error) {
	n := len(p)
	if room := c.max - c.Len(); n > room {
		if !c.drop {
			return 0, fmt.Errorf("git's output exceeds %d bytes", c.max)
		}
		p = p[:room]
	}
	c.Buffer.Write(p)
	return n, nil
}

// readSmall reads a regular file of at most limit bytes. It follows no link at
// the end of the path and does not block on a FIFO.
func readSmall(root *os.Root, name string, limit int64) ([]byte, error) {
	f, _, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, nil
}

// openRegular opens a regular file that is not a link itself.
func openRegular(root *os.Root, name string) (*os.File, os.FileInfo, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}
