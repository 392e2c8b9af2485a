package conventions

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	attackRow = regexp.MustCompile(`(?m)^\| (H?\d+) \| .+ \| (.+) \|$`)
	// A reference is a package in backticks, a test, and names of subtests in italics.
	reference = regexp.MustCompile("`([a-z/-]+)`|\\b([A-Z]\\w+)|\\*([^*]+)\\*")
)

// TestAttackTable holds docs/security/attacks.md against the tests: each row is
// there, each test and subtest that it names exists, and each attack that an
// agent makes in acceptance is named.
func TestAttackTable(t *testing.T) {
	t.Parallel()
	rows, named := attackTable(t, "docs/security/attacks.md", testNames(t))
	for i := 1; i <= 45; i++ {
		if rows[strconv.Itoa(i)] == "" {
			t.Errorf("attack %d has no row", i)
		}
	}
	for i := 1; i <= 17; i++ {
		if hole := fmt.Sprintf("H%d", i); rows[hole] == "" {
			t.Errorf("hole %s has no row", hole)
		}
	}
	for _, name := range attackNames(t) {
		if !named["acceptance "+name] {
			t.Errorf("docs/security/attacks.md does not name the attack %q of acceptance", name)
		}
	}
}

// egressAttacks are those that the gateway has to withstand, as their rows
// begin.
var egressAttacks = []string{
	"DNS rebinding", "Mapped and decimal addresses", "Metadata addresses", "CONNECT to port 22", "SNI other than the CONNECT host",
	"Smuggling: CL and TE", "Smuggling: folded headers", "Smuggling: absolute form", "Smuggling: HTTP/2", "Header injection", "Path tricks", "Slowloris",
	"Endless response", "Decompression bomb", "Budget overrun", "Use after the kick's end", "Another kick's audit", "Exfiltration by DNS",
}

// TestEgressAttackTable holds docs/security/egress.md against the tests in the
// same way: each attack has its row, and each test of an attack is named.
func TestEgressAttackTable(t *testing.T) {
	t.Parallel()
	tests := testNames(t)
	rows, named := attackTable(t, "docs/security/egress.md", tests)
	for _, attack := range egressAttacks {
		found := false
		for _, row := range rows {
			found = found || strings.HasPrefix(row, "| "+attack)
		}
		if !found {
			t.Errorf("docs/security/egress.md has no row that begins with %q", attack)
		}
	}
	for name := range tests["egress"] {
		if strings.HasPrefix(name, "TestAttack") && !named["egress "+name] {
			t.Errorf("docs/security/egress.md does not name %s", name)
		}
	}
}

// TestPodmanAttackTable holds docs/security/podman.md against the tests of packages
// sandbox and acceptance and of the contract: the last column of each row names one, and what
// is named exists, a quoted name as a subtest of TestOnPodmanWeaknesses.
func TestPodmanAttackTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/security/podman.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(line, "| \n"), "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.TrimSpace(cells[0]) == "What" {
			continue
		}
		rows++
		found := podmanReference.FindAllString(cells[2], -1)
		if len(found) == 0 {
			t.Errorf("the row %q names no test", strings.TrimSpace(cells[0]))
		}
		for _, ref := range found {
			if !tests["sandbox"][ref] && !tests["sandbox/sandboxtest"][ref] && !tests["acceptance"][ref] {
				t.Errorf("the row %q names %s, which is not there", strings.TrimSpace(cells[0]), ref)
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were read", rows)
	}
}

var podmanReference = regexp.MustCompile(`"[^"]+"|[A-Z][A-Za-z]+`)

// attackTable checks the references of a page's rows. It returns the rows by
// number, and the tests and subtests that are named, with their package.
func attackTable(t *testing.T, file string, tests map[string]map[string]bool) (rows map[string]string, named map[string]bool) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	rows, named = map[string]string{}, map[string]bool{}
	for _, row := range attackRow.FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = strings.TrimPrefix(row[0], "| "+row[1]+" ")
		pkg, fn, count := "", "", 0
		for _, ref := range reference.FindAllStringSubmatch(row[2], -1) {
			switch {
			case ref[1] != "":
				pkg = ref[1]
				if tests[pkg] == nil {
					t.Errorf("row %s names package %s, which has no tests", row[1], pkg)
				}
				continue
			case ref[2] != "":
				if fn = ref[2]; !tests[pkg][fn] {
					t.Errorf("row %s names %s, which is not in %s", row[1], fn, pkg)
				}
				named[pkg+" "+fn] = true
			case fn == "" || !tests[pkg][strconv.Quote(ref[3])]:
				t.Errorf("row %s names %s %q, which is not there", row[1], fn, ref[3])
			default:
				named[pkg+" "+ref[3]] = true
			}
			count++
		}
		if count == 0 {
			t.Errorf("row %s names no test", row[1])
		}
	}
	return rows, named
}

// testNames returns, for each package's directory, the functions of its tests
// and, quoted, the strings in them, which names of subtests are.
func testNames(t *testing.T) map[string]map[string]bool {
	t.Helper()
	names := map[string]map[string]bool{}
	for path, f := range sources(t) {
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		// The contract of launchers is no test file; its checks are functions and names.
		if !strings.HasSuffix(path, "_test.go") && dir != "sandbox/sandboxtest" {
			continue
		}
		if names[dir] == nil {
			names[dir] = map[string]bool{}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[dir][n.Name.Name] = true
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
					names[dir][strconv.Quote(s)] = true
					if dir == "sandbox/sandboxtest" {
						names[dir][s] = true
					}
				}
			}
			return true
		})
	}
	return names
}

// attackNames returns the names of the attacks in acceptance/attacks_*_test.go:
// fields called name, and first arguments of what makes an attack.
func attackNames(t *testing.T) (names []string) {
	t.Helper()
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, s)
		}
	}
	makers := map[string]bool{"refused": true, "malformed": true, "named": true, "headed": true}
	for path, f := range sources(t) {
		if !strings.HasPrefix(path, filepath.Join(root, "acceptance/attacks_")) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "name" {
					add(n.Value)
				}
			case *ast.CallExpr:
				if fun, ok := n.Fun.(*ast.Ident); ok && makers[fun.Name] {
					add(n.Args[0])
				}
			}
			return true
		})
	}
	if len(names) < 100 {
		t.Fatalf("only %d attacks were found", len(names))
	}
	return names
}
