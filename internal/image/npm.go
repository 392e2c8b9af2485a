package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kickhq/kick/internal/agents"
)

// nodejs is Node.js for agents that are scripts, and for who asks for it. Debian
// 12's own is too old for them.
var nodejs = agents.NPM{Spec: "node-linux-{cpu}@{version}", Program: "bin/node"}

const nodeVersion = "24.22.3"

// npmPackage is a package whose program becomes a command.
type npmPackage struct {
	download
	command, spec, program string
	script                 bool
}

// fetchNPM downloads a package.
func (b *builder) fetchNPM(ctx context.Context, command string, n agents.NPM, version string) error {
	spec, program, err := n.For(version, runtime.GOARCH)
	if err != nil {
		return &InputError{fmt.Sprintf("%s: %v", command, err)}
	}
	file, err := npmPack(ctx, filepath.Join(b.Cache, "npm"), spec)
	if err != nil {
		return err
	}
	sum, err := digest(file)
	if err != nil {
		return err
	}
	b.npms = append(b.npms, npmPackage{download{file, sum}, command, spec, program, n.Script})
	b.Step(command, spec)
	return nil
}

// npm makes a layer of a package. None of its scripts runs, and nothing that it
// depends on is installed: the packages of agents that kick knows bring all that
// they need.
func (b *builder) npm(p npmPackage) error {
	t, err := b.layer()
	if err != nil {
		return err
	}
	dir := "opt/" + p.command
	if err := t.npm(p.file, dir, p.program); err != nil {
		return fmt.Errorf("npm package %s: %w", p.spec, err)
	}
	link := "usr/local/bin/" + p.command
	if p.script {
		return t.file(link, 0o755, strings.NewReader(fmt.Sprintf("#!/bin/sh\nexec node /%s/%s \"$@\"\n", dir, p.program)))
	}
	return t.symlink(link, "/"+dir+"/"+p.program)
}

// npm adds the files of a package, which lie below one directory in it.
// Everybody may read them and run the program.
func (t *tree) npm(file, dir, program string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return err
	}
	in := tar.NewReader(z)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		_, name, below := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !below {
			continue // npm leaves out all else, too
		}
		mode := h.Mode | 0o444
		if name == program || mode&0o111 != 0 {
			mode |= 0o111
		}
		if err := t.file(dir+"/"+name, mode, in); err != nil {
			return err
		}
	}
	if !t.has(dir + "/" + program) {
		return fmt.Errorf("it has no %s: is its version another one than kick knows?", program)
	}
	return nil
}

// npmPack has npm download a package, unless it is there, and returns its file.
// A version of a package never changes on npm.
func npmPack(ctx context.Context, cache, spec string) (string, error) {
	file := filepath.Join(cache, packFile(spec))
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		return "", &InputError{"this host has no npm, which downloads agents and Node.js: install it, or put them into a root file system and give that with --from"}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	name, err := output(exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", tmp, spec))
	if err == nil {
		err = os.Rename(filepath.Join(tmp, filepath.Base(strings.TrimSpace(name))), file)
	}
	return file, errors.Join(err, os.RemoveAll(tmp))
}

// packFile is the file of a package, as npm itself names it.
func packFile(spec string) string {
	return strings.NewReplacer("/", "-", "@", "-").Replace(strings.TrimPrefix(spec, "@")) + ".tgz"
}
