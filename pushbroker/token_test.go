package pushbroker

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// TestTokenStaysHidden stops a push in the middle, in the remote's hook, and
// looks for the token in every process's arguments and environment; after the
// push it looks in the files.
func TestTokenStaysHidden(t *testing.T) {
	t.Parallel()
	s := newStage(t, githubtest.Options{LongTokens: true}, githubtest.RepoOptions{}, oneFile)
	started, goOn := filepath.Join(s.dir, "started"), filepath.Join(s.dir, "go-on")
	for _, fifo := range []string{started, goOn} {
		s.must(unix.Mkfifo(fifo, 0o600))
	}
	s.must(os.WriteFile(filepath.Join(s.repo.Dir, "hooks", "pre-receive"), []byte("#!/bin/sh\necho >"+started+"\nread -r x <"+goOn+"\n"), 0o755))
	var journal strings.Builder
	s.req.Journal = func(event string, fields map[string]string) error {
		for k, v := range fields {
			journal.WriteString(event + " " + k + "=" + v + "\n")
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, err := Publish(t.Context(), s.req)
		done <- err
	}()
	if _, err := os.ReadFile(started); err != nil { // until the hook runs
		t.Fatal(err)
	}
	children := s.lookAtProcesses()
	s.must(os.WriteFile(goOn, []byte("\n"), 0o600))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if children < 2 {
		t.Errorf("%d git children of this process were looked at, want git push and its helper at least", children)
	}
	s.silent("the journal", journal.String())
	for _, dir := range []string{s.req.Quarantine.Dir, s.mirror, s.repo.Dir} {
		s.must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(path)
			s.silent(path, string(b))
			return err
		}))
	}
	if len(s.tokens) < 2 {
		t.Errorf("only %d tokens were seen on the wire", len(s.tokens))
	}
}

// lookAtProcesses searches all processes, and returns how many of them are git
// pushing for this test.
func (s *stage) lookAtProcesses() (children int) {
	s.t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	s.must(err)
	for _, p := range procs {
		cmdline, err := os.ReadFile(p + "/cmdline")
		if err != nil {
			continue // gone, or not ours
		}
		environ, err := os.ReadFile(p + "/environ")
		if err != nil {
			environ = nil
		}
		if p != "/proc/"+strconv.Itoa(os.Getpid()) {
			s.silent(p+"/cmdline", string(cmdline))
			s.silent(p+"/environ", string(environ))
			for token := range s.tokens {
				basic := base64.StdEncoding.EncodeToString([]byte(githubapp.GitUser + ":" + token))
				if strings.Contains(string(environ), basic[40:80]) {
					s.t.Errorf("%s/environ holds a token in base64", p)
				}
			}
		}
		if strings.Contains(string(cmdline), s.req.Quarantine.Dir) && strings.Contains(string(cmdline), "push") || strings.Contains(string(cmdline), "remote-http") && strings.Contains(string(cmdline), s.hub.URL()) {
			children++
			limits, err := os.ReadFile(p + "/limits")
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(limits)) {
				if f := strings.Fields(line); strings.HasPrefix(line, "Max core file size") && f[4] != "1" && f[4] != "0" {
					s.t.Errorf("%s may dump core: %s", cmdline, line)
				}
			}
		}
	}
	return children
}

func TestTokenIsOneWord(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"a\nhost=evil.example", "a b", "a\x00", strings.Repeat("a", 5000), "é"} {
		if _, err := newRemoteGit(Target{Protocol: "https", Host: "github.com"}, githubapp.UserToken(value)); err == nil {
			t.Errorf("a token of %d bytes was taken", len(value))
		} else if strings.Contains(err.Error(), "evil") {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

func TestNoCoreDumps(t *testing.T) {
	var before, after unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_CORE, &before), NoCoreDumps(), unix.Getrlimit(unix.RLIMIT_CORE, &after)); err != nil {
		t.Fatal(err)
	}
	if after.Cur > 1 || after.Max != before.Max {
		t.Errorf("the limit was %+v and is %+v", before, after)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &before); err != nil {
		t.Error(err)
	}
}
