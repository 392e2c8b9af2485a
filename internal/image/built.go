package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// record tells what a build wrote.
type record struct {
	Result Result
	File   string // SHA-256 of the tar file
}

// built finds out whether the tar file is there as these inputs give it.
func (b *builder) built() (Result, bool) {
	path, err := b.record()
	if err != nil {
		return Result{}, false
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Result{}, false
	}
	var r record
	if json.Unmarshal(text, &r) != nil {
		return Result{}, false
	}
	if sum, err := digest(b.Out); err != nil || sum != r.File {
		return Result{}, false
	}
	r.Result.Path = b.Out
	return r.Result, true
}

// remember records what was written, for built.
func (b *builder) remember() error {
	path, err := b.record()
	if errors.Is(err, errNotRecorded) {
		return nil
	}
	if err != nil {
		return err
	}
	r := record{Result: b.result}
	if r.File, err = digest(b.Out); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// errNotRecorded is about images whose inputs would take as long to compare as
// the image takes to build, and about directories.
var errNotRecorded = errors.New("not recorded")

// record is the file for these inputs: all that is in the image, and the program
// that makes it.
func (b *builder) record() (string, error) {
	if b.From != "" || !strings.HasSuffix(b.Out, ".tar") {
		return "", errNotRecorded
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := digest(self)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%q\n%d\n", program, b.Name, b.Time.Unix())
	for _, d := range b.debs {
		fmt.Fprintf(sum, "deb %s\n", d.sha256)
	}
	for _, p := range b.npms {
		fmt.Fprintf(sum, "npm %s %s\n", p.spec, p.sha256)
	}
	if b.Shim != nil {
		r, err := b.Shim()
		if err != nil {
			return "", err
		}
		defer r.Close()
		shim := sha256.New()
		if _, err := io.Copy(shim, r); err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "shim %x\n", shim.Sum(nil))
	}
	return filepath.Join(b.Cache, "images", hex.EncodeToString(sum.Sum(nil))+".json"), nil
}

// digest is the SHA-256 of a file.
func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
