package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed shim
var carried embed.FS

// loadShim returns the program that is the first process of every sandbox: the
// one that kick carries, or, in a build without one (`go install`), the one
// that lies beside kick.
func loadShim() ([]byte, error) {
	b, err := carried.ReadFile("shim/kick-shim")
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Join(filepath.Dir(self), "kick-shim")
	b, err = os.ReadFile(beside)
	if err != nil {
		return nil, fmt.Errorf("this kick was built without its shim and there is none at %s: build with `make build`, or run `go install github.com/kickhq/kick/cmd/kick-shim@VERSION` too", beside)
	}
	return b, nil
}
