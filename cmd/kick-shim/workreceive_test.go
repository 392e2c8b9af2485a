package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/frame"
)

// artifact is one that was received.
type artifact struct {
	kind, name string
	data       []byte
	broken     string
}

// received is all that collect sent.
type received struct {
	t    testing.TB
	all  []artifact
	work work
}

func collectIn(t testing.TB, cfg frame.Config) received {
	t.Helper()
	var buf bytes.Buffer
	if cfg.ArtifactMax == 0 {
		cfg.ArtifactMax = 64 << 20
	}
	if err := collect(cfg, frame.NewWriter(&buf)); err != nil {
		t.Fatal(err)
	}
	return parseFrames(t, &buf)
}

func parseFrames(t testing.TB, in io.Reader) received {
	t.Helper()
	r := received{t: t}
	fr := frame.NewReader(in)
	open := false
	for {
		typ, p, err := fr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch typ {
		case frame.Begin:
			var h frame.ArtifactHeader
			if err := json.Unmarshal(p, &h); err != nil || open {
				t.Fatalf("bad begin %q: %v", p, err)
			}
			r.all, open = append(r.all, artifact{kind: h.Kind, name: h.Name}), true
		case frame.Data:
			if !open {
				t.Fatal("data outside an artifact")
			}
			a := &r.all[len(r.all)-1]
			a.data = append(a.data, p...)
		case frame.End:
			var e frame.ArtifactEnd
			if err := json.Unmarshal(p, &e); err != nil || !open {
				t.Fatalf("bad end %q: %v", p, err)
			}
			r.all[len(r.all)-1].broken, open = e.Error, false
		default:
			t.Fatalf("unexpected frame %q", typ)
		}
	}
	if open {
		t.Fatal("the last artifact has no end")
	}
	if len(r.all) == 0 || r.all[0].kind != workSummary {
		t.Fatalf("the first artifact is not the summary: %v", r.kinds())
	}
	if err := json.Unmarshal(r.all[0].data, &r.work); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r received) kinds() string {
	var kinds []string
	for _, a := range r.all {
		kinds = append(kinds, a.kind)
	}
	return strings.Join(kinds, " ")
}

func (r received) get(kind string) artifact {
	r.t.Helper()
	var found []artifact
	for _, a := range r.all {
		if a.kind == kind {
			found = append(found, a)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%d artifacts %s among %s; problems: %q", len(found), kind, r.kinds(), r.work.Problems)
	}
	return found[0]
}

// want fails unless exactly these kinds came, whole and without a problem.
func (r received) want(kinds ...string) {
	r.t.Helper()
	if got := r.kinds(); got != strings.Join(kinds, " ") {
		r.t.Errorf("artifacts %q, want %q", got, kinds)
	}
	for _, a := range r.all {
		if a.broken != "" {
			r.t.Errorf("%s broke off: %s", a.kind, a.broken)
		}
	}
	if len(r.work.Problems) > 0 {
		r.t.Errorf("problems: %q", r.work.Problems)
	}
}

// fetch fetches a bundle into a fresh clone of base and returns the clone and
// the bundle's refs.
func (r received) fetch(kind string, base repo) (clone repo, refs map[string]string) {
	r.t.Helper()
	a := r.get(kind)
	if a.broken != "" {
		r.t.Fatalf("%s broke off: %s", kind, a.broken)
	}
	file := filepath.Join(r.t.TempDir(), "x.bundle")
	if err := os.WriteFile(file, a.data, 0o600); err != nil {
		r.t.Fatal(err)
	}
	clone = repo{r.t, filepath.Join(r.t.TempDir(), "clone")}
	base.git("clone", "-q", "--shared", "--no-checkout", "--template=", base.dir, clone.dir)
	clone.git("bundle", "verify", "-q", file)
	refs = map[string]string{}
	for _, line := range strings.Split(clone.git("bundle", "list-heads", file), "\n") {
		oid, name, _ := strings.Cut(line, " ")
		refs[name] = oid
	}
	if refs["HEAD"] != "" {
		clone.git("fetch", "-q", file, "HEAD:refs/got/HEAD")
	} else {
		clone.git("fetch", "-q", file, "refs/*:refs/got/refs/*")
	}
	if got := clone.git("fsck", "--strict", "--no-dangling"); got != "" {
		r.t.Errorf("fsck after the fetch of %s: %s", kind, got)
	}
	return clone, refs
}

// tarNames returns the names in the archive and the content of its files.
func (r received) tar() (names []string, content map[string]string) {
	r.t.Helper()
	content = map[string]string{}
	tr := tar.NewReader(bytes.NewReader(r.get(dirtyArchive).data))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			sort.Strings(names)
			return names, content
		}
		if err != nil {
			r.t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			r.t.Fatal(err)
		}
		names = append(names, h.Name)
		content[h.Name] = string(b)
		if h.Typeflag == tar.TypeSymlink {
			content[h.Name] = "-> " + h.Linkname
		}
	}
}

func keys(m map[string]string) []string {
	var k []string
	for name := range m {
		k = append(k, name)
	}
	slices.Sort(k)
	return k
}

func equal(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
