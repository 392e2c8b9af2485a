package sandbox

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"

	"github.com/kickhq/kick/internal/resume"
)

// lineKeyFile is in the directory that a launcher has of its own.
const lineKeyFile = "line.key"

// lineKey reads the key from which those of all lines are derived. Of two
// processes that make it at once, the first wins.
func lineKey(dir string) ([]byte, error) {
	name := filepath.Join(dir, lineKeyFile)
	if key, err := os.ReadFile(name); err == nil && len(key) == resume.KeySize {
		return key, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return nil, err
	}
	key := make([]byte, resume.KeySize)
	_, _ = rand.Read(key) // never fails on Linux
	_, err = f.Write(key)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Link(f.Name(), name)
	}
	_ = os.Remove(f.Name()) // the first error says what is wrong
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.ReadFile(name)
}

// keyOfLine is the key of the line to one sandbox, by its runtime's own id of it.
func keyOfLine(key []byte, id string) []byte { return deriveKey(key, "line of "+id) }

// deriveKey makes a key of 32 bytes for one purpose out of another.
func deriveKey(key []byte, purpose string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(purpose))
	return m.Sum(nil)
}
