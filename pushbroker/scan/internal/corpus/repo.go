package corpus

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// Plant is one secret in one encoding and one place.
type Plant struct {
	Shape    Shape
	Encoding Encoding
	Place    string
	Text     string // as it stands there
}

// Places are where a push carries bytes. Those that are no content of a file
// cannot hold every byte.
var Places = []string{"blob", "odd extension", "-diff attribute", "binary", "deleted later", "merge only",
	"symlink target", "path", "message", "identity"}

// fits reports whether git can hold text in a place, and hand it on as it is.
func fits(place, text string) bool {
	switch place {
	case "symlink target", "message":
		return !strings.Contains(text, "\x00") && len(text) < 4000
	case "path":
		bad := func(part string) bool { return part == "" || part == "." || part == ".." }
		for part := range strings.SplitSeq(text, "/") {
			if bad(part) {
				return false
			}
		}
		return !strings.Contains(text, "\x00") && len(text) < 3000
	case "identity":
		return !strings.ContainsAny(text, "\x00\n<>") && len(text) < 3000
	}
	return true
}

// holds reports whether an encoding that puts quotes around the text leaves
// it what it is.
func (e Encoding) holds(text string) bool {
	return !strings.HasPrefix(e.Name, "joined") || e.Name == "joined base64" || !strings.ContainsAny(text, "\"'`\\\n")
}

// Plants returns every shape in every encoding in every place that can hold it,
// or of them one in every so many.
func Plants(shapes []Shape, every int) []Plant {
	var plants []Plant
	for _, place := range Places {
		for _, e := range Encodings {
			for i, s := range shapes {
				h := fnv.New64a()
				fmt.Fprintf(h, "%s %s %s %d", place, e.Name, s.Rule, i)
				if h.Sum64()>>8%uint64(every) != 0 {
					continue
				}
				text := s.Draw(h.Sum64())
				if text == "" || len(text) < 12 || !e.holds(text) {
					continue
				}
				if text = e.Encode(text); fits(place, text) {
					plants = append(plants, Plant{s, e, place, text})
				}
			}
		}
	}
	return plants
}

// Repo is a repository whose branch "work" holds plants that its branch "main"
// does not.
type Repo struct {
	Dir    string // git directory, also for the broker's mirror of main
	Mirror string
	Bundle string
	Base   string
	plants map[string]int // by commit, for those that no path names
}

// Build makes a repository of the plants below dir.
func Build(dir string, plants []Plant) (*Repo, error) {
	r := &Repo{Dir: filepath.Join(dir, "all.git"), Mirror: filepath.Join(dir, "mirror.git"), Bundle: filepath.Join(dir, "work.bundle"), plants: map[string]int{}}
	s := &stream{}
	s.write(plants)
	marks := filepath.Join(dir, "marks")
	for _, args := range [][]string{
		{"init", "-q", "--bare", "-b", "main", r.Dir},
		{"-C", r.Dir, "fast-import", "--quiet", "--export-marks=" + marks},
		{"clone", "-q", "--bare", "--single-branch", "--branch", "main", r.Dir, r.Mirror},
		{"-C", r.Dir, "bundle", "create", "-q", r.Bundle, "^main", "work"},
	} {
		cmd := exec.Command("git", args...)
		if args[2] == "fast-import" {
			cmd.Stdin = &s.Buffer
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("git %q: %w: %s", args, err, out)
		}
	}
	b, err := os.ReadFile(marks)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		mark, oid, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(strings.TrimPrefix(mark, ":")); err == nil && n == baseMark {
			r.Base = oid
		} else if err == nil {
			r.plants[oid] = n - firstMark
		}
	}
	return r, nil
}

// Marks of fast-import: plants in commits have theirs from firstMark on.
const (
	baseMark  = 1
	firstMark = 100
)

// stream is the input of git fast-import.
type stream struct {
	bytes.Buffer
	commits int
}

func (s *stream) write(plants []Plant) {
	s.commit("main", baseMark, "Base", "base\n", "")
	s.file("README", "100644", "base\n")
	s.WriteString("reset refs/heads/work\nfrom refs/heads/main\n\n")

	s.commit("work", 0, "Kick", "files\n", "")
	s.file("nodiff/.gitattributes", "100644", "* -diff\n")
	odd := []string{"logo.png", "go.sum", "node_modules/x.js", "package-lock.json", "pic.svg", "a.pyc", "vendor/github.com/a/b.go", "x.bin", "noextension"}
	for i, p := range plants {
		text := "some text\n" + p.Text + "\nmore text\n"
		switch p.Place {
		case "blob":
			s.file(fmt.Sprintf("src/%06d.txt", i), "100644", text)
		case "odd extension":
			s.file(fmt.Sprintf("odd/%06d/%s", i, odd[i%len(odd)]), "100644", text)
		case "-diff attribute":
			s.file(fmt.Sprintf("nodiff/%06d.txt", i), "100644", text)
		case "binary":
			s.file(fmt.Sprintf("bin/%06d", i), "100755", "\x7fELF\x02\x01\x01\x00\x00\x00\x03\n"+p.Text+"\n\x00\x00\x01\xff")
		case "deleted later":
			s.file(fmt.Sprintf("gone/%06d.txt", i), "100644", text)
		case "symlink target":
			s.file(fmt.Sprintf("link/%06d", i), "120000", p.Text)
		case "path":
			s.file(fmt.Sprintf("path/%06d/%s", i, p.Text), "100644", fmt.Sprint(i))
		}
	}
	s.commit("work", 0, "Kick", "delete\n", "")
	s.WriteString("D gone\n\n")

	for i, p := range plants {
		switch p.Place {
		case "message":
			s.commit("work", firstMark+i, "Kick", "subject\n\n"+p.Text+"\n", "")
		case "identity":
			s.commit("work", firstMark+i, p.Text, "identity\n", "")
		}
	}
	// What only a merge holds is in no difference to one parent that log -p shows.
	s.WriteString("reset refs/heads/side\nfrom refs/heads/work\n\n")
	s.commit("side", 0, "Kick", "side\n", "")
	s.file("side.txt", "100644", "side\n")
	s.commit("work", 0, "Kick", "ours\n", "")
	s.file("ours.txt", "100644", "ours\n")
	s.commit("work", 0, "Kick", "merge\n", "merge refs/heads/side\n")
	s.file("side.txt", "100644", "side\n")
	for i, p := range plants {
		if p.Place == "merge only" {
			s.file(fmt.Sprintf("merge/%06d.txt", i), "100644", "some text\n"+p.Text+"\nmore text\n")
		}
	}
}

func (s *stream) commit(branch string, mark int, name, message, merge string) {
	s.commits++
	fmt.Fprintf(s, "commit refs/heads/%s\n", branch)
	if mark > 0 {
		fmt.Fprintf(s, "mark :%d\n", mark)
	}
	for _, who := range []string{"author", "committer"} {
		fmt.Fprintf(s, "%s %s <kick@example.com> %d +0000\n", who, name, 1600000000+s.commits)
		name = "Kick"
	}
	fmt.Fprintf(s, "data %d\n%s\n%s", len(message), message, merge)
}

func (s *stream) file(path, mode, content string) {
	var quoted strings.Builder
	for _, c := range []byte(path) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			fmt.Fprintf(&quoted, `\%03o`, c)
		} else {
			quoted.WriteByte(c)
		}
	}
	fmt.Fprintf(s, "M %s inline \"%s\"\ndata %d\n%s\n", mode, quoted.String(), len(content), content)
}

// Plant returns which plant stands at a path, or in a commit if path is empty.
func (r *Repo) Plant(commit, path string) (int, bool) {
	if path == "" {
		i, ok := r.plants[commit]
		return i, ok
	}
	_, rest, _ := strings.Cut(path, "/")
	i, err := strconv.Atoi(rest[:min(6, len(rest))])
	return i, err == nil && len(rest) >= 6
}

// recorder is a scanner that notes the gravest level for each plant, and the
// bytes of each item.
type recorder struct {
	pushbroker.Scanner
	repo  *Repo
	found map[int]policy.Level
	item  func(i int, it pushbroker.Item)
}

func (r *recorder) Scan(ctx context.Context, it pushbroker.Item) ([]policy.Finding, error) {
	findings, err := r.Scanner.Scan(ctx, it)
	path := it.Path
	if it.Kind == pushbroker.CommitItem {
		path = ""
	}
	i, ok := r.repo.Plant(it.Commit, path)
	if !ok || err != nil {
		return findings, err
	}
	r.item(i, it)
	for _, f := range findings {
		if f.Rule == "not-searched" || f.Rule == "opaque-archive" {
			continue
		}
		if f.Level == policy.Block || f.Level == policy.Review && r.found[i] != policy.Block {
			r.found[i] = f.Level
		}
	}
	return findings, nil
}

// Find ingests and inspects the work as a push would, and returns the gravest
// level for each plant that s finds. item gets what the broker lets s see; the
// bytes are valid during the call.
func (r *Repo) Find(ctx context.Context, s pushbroker.Scanner, dir string, item func(i int, it pushbroker.Item)) (map[int]policy.Level, error) {
	w := pushbroker.Work{KickID: "k0", Agent: "corpus", Repo: r.Mirror, Bundle: r.Bundle, Mirror: r.Mirror, BaseOID: r.Base,
		IdentityName: "Kick", IdentityEmail: "kick@example.com"}
	lim := pushbroker.DefaultIngestLimits()
	lim.Commits = lim.Objects
	q, err := pushbroker.Ingest(ctx, filepath.Join(dir, "quarantine"), w, lim)
	if err != nil {
		return nil, err
	}
	rec := &recorder{s, r, map[int]policy.Level{}, item}
	_, err = pushbroker.Inspect(ctx, q, w, nil, rec)
	if cerr := q.Close(); err == nil {
		err = cerr
	}
	return rec.found, err
}
