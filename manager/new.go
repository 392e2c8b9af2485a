package manager

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/sandbox"
)

// New returns a manager with every runtime that this kick has. shim is the
// program cmd/kick-shim.
func New(state *State, shim io.Reader, version string) (*Manager, error) {
	embedded, err := NewEmbedded(shim)
	if err != nil {
		return nil, err
	}
	return &Manager{
		State:     state,
		Launchers: map[string]sandbox.Launcher{"embedded": embedded},
		Version:   version,
	}, nil
}

// NewEmbedded returns the embedded launcher.
func NewEmbedded(shim io.Reader) (*sandbox.Embedded, error) {
	return sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: shim})
}

// fingerprintKey returns the key under which findings get their fingerprints.
// It lives with the state, since fingerprints in a policy file name findings
// across kicks.
func (s *State) fingerprintKey() ([]byte, error) {
	const size = 32
	path := filepath.Join(s.Dir, "fingerprint.key")
	key, err := os.ReadFile(path)
	if err == nil && len(key) == size {
		return key, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	key = make([]byte, size)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	tmp, err := os.CreateTemp(s.Dir, "fingerprint-*")
	if err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // a leftover holds a key that nothing uses
	_, werr := tmp.Write(key)
	if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	// Of two processes that make it at once, the first wins.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	return os.ReadFile(path)
}
