package main

import (
	"io/fs"
	"os"
	"path"
)

// maxDepth is how deep a tree is opened up, as the host does it.
const maxDepth = 256

// openUp lets this user read all that an agent took that right away from, as the
// host does where it has the workspace too. Nobody writes to the tree any more.
// What cannot be changed stays; the collector says what it cannot read.
func openUp(dir string) {
	if info, err := os.Lstat(dir); err == nil && info.IsDir() && info.Mode().Perm()&0o700 != 0o700 {
		_ = os.Chmod(dir, info.Mode()|0o700)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	openBelow(root, ".", 0)
}

func openBelow(root *os.Root, dir string, depth int) {
	d, err := root.Open(dir)
	if err != nil || depth > maxDepth {
		return
	}
	entries, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		info, err := root.Lstat(name)
		if err != nil {
			continue
		}
		need := map[fs.FileMode]fs.FileMode{fs.ModeDir: 0o700, 0: 0o400}[info.Mode().Type()]
		if info.Mode().Perm()&need != need {
			_ = root.Chmod(name, info.Mode().Perm()|need) // it is no link: see above
		}
		if info.IsDir() {
			openBelow(root, name, depth+1)
		}
	}
}
