package acceptance

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kickhq/kick/internal/githubapp"
	"github.com/kickhq/kick/internal/githubtest"
)

// forms are the ways in which a token may lie about: plain, in hex, and in
// base64 at each of the three alignments, of which one is that of a password of
// HTTP.
func forms(token string) []string {
	out := []string{token, hex.EncodeToString([]byte(token)), strings.ToUpper(hex.EncodeToString([]byte(token)))}
	for lead := range 3 {
		text := strings.Repeat("x", lead) + token
		whole := base64.StdEncoding.EncodeToString([]byte(text))
		url := base64.URLEncoding.EncodeToString([]byte(text))
		// Without the characters that the neighbours have a say in.
		from, to := 4*((lead+2)/3), len(text)/3*4
		out = append(out, whole[from:to], url[from:to])
	}
	return out
}

// TestFormsFind holds the search itself against places that do hold a token.
func TestFormsFind(t *testing.T) {
	t.Parallel()
	const token = "ghs_0123456789abcdefghijABCDEFGHIJ456789"
	for name, text := range map[string]string{
		"plain": "x" + token + "y", "hex": hex.EncodeToString([]byte("a" + token + "b")), "basic": "Basic " + base64.StdEncoding.EncodeToString([]byte(githubapp.GitUser+":"+token)),
		"base64, 1": base64.StdEncoding.EncodeToString([]byte("a" + token + "zz")), "base64, 2": base64.StdEncoding.EncodeToString([]byte("ab" + token)), "base64, 0": base64.RawURLEncoding.EncodeToString([]byte("abc" + token + "zzzz")),
	} {
		found := false
		for _, form := range forms(token) {
			found = found || strings.Contains(text, form)
		}
		if !found {
			t.Errorf("%s: not found in %s", name, text)
		}
	}
}

// TestTokenIsNowhere holds a fetch open, a push before it begins and while its
// pack is on the way, and then a pull request, and looks for every token that was on the wire: in the
// arguments, environments and mapped files of kick and of all its children, and
// in its state, its temporary files and its output, then and afterwards. None of
// the processes may dump core.
func TestTokenIsNowhere(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]githubtest.Options{"short tokens": {}, "long tokens": {LongTokens: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, opts)
			dir := t.TempDir()
			state, tmp := filepath.Join(dir, "s"), filepath.Join(dir, "tmp")
			if err := os.Mkdir(tmp, 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(kick, append(append([]string{"run", "--state-dir", state, "-o", "json"}, h.args...), "--", "sh", "-c", `echo hi >f; git add f; git commit -qm "add f"`)...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = &out, &out, dir, append(os.Environ(), "TMPDIR="+tmp)
			// All is searched at the end, when every token was on the wire.
			seen := map[string]string{}
			search := func(where, text string) { seen[fmt.Sprint(len(seen), " ", where)] = text }
			files := 0
			searchDir := func(dir string) {
				err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
					if err != nil || !d.Type().IsRegular() {
						return nil // gone meanwhile
					}
					if b, err := os.ReadFile(path); err == nil {
						files++
						search(path, string(b))
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			looks, mapped := map[string]int{}, map[string]bool{}
			for _, match := range []string{fetchBegins, pushBegins, gitPush, openPull} {
				h.before(match, func() {
					looks[match] = lookAt(t, cmd.Process.Pid, mapped, search)
					searchDir(state)
					searchDir(tmp)
				})
			}
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			search("the output", out.String())
			searchDir(state)
			searchDir(tmp)
			for where, text := range seen {
				if found := h.leaked(text); len(found) > 0 {
					t.Errorf("%s holds the tokens %q", where, found)
				}
			}
			for match, children := range map[string]int{fetchBegins: 2, pushBegins: 2, gitPush: 2, openPull: 0} { // git and its helper for HTTP
				if n, ok := looks[match]; !ok || n < children {
					t.Errorf("at %s, %d children were looked at (%v)", match, n, ok)
				}
			}
			if len(mapped) < 3 || files < 20 || len(h.tokens) != 4 { // for the fetch, the question about duplicates, the push and the pull request
				t.Errorf("%d mapped and %d other files were searched for %d tokens", len(mapped), files, len(h.tokens))
			}
		})
	}
}

// lookAt searches a process and its descendants, and those of the files mapped
// into them that are not yet in mapped. It returns how many descendants there
// were.
func lookAt(t *testing.T, pid int, mapped map[string]bool, search func(where, text string)) (children int) {
	t.Helper()
	for _, p := range descendants(pid) {
		proc := fmt.Sprintf("/proc/%d/", p)
		for _, name := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(proc + name)
			if err != nil && p == pid {
				t.Errorf("%v", err)
			}
			search(proc+name, string(b))
		}
		limits, err := os.ReadFile(proc + "limits")
		if err != nil {
			continue // it ended
		}
		if p != pid {
			children++
		}
		for line := range strings.Lines(string(limits)) {
			// One byte is none, and stops a handler too: core(5).
			if f := strings.Fields(line); strings.HasPrefix(line, "Max core file size") && f[4] != "0" && f[4] != "1" {
				t.Errorf("process %d may dump core: %s", p, line)
			}
		}
		maps, err := os.ReadFile(proc + "maps")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(maps)) {
			f := strings.Fields(line)
			if len(f) < 6 || !filepath.IsAbs(f[5]) || mapped[f[5]] {
				continue
			}
			if b, err := os.ReadFile(f[5]); err == nil {
				mapped[f[5]] = true
				search(f[5], string(b))
			}
		}
	}
	return children
}

// descendants lists a process and all that come from it.
func descendants(pid int) []int {
	parents := map[int][]int{}
	procs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		// PID (COMMAND) STATE PARENT ...; the command may hold anything.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		parent, err2 := strconv.Atoi(f[1])
		if err1 == nil && err2 == nil {
			parents[parent] = append(parents[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, parents[all[i]]...)
	}
	return all
}
