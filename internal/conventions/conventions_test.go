package conventions

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// sources returns the parsed Go files of the tree by their path, with comments.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (name[0] == '.' || name[0] == '_' || name == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		files[path] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("only %d Go files were found", len(files))
	}
	return files
}

// TestPackageComments insists that each package says what it is for, in one
// place and in godoc's form.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	comments, names := map[string]int{}, map[string]string{}
	for path, f := range sources(t) {
		dir := filepath.Dir(path)
		if name := f.Name.Name; !strings.HasSuffix(path, "_test.go") || names[dir] == "" {
			names[dir] = name
		}
		if f.Doc == nil {
			continue
		}
		text := f.Doc.Text()
		if strings.TrimSpace(text) == "" {
			continue // directives alone
		}
		comments[dir]++
		want := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			want = "Command " + filepath.Base(dir) + " "
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment does not begin with %q: %.60q", path, want, text)
		}
	}
	for dir, name := range names {
		if comments[dir] != 1 {
			t.Errorf("%s: package %s has %d package comments, want 1", dir, name, comments[dir])
		}
	}
}

// TestFileLength keeps a file to what can be read at one sitting.
func TestFileLength(t *testing.T) {
	t.Parallel()
	const most = 600
	for path, f := range sources(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n > most && !ast.IsGenerated(f) {
			t.Errorf("%s has %d lines, more than %d: split it by what its parts are about", path, n, most)
		}
	}
}

var (
	requirement = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`) // without "// indirect"
	listed      = regexp.MustCompile(`(?m)^\| (\S+\.\S+/\S+) \| (kick|generator|tests) \| \S.* \|$`)
)

// TestDependencies holds the record of dependencies against go.mod and against
// what is linked.
func TestDependencies(t *testing.T) {
	t.Parallel()
	record, err := os.ReadFile(filepath.Join(root, "docs/adr/0007-dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	for _, m := range listed.FindAllStringSubmatch(string(record), -1) {
		where[m[1]] = m[2]
	}
	programs, all := modules(t, "./cmd/..."), modules(t, "./...")
	for _, m := range requirement.FindAllStringSubmatch(string(mod), -1) {
		want := "tests"
		switch {
		case programs[m[1]]:
			want = "kick"
		case all[m[1]]:
			want = "generator"
		}
		if got := where[m[1]]; got != want {
			t.Errorf("%s is used in %q, and the record says %q", m[1], want, got)
		}
		delete(where, m[1])
	}
	for module := range where {
		t.Errorf("%s is in the record and not a direct requirement", module)
	}
}

// modules returns the modules that the packages link.
func modules(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", pattern)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for module := range strings.Lines(string(out)) {
		found[strings.TrimSpace(module)] = true
	}
	return found
}
