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

// openShim opens the program that is the first process of every sandbox: the
// one that kick carries, or, in a build without one (`go install`), the one
// that lies beside kick.
func openShim() (fs.File, error) {
	f, err := carried.Open("shim/kick-shim")
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	beside := filepath.Join(filepath.Dir(self), "kick-shim")
	if f, err = os.Open(beside); err != nil {
		return nil, fmt.Errorf("this kick was built without its shim and there is none at %s: build with `make build`, or run `go install github.com/kickhq/kick/cmd/kick-shim@VERSION` too", beside)
	}
	return f, nil
}
