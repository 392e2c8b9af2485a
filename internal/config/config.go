// Package config reads kick.yaml: which agents run in a sandbox, what they run
// and what they are held to. The shape is that of Hive's agent_sandbox and
// agents.NAME.sandbox blocks, and a documented Hive block loads as it stands.
//
// Reading is strict. An unknown key, a wrong type, a duplicate, a credential,
// an absurd number: each is a Problem with its line, its column and what to do,
// and all problems of a file are reported together.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/internal/smallfile"
)

// FileName is the name that Find looks for.
const FileName = "kick.yaml"

// MaxFileSize is the size, in bytes, above which a file is refused: far more
// than people write, and little enough to read at once.
const MaxFileSize = 1 << 20

// Config is one kick.yaml that was found to be right.
type Config struct {
	path   string
	global sandboxBlock
	agents []agentBlock // in the order of the file
}

// Load reads and checks the file. An error that is Problems lists everything
// that is wrong with it.
func Load(path string) (*Config, error) {
	data, err := smallfile.Read(path, MaxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration: %w: create the file, or name another one", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse checks data as the content of a file of that name, which is only used
// in messages.
func Parse(path string, data []byte) (*Config, error) {
	d := &decoder{file: path}
	c := &Config{path: path}
	if root := d.parse(data); root != nil {
		decodeMapping(d, place{node: root}, c, topFields)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Path returns the name under which the file was loaded.
func (c *Config) Path() string { return c.path }

// Names returns the names of all agents in the order of the file.
func (c *Config) Names() []string {
	names := make([]string, len(c.agents))
	for i, a := range c.agents {
		names[i] = a.name
	}
	return names
}

// Find returns the kick.yaml that governs dir: the nearest one upward from dir
// to the top of its git repository. Outside a repository only dir itself is
// looked at, so that nobody's file in a shared parent directory counts. The
// error is fs.ErrNotExist when there is none.
func Find(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", FileName, err)
	}
	top := repositoryTop(dir)
	for d := dir; ; d = filepath.Dir(d) {
		path := filepath.Join(d, FileName)
		_, err := os.Stat(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find %s: %w", FileName, err)
		}
		if d == top {
			return "", fmt.Errorf("find %s: none from %s up to %s: %w", FileName, dir, top, fs.ErrNotExist)
		}
	}
}

// repositoryTop returns the nearest directory upward from dir that holds a
// .git, or dir itself.
func repositoryTop(dir string) string {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			return dir
		}
	}
}
