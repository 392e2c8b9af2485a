package gitversion

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestHoles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, version, distribution, pkg string
		open                             bool
	}{
		{"Debian 12", "2.39.5", "debian", "1:2.39.5-0+deb12u3", false},
		{"Debian 12 with the update before", "2.39.5", "debian", "1:2.39.5-0+deb12u2", false},
		{"Debian 12 as it came out", "2.39.2", "debian", "1:2.39.2-1.1", true},
		{"Debian 13", "2.47.3", "debian", "1:2.47.3-0+deb13u1", false},
		{"Ubuntu 24.04", "2.43.0", "ubuntu", "1:2.43.0-1ubuntu7.3", false},
		{"Ubuntu 24.04, the first mended", "2.43.0", "ubuntu", "1:2.43.0-1ubuntu7.1", false},
		{"Ubuntu 24.04, two digits", "2.43.0", "ubuntu", "1:2.43.0-1ubuntu7.10", false},
		{"Ubuntu 24.04 as it came out", "2.43.0", "ubuntu", "1:2.43.0-1ubuntu7", true},
		{"Ubuntu 23.10, which gets no updates", "2.40.1", "ubuntu", "1:2.40.1-1ubuntu1.1", true},
		{"Ubuntu's number on Debian", "2.43.0", "debian", "1:2.43.0-1ubuntu7.3", true},
		{"Ubuntu with a git of one's own", "2.43.1", "ubuntu", "1:2.43.0-1ubuntu7.3", true},
		{"Ubuntu 25.04", "2.48.1", "ubuntu", "1:2.48.1-0ubuntu1", false},
		{"Fedora 40", "2.45.1", "fedora", "2.45.1-1.fc40", false},
		{"Fedora 40 as it came out", "2.44.0", "fedora", "2.44.0-1.fc40", true},
		{"RHEL 9", "2.43.5", "rhel", "2.43.5-1.el9_4", false},
		{"RHEL 9 before", "2.43.0", "rhel", "2.43.0-1.el9", true},
		{"RHEL 8 before", "2.39.3", "rhel", "2.39.3-1.el8_8", true},
		{"Alpine 3.18", "2.40.4", "alpine", "", false},
		{"Alpine 3.19 as it came out", "2.43.0", "alpine", "", true},
		{"plain, each line", "2.41.1", "", "", false},
		{"plain, each line before", "2.41.0", "", "", true},
		{"plain, a line that was never mended by number", "2.46.0", "", "", false},
		{"plain", "2.50.1", "", "", false},
		{"Apple's", "2.39.3 (Apple Git-146)", "", "", true},
		{"from a checkout", "2.45.1.g1234567", "", "", false},
		{"candidate", "2.46.0.rc1", "", "", false},
		{"candidate of one with holes", "2.44.0-rc1", "", "", true},
		{"major", "3.0.0", "", "", false},
		{"not readable", "git", "", "", true},
		{"empty", "", "", "", true},
	} {
		g := Git{Version: tc.version, Distribution: tc.distribution, Package: tc.pkg}
		holes := g.Holes()
		if got := len(holes) > 0; got != tc.open {
			t.Errorf("%s: %d open holes, want open %v", tc.name, len(holes), tc.open)
		}
		for _, h := range holes {
			if !strings.Contains(h.Remedy(), "install git "+Recommended) || !strings.Contains(h.Remedy(), "--accept-weaker git-CVE-") || h.Reach == "" {
				t.Errorf("%s: remedy %q", h.CVE, h.Remedy())
			}
		}
	}
	if len((Git{Version: Recommended}).Holes()) > 0 || (Git{Version: Recommended}).Fault() != "" {
		t.Error("the recommended version does not do")
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ version, sha1, want string }{
		{"2.39.0", "", ""},
		{"2.39.5", "SHA1_DC", ""},
		{"2.50.1", "SHA1_DC (No Submodule)", ""},
		{"2.38.9", "", "lacks object checks"},
		{"2.39.0-rc2", "", "lacks object checks"},
		{"1.8.3.1", "", "lacks object checks"},
		{"2.50.1", "OpenSSL", "does not detect collisions"},
		{"", "", "cannot read"},
		{"99999999999999999999.1", "", "cannot read"},
	} {
		got := Git{Version: tc.version, SHA1: tc.sha1}.Fault()
		if got == "" != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s %s: %q, want %q", tc.version, tc.sha1, got, tc.want)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	g := parse("git version 2.50.1 (Apple Git-155)\ncpu: arm64\nno commit associated with this build\nSHA-1: SHA1_DC\nSHA-256: SHA256_BLK\n")
	if g.Version != "2.50.1 (Apple Git-155)" || g.SHA1 != "SHA1_DC" {
		t.Errorf("git %+v", g)
	}
}

// TestFind asks the host's git, which the other tests run on.
func TestFind(t *testing.T) {
	t.Parallel()
	g, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(g.Path, "version").Output(); err != nil || strings.TrimSpace(string(out)) != "git version "+g.Version {
		t.Errorf("git %+v says %q, %v", g, out, err)
	}
	if fault := g.Fault(); fault != "" {
		t.Error(fault)
	}
}

// TestPackageOf compares with dpkg, where there is one.
func TestPackageOf(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		t.Skip("no dpkg here")
	}
	if v := packageOf(t.Context(), filepath.Join(t.TempDir(), "git")); v != "" {
		t.Errorf("a file of no package is of version %q", v)
	}
	if _, err := os.Stat("/usr/bin/git"); err != nil {
		t.Skip("git is not dpkg's")
	}
	want, err := exec.Command("dpkg-query", "--show", "--showformat=${Version}", "git").Output()
	if got := packageOf(t.Context(), "/usr/bin/git"); err != nil || got == "" || got != string(want) {
		t.Errorf("version %q, dpkg says %q, %v", got, want, err)
	}
}

// TestComparePackages holds the comparison against a sorted list, and against
// dpkg where there is one.
func TestComparePackages(t *testing.T) {
	t.Parallel()
	sorted := []string{
		"1:2.39.5-0+deb12u1~rc1", "1:2.39.5-0+deb12u1", "1:2.39.5-0+deb12u2", "1:2.39.5-0+deb12u10", "1:2.39.5-1", "1:2.39.5-1ubuntu1",
		"1:2.43.0-1ubuntu7", "1:2.43.0-1ubuntu7.1", "1:2.43.0-1ubuntu7.2", "1:2.43.0-1ubuntu7.10", "1:2.43.0-1ubuntu10",
	}
	dpkg, err := exec.LookPath("dpkg")
	for i, a := range sorted {
		for j, b := range sorted {
			want := slices.Compare([]int{i}, []int{j})
			if got := comparePackages(a, b); got != want {
				t.Errorf("%s and %s: %d, want %d", a, b, got, want)
			}
			if err == nil && j == i+1 && exec.Command(dpkg, "--compare-versions", a, "lt", b).Run() != nil {
				t.Errorf("dpkg does not put %s before %s", a, b)
			}
		}
	}
}

func FuzzVersions(f *testing.F) {
	f.Add("2.43.0", "1:2.43.0-1ubuntu7.1", "1:2.43.0-1ubuntu7")
	f.Add("2.50.1 (Apple Git-155)", "2.45.1-1.fc40", "")
	f.Add("2.46.0.rc1", "~", "0~0a")
	f.Fuzz(func(t *testing.T, version, a, b string) {
		g := Git{Version: version, Distribution: "ubuntu", Package: a}
		g.Holes()
		g.Fault()
		if x, y := comparePackages(a, b), comparePackages(b, a); x != -y || comparePackages(a, a) != 0 {
			t.Errorf("%q and %q: %d, and %d", a, b, x, y)
		}
	})
}
