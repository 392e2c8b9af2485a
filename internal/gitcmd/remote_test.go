package gitcmd

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHelperAnswersItsHostOnly(t *testing.T) {
	t.Parallel()
	const token = "ghs_0123456789abcdefghijABCDEFGHIJ456789"
	for name, tc := range map[string]struct {
		action, question string
		answered         bool
	}{
		"right host":     {"get", "protocol=https\nhost=github.com\n\n", true},
		"more is said":   {"get", "protocol=https\nhost=github.com\npath=acme/api.git\nusername=x\n\n", true},
		"other host":     {"get", "protocol=https\nhost=github.com.evil.example\n\n", false},
		"other port":     {"get", "protocol=https\nhost=github.com:8443\n\n", false},
		"other protocol": {"get", "protocol=http\nhost=github.com\n\n", false},
		"host after end": {"get", "protocol=https\nhost=evil.example\n\nhost=github.com\n", false},
		"nothing asked":  {"get", "", false},
		"store":          {"store", "protocol=https\nhost=github.com\n\n", false},
		"erase":          {"erase", "protocol=https\nhost=github.com\n\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, fd3, err := credential("https://github.com", "x-access-token", token)
			if err != nil {
				t.Fatal(err)
			}
			defer fd3.Close()
			key, script, _ := strings.Cut(config, "=!")
			if key != "credential.https://github.com.helper" {
				t.Errorf("the helper is for %q", key)
			}
			cmd := exec.Command("sh", "-c", script+" "+tc.action)
			cmd.Stdin, cmd.ExtraFiles = strings.NewReader(tc.question), []*os.File{fd3}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if tc.answered {
				want = "username=x-access-token\npassword=" + token + "\n"
			}
			if string(out) != want {
				t.Errorf("the helper said %q, want %q", out, want)
			}
		})
	}
}

func TestCredentialRefusesLineBreaks(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"a\nhost=evil.example", "a\rb", "a\x00", "a\x7f", strings.Repeat("a", 9000)} {
		for _, c := range [][2]string{{"user", value}, {value, "password"}} {
			if _, fd3, err := credential("https://github.com", c[0], c[1]); err == nil {
				_ = fd3.Close()
				t.Errorf("a credential of %d bytes was taken", len(value))
			} else if strings.Contains(err.Error(), "evil") {
				t.Errorf("the error repeats the credential: %v", err)
			}
		}
	}
}

// TestRemoteOverHTTP has git authenticate against a server, and looks at what
// the server gets.
func TestRemoteOverHTTP(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		if !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		asked <- user + ":" + password
		w.WriteHeader(http.StatusNotFound)
	}))
	defer srv.Close()
	r := Remote{Protocol: "http", Origin: srv.URL, User: "me", Password: "open sesame"}
	if _, err := r.Output(t.Context(), "", time.Minute, "ls-remote", srv.URL+"/a/b"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("ls-remote: %v", err)
	}
	if got := <-asked; got != "me:open sesame" {
		t.Errorf("the server got %q", got)
	}
	// A credential is for its origin alone.
	r.Origin = "http://127.0.0.1:1"
	if _, err := r.Output(t.Context(), "", time.Minute, "ls-remote", srv.URL+"/a/b"); err == nil || len(asked) > 0 {
		t.Errorf("another origin got the credential: %v", err)
	}
}

// TestRemoteUsesTheHostsProxy is its own process's environment, so it runs
// alone.
func TestRemoteUsesTheHostsProxy(t *testing.T) {
	connects := make(chan string, 8)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connects <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	}))
	defer proxy.Close()
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	t.Setenv("GIT_SSL_NO_VERIFY", "1")
	r := Remote{Protocol: "https"}
	if _, err := r.Output(t.Context(), "", time.Minute, "ls-remote", "https://git.invalid/a"); err == nil {
		t.Error("no error")
	}
	select {
	case got := <-connects:
		if got != "CONNECT git.invalid:443" {
			t.Errorf("the proxy got %q", got)
		}
	default:
		t.Error("the proxy was not asked")
	}
}

// TestNoRepositoryAround has a repository at the working directory whose
// configuration would send git to another place.
func TestNoRepositoryAround(t *testing.T) {
	t.Parallel()
	if env := (Git{}).Environ(); !slices.Contains(env, noRepository) {
		t.Errorf("without a directory, the environment is %q", env)
	}
	if env := (Git{Dir: "/x"}).Environ(); slices.Contains(env, noRepository) {
		t.Errorf("with a directory, the environment is %q", env)
	}
	around := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", around).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("git", "-C", around, "config", "kick.planted", "yes").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd, err := Git{}.Command(t.Context(), "config", "--get", "kick.planted")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Dir = around
	if out, err := cmd.Output(); err == nil || len(out) > 0 {
		t.Errorf("git read the repository around it: %q", out)
	}
}

func TestUserTrusts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv("GIT_CONFIG_SYSTEM", "/dev/null")
	dirs := []string{"/srv/git/a", "/srv/git/a/.git"}
	for _, tc := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{"/srv/git/b"}, false},
		{[]string{"/srv/git/a"}, true},
		{[]string{"/srv/git/a/.git"}, true},
		{[]string{"/srv/git/*"}, true},
		{[]string{"/srv/gi*"}, false},
		{[]string{"*"}, true},
		{[]string{"*", ""}, false},
		{[]string{"*", "", "/srv/git/a"}, true},
	} {
		config := "[safe]\n"
		for _, v := range tc.values {
			config += "directory = " + ConfigValue(v) + "\n"
		}
		if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := userTrusts(context.Background(), dirs); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.values, got, tc.want)
		}
	}
}

// TestConfigValue has git read back what was quoted.
func TestConfigValue(t *testing.T) {
	t.Parallel()
	for i, v := range []string{"plain", ` blanks; # and "quotes" `, `back\slash`, "line\nbreak", "[section]"} {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(file, []byte("[a]\n\tb = "+ConfigValue(v)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Git{}.Output(t.Context(), nil, "config", "--file", file, "--null", "--get", "a.b")
		if err != nil || string(got) != v+"\x00" {
			t.Errorf("%q was read as %q, %v", v, got, err)
		}
	}
}
