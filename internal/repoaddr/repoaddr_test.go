package repoaddr

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		name, repo string
		want       Address
	}{
		{"github", "https://github.com/acme/api", Address{"https://github.com/acme/api", "https", "github.com", "acme/api"}},
		{"upper case, slash", "HTTPS://Git.Acme.Example/acme/API/", Address{"https://git.acme.example/acme/API", "https", "git.acme.example", "acme/API"}},
		{"two slashes", "https://github.com//acme/api", Address{"https://github.com/acme/api", "https", "github.com", "acme/api"}},
		{"default port", "https://github.com:443/acme/api.git", Address{"https://github.com/acme/api.git", "https", "github.com", "acme/api.git"}},
		{"other port", "https://ghe.acme.example:8443/a/b", Address{"https://ghe.acme.example:8443/a/b", "https", "ghe.acme.example:8443", "a/b"}},
		{"base path", "https://acme.example/git/a/b", Address{"https://acme.example/git/a/b", "https", "acme.example", "git/a/b"}},
		{"underscore", "https://git_lab.example/a", Address{"https://git_lab.example/a", "https", "git_lab.example", "a"}},
		{"loopback", "http://127.0.0.1:8080/a/b", Address{"http://127.0.0.1:8080/a/b", "http", "127.0.0.1:8080", "a/b"}},
		{"loopback name", "http://localhost/a", Address{"http://localhost/a", "http", "localhost", "a"}},
		{"loopback v6", "http://[::1]:80/a", Address{"http://[::1]/a", "http", "[::1]", "a"}},
		{"ssh", "ssh://git@github.com:22/acme/api", Address{"ssh://git@github.com/acme/api", "ssh", "github.com", "acme/api"}},
		{"ssh without user", "ssh://host:2222/acme/api", Address{"ssh://host:2222/acme/api", "ssh", "host:2222", "acme/api"}},
		{"scp form", "git@GitHub.com:acme/api.git", Address{"git@GitHub.com:acme/api.git", "ssh", "github.com", "acme/api.git"}},
		{"scp form, absolute path", "host.example:/srv/git/a", Address{"host.example:/srv/git/a", "ssh", "host.example", "srv/git/a"}},
		{"scp form, IPv6", "git@[::1]:a", Address{"git@[::1]:a", "ssh", "[::1]", "a"}},
		{"path", dir + "/./", Address{URL: dir, Protocol: "file"}},
		{"file URL", "file://localhost" + dir, Address{URL: dir, Protocol: "file"}},
		{"escaped character in a path", "https://github.com/a/b%20c", Address{"https://github.com/a/b%20c", "https", "github.com", "a/b c"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got, err := Parse(c.repo); err != nil || got != c.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, c := range []struct{ name, repo, says string }{
		{"nothing", "", "no repository"},
		{"relative path", "acme/api", "absolute path"},
		{"path upwards", "../api", "absolute path"},
		{"option", "--upload-pack=touch /tmp/x", "absolute path"},
		{"user and password", "https://bot:" + secret + "@github.com/acme/api", "user name or password"},
		{"token as user", "https://" + secret + "@github.com/acme/api", "user name or password"},
		{"two @", "https://a@b:" + secret + "@github.com/acme/api", "user name or password"},
		{"password for ssh", "ssh://git:" + secret + "@github.com/acme/api", "user name or password"},
		{"escaped password for ssh", "ssh://git%3a" + secret + "@github.com/acme/api", "user name or password"},
		{"password in scp form", "git:" + secret + "@github.com:acme/api", "neither"},
		{"password in a bad URL", "https://bot:" + secret + "@[::/x", "user name or password"},
		{"bad escape", "https://github.com/%zz" + secret, "cannot be parsed"},
		{"query", "https://github.com/acme/api?private_token=" + secret, "query"},
		{"fragment", "https://github.com/acme/api#" + secret, "query"},
		{"http elsewhere", "http://github.com/acme/api", "use https"},
		{"http to a name that looks local", "http://127.0.0.1.example.org/a", "use https"},
		{"git protocol", "git://github.com/acme/api", `scheme "git"`},
		{"ext transport", "ext::sh -c touch% /tmp/x", "neither"},
		{"ext URL", "ext://sh", `scheme "ext"`},
		{"escape sequence as scheme", "\x1b://sh", "control"},
		{"no path", "https://github.com/", "no valid host or no path"},
		{"slashes alone", "https://github.com///", "no valid host or no path"},
		{"no host", "https:///acme/api", "no valid host"},
		{"quote in a host", "https://a'b/acme/api", "no valid host"},
		{"ssh host as option", "ssh://-oProxyCommand=x/a", "no valid host"},
		{"scp host as option", "-oProxyCommand=x:a", "neither"},
		{"scp path as option", "git@github.com:-x", "neither"},
		{"ssh user as option", "ssh://-l@host/a", "no valid host"},
		{"host that is read in two ways", "https://\xff/a", "no valid host"},
		{"IPv6 zone", "http://[::1%25lo]/a", "no valid host"},
		{"port", "https://github.com:99999/a", "port"},
		{"line break", "https://github.com/a\nb", "control"},
		{"override of direction", "https://github.com/acme/\u202eapi", "control"},
		{"NUL", "/tmp/\x00", "control"},
		{"NUL in a file URL", "file:///tmp/%00", "no absolute path"},
		{"longer than a path can be", "/" + strings.Repeat("a", maxLength), "longer than"},
		{"longer once escaped", "https://h/" + strings.Repeat("é", maxLength/4), "longer than"},
		{"missing path", "/nonexistent/repo", "no repository at"},
		{"file as path", "/dev/null", "not a directory"},
		{"file URL to a host", "file://host/srv/a", "another host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse(c.repo)
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.says) || e.Remedy == "" {
				t.Fatalf("got %v, want %q", err, c.says)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats the secret: %v", err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"https://github.com/acme/api", "git@github.com:acme/api.git", "ssh://git@h:22/a/b", "https://u:hunter2@h/a", "u:hunter2@h:a", "file:///tmp", "http://[::1]/x",
		"http://localhost:1/a/b", "ext::x", "//x", "https://h:80@x", "https://h/%2f/a%2F", "https://h/a//",
		"https://h/" + strings.Repeat("\xff", 2000),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, repo string) {
		a, err := Parse(repo)
		if err != nil {
			return
		}
		if a.URL == "" || a.URL[0] == '-' || strings.ContainsAny(a.URL, "\x00\n\x1b") || (a.Host == "") != (a.Protocol == "file") || strings.HasPrefix(a.Host, "-") {
			t.Errorf("%q became %+v", repo, a)
		}
		if strings.HasPrefix(a.Protocol, "http") && !strings.HasPrefix(a.URL, a.Protocol+"://"+a.Host+"/") {
			t.Errorf("%q: a credential for %q would be offered to %q", repo, a.Host, a.URL)
		}
		if again, err := Parse(a.URL); err != nil || again != a {
			t.Errorf("%q is %+v, which is %+v (%v)", repo, a, again, err)
		}
	})
}
