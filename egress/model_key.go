package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/smallfile"
	"github.com/kickhq/kick/policy"
)

// keySource reads a route's key where the operator keeps it. A variable and a
// file are read for each request; a command is run once, and again after the
// provider refused its key.
type keySource struct {
	env       string
	file      string
	command   []string
	lookupEnv func(string) (string, bool)

	mu   sync.Mutex
	last string   // what the command said; empty: to be asked
	used []string // every key that was sent
}

func newKeySource(m policy.Model, lookupEnv func(string) (string, bool)) *keySource {
	if lookupEnv == nil {
		lookupEnv = os.LookupEnv
	}
	return &keySource{env: m.KeyEnv, file: m.KeyFile, command: m.KeyCommand, lookupEnv: lookupEnv}
}

// maxKey bounds a key, in bytes: the longest that are in use are tokens of some
// 2 KiB.
const maxKey = 8 << 10

// minKey is what a value needs to be told from other text, in bytes.
const minKey = 8

// keyTime bounds a command that prints a key.
const keyTime = 30 * time.Second

// read returns the key, or an empty one if the route has none. Errors are the
// operator's to read and never have the key.
func (k *keySource) read(ctx context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, err := k.fetch(ctx)
	if err != nil || key == "" {
		return "", err
	}
	if !slices.Contains(k.used, key) {
		k.used = append(k.used, key)
	}
	return key, nil
}

func (k *keySource) fetch(ctx context.Context) (string, error) {
	switch {
	case k.env != "":
		v, ok := k.lookupEnv(k.env)
		if !ok {
			v = ""
		}
		return cleanKey("the variable "+k.env, v)
	case k.file != "":
		b, err := smallfile.Read(k.file, maxKey)
		if err != nil {
			return "", fmt.Errorf("read the key: %w", err)
		}
		return cleanKey(k.file, string(b))
	case len(k.command) > 0:
		if k.last != "" {
			return k.last, nil
		}
		out, err := k.run(ctx)
		if err != nil {
			return "", err
		}
		k.last, err = cleanKey("the output of "+k.command[0], out)
		return k.last, err
	}
	return "", nil
}

func (k *keySource) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.command[0], k.command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out cappedBuffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s for the key: %w", k.command[0], err)
	}
	return out.String(), nil
}

// cappedBuffer keeps what fits a key and a byte more, which tells that it is
// too long.
type cappedBuffer struct{ bytes.Buffer }

func (c *cappedBuffer) Write(p []byte) (int, error) {
	_, _ = c.Buffer.Write(p[:min(len(p), maxKey+1-c.Len())])
	return len(p), nil
}

// refused tells that the provider did not take a key.
func (k *keySource) refused(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last == key {
		k.last = ""
	}
}

// keys returns every key that was sent.
func (k *keySource) keys() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.used)
}

func cleanKey(where, s string) (string, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return "", fmt.Errorf("%s holds no key", where)
	case len(s) < minKey || s == credential.DummyKey:
		return "", fmt.Errorf("%s holds what no key is; leave the key out if the provider needs none", where)
	case len(s) > maxKey:
		return "", fmt.Errorf("%s is longer than %d bytes, which no key is", where, maxKey)
	case strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) >= 0:
		return "", errors.New(where + " has blanks or other characters that no key has")
	}
	return s, nil
}

// ReadKeys reads the key of each model route, by the route's name, so that its
// value can be kept out of the sandbox. Routes whose key cannot be read are
// left out, and told in the error.
func ReadKeys(ctx context.Context, e policy.Egress) (map[string]string, error) {
	keys := map[string]string{}
	var errs []error
	for _, m := range e.Models {
		m = m.Filled()
		key, err := newKeySource(m, nil).read(ctx)
		if err != nil {
			errs = append(errs, fmt.Errorf("model route %s: %w", m.Route, err))
		} else if key != "" {
			keys["model route "+m.Route] = key
		}
	}
	return keys, errors.Join(errs...)
}
