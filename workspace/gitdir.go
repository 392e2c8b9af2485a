package workspace

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// gitDir is a git directory as kick writes it, without git. Files are written
// through os.Root, so that nothing is followed out of it.
type gitDir struct {
	config     string
	branch     string
	packedRefs string // content; empty: no such file
	looseRef   string // id in refs/heads/<branch>; empty: no such file
	alternates string // object directory to borrow from; empty: none
	exclude    string // patterns of info/exclude
	headOf     string // a remote's name whose HEAD is branch; empty: none
}

// write makes the directory name in root. Modes are set whatever the umask
// is, since a sandbox with another uid reads some of it.
func (g gitDir) write(root *os.Root, name string) error {
	dirs := []string{"", "/info", "/objects", "/objects/info", "/objects/pack", "/refs", "/refs/heads", "/refs/tags"}
	files := [][2]string{{"/HEAD", "ref: refs/heads/" + g.branch + "\n"}, {"/config", g.config}}
	if g.packedRefs != "" {
		files = append(files, [2]string{"/packed-refs", g.packedRefs})
	}
	if g.alternates != "" {
		files = append(files, [2]string{"/objects/info/alternates", g.alternates + "\n"})
	}
	if g.exclude != "" {
		files = append(files, [2]string{"/info/exclude", g.exclude})
	}
	if g.headOf != "" {
		dirs = append(dirs, "/refs/remotes", "/refs/remotes/"+g.headOf)
		files = append(files, [2]string{"/refs/remotes/" + g.headOf + "/HEAD", "ref: refs/remotes/" + g.headOf + "/" + g.branch + "\n"})
	}
	if g.looseRef != "" {
		parts := strings.Split(g.branch, "/")
		for i := range parts[1:] {
			dirs = append(dirs, "/refs/heads/"+strings.Join(parts[:i+1], "/"))
		}
		files = append(files, [2]string{"/refs/heads/" + g.branch, g.looseRef + "\n"})
	}
	for _, d := range dirs {
		if err := makeDir(root, name+d); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := writeFile(root, name+f[0], f[1]); err != nil {
			return err
		}
	}
	return nil
}

func makeDir(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return root.Chmod(name, 0o755)
}

// writeFile makes a new file; one that exists is an error.
func writeFile(root *os.Root, name, content string) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// replaceFile writes a file so that a reader sees the old content or the new,
// also after a crash.
func replaceFile(root *os.Root, name, content string, mode fs.FileMode) error {
	tmp := name + ".new"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// syncDir makes the entries of a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
