package gitcmd

import (
	"strings"
	"testing"
)

func TestIsOID(t *testing.T) {
	t.Parallel()
	const good = "0123456789abcdef0123456789abcdef01234567"
	if !IsOID(good) {
		t.Errorf("%s is refused", good)
	}
	for _, s := range []string{"", ZeroOID, good[1:], good + "0", strings.ToUpper(good), good[:39] + "g", good[:39] + "\n", "HEAD", good + strings.Repeat("0", 24)} {
		if IsOID(s) {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestBranchNameFault has names on both sides; the workspace's tests hold all
// of them against git itself.
func TestBranchNameFault(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"main", "feature/x", "a.b", "@a", strings.Repeat("x", MaxBranchName)} {
		if fault := BranchNameFault(name); fault != "" {
			t.Errorf("%q %s", name, fault)
		}
	}
	for name, want := range map[string]string{
		"": "empty", "-x": "option", "HEAD": "reserved", "a..b": `".."`, "a.": "dot", "a\nb": `'\n'`, "a/.b": "component", "a.lock/b": "component",
		strings.Repeat("x", MaxBranchName+1): "longer",
	} {
		if fault := BranchNameFault(name); !strings.Contains(fault, want) {
			t.Errorf("%q: %q, want %q", name, fault, want)
		}
	}
}
