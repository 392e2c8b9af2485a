package pushbroker

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// endsAt reports whether every ref of a mirror names oid: then the mirror,
// which holds its branch's history and nothing else, knows nothing outside of
// what oid reaches. False stands for not known, too.
func endsAt(mirror, oid string) bool {
	found := false
	other := errors.New("another id")
	check := func(id string) error {
		if id != oid {
			return other
		}
		found = true
		return nil
	}
	err := filepath.WalkDir(filepath.Join(mirror, "refs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return check(strings.TrimSuffix(string(b), "\n"))
	})
	if err != nil {
		return false
	}
	f, err := os.Open(filepath.Join(mirror, "packed-refs"))
	if errors.Is(err, fs.ErrNotExist) {
		return found
	}
	if err != nil {
		return false
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := s.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		// A loose ref stands before a packed one; an older packed one makes
		// the answer "not known", which costs time and nothing else.
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "^"), " ")
		if check(id) != nil {
			return false
		}
	}
	return s.Err() == nil && found
}
