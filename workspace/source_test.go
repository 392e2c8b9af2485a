package workspace

import (
	"strings"
	"testing"
)

func TestParseRepo(t *testing.T) {
	t.Parallel()
	dir := newRepo(t)
	for _, c := range []struct{ name, repo, arg, protocol, scope string }{
		{"github", "https://github.com/acme/api", "https://github.com/acme/api", "https", "https://github.com"},
		{"enterprise host, upper case, slash", "HTTPS://Git.Acme.Example/acme/API/", "https://git.acme.example/acme/API", "https", "https://git.acme.example"},
		{"default port", "https://github.com:443/acme/api.git", "https://github.com/acme/api.git", "https", "https://github.com"},
		{"other port", "https://ghe.acme.example:8443/a/b", "https://ghe.acme.example:8443/a/b", "https", "https://ghe.acme.example:8443"},
		{"base path", "https://acme.example/git/a/b", "https://acme.example/git/a/b", "https", "https://acme.example"},
		{"loopback", "http://127.0.0.1:8080/a/b", "http://127.0.0.1:8080/a/b", "http", "http://127.0.0.1:8080"},
		{"loopback name", "http://localhost/a", "http://localhost/a", "http", "http://localhost"},
		{"loopback v6", "http://[::1]:80/a", "http://[::1]/a", "http", "http://[::1]"},
		{"ssh", "ssh://git@github.com:22/acme/api", "ssh://git@github.com/acme/api", "ssh", ""},
		{"ssh without user", "ssh://host/acme/api", "ssh://host/acme/api", "ssh", ""},
		{"scp form", "git@github.com:acme/api.git", "git@github.com:acme/api.git", "ssh", ""},
		{"scp form, absolute path", "host.example:/srv/git/a", "host.example:/srv/git/a", "ssh", ""},
		{"path", dir + "/../repo/", dir, "file", ""},
		{"file URL", "file://" + dir, dir, "file", ""},
		{"escaped character in a path", "https://github.com/a/b%20c", "https://github.com/a/b%20c", "https", "https://github.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, err := parseRepo(c.repo)
			if err != nil {
				t.Fatal(err)
			}
			if r.arg != c.arg || r.protocol != c.protocol || r.scope != c.scope {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestParseRepoRefuses(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, c := range []struct{ name, repo, says string }{
		{"nothing", "", "no repository"},
		{"relative path", "acme/api", "absolute path"},
		{"option", "--upload-pack=touch /tmp/x", "absolute path"},
		{"user and password", "https://bot:" + secret + "@github.com/acme/api", "user name or password"},
		{"token as user", "https://" + secret + "@github.com/acme/api", "user name or password"},
		{"two @", "https://a@b:" + secret + "@github.com/acme/api", "user name or password"},
		{"password for ssh", "ssh://git:" + secret + "@github.com/acme/api", "user name or password"},
		{"password in scp form", "git:" + secret + "@github.com:acme/api", "neither"},
		{"password in a bad URL", "https://bot:" + secret + "@[::/x", "user name or password"},
		{"bad escape", "https://github.com/%zz", "cannot be parsed"},
		{"query", "https://github.com/acme/api?private_token=" + secret, "query"},
		{"fragment", "https://github.com/acme/api#" + secret, "query"},
		{"http elsewhere", "http://github.com/acme/api", "use https"},
		{"http to a name that looks local", "http://127.0.0.1.example.org/a", "use https"},
		{"git protocol", "git://github.com/acme/api", `scheme "git"`},
		{"ext transport", "ext::sh -c touch% /tmp/x", "neither"},
		{"ext URL", "ext://sh", `scheme "ext"`},
		{"no path", "https://github.com/", "no valid host or no path"},
		{"no host", "https:///acme/api", "no valid host"},
		{"ssh host as option", "ssh://-oProxyCommand=x/a", "no valid host"},
		{"scp host as option", "-oProxyCommand=x:a", "neither"},
		{"ssh user as option", "ssh://-l@host/a", "no valid host"},
		{"host that is read in two ways", "https://\xff/a", "no valid host"},
		{"IPv6 zone", "http://[::1%25lo]/a", "no valid host"},
		{"port", "https://github.com:99999/a", "port"},
		{"line break", "https://github.com/a\nb", "control"},
		{"NUL", "/tmp/\x00", "control"},
		{"missing path", "/nonexistent/repo", "no repository at"},
		{"file as path", "/dev/null", "not a directory"},
		{"file URL to a host", "file://host/srv/a", "another host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := parseRepo(c.repo)
			wantError(t, err, ErrSource, c.says)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("error repeats the secret: %v", err)
			}
		})
	}
}

// Git's own judgement is the measure, but for what kick refuses beyond it.
func TestCheckBranchAgreesWithGit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"main", "feature/x", "a.b", "ümlaut", "a@b", "a{b", "feature/äöü-1", "x" + strings.Repeat("y", 150), "a'b\"c$(d);e&f|g", "a%b!c#d", "refs/heads/main", "@a",
		"", "-x", "--upload-pack=x", "a..b", "a@{b", "a b", "a~b", "a^b", "a:b", "a?b", "a*b", "a[b", `a\b`, "a.lock", "a.lock/b", ".a", "b/.a", "a//b", "/a", "a/", "a.", "a\x01b", "a\x7fb", "a\nb", "HEAD",
	} {
		ours := checkBranch(name)
		out, theirs := tryGit("/", nil, "check-ref-format", "--branch", name)
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%q: kick says %v, git says %v %s", name, ours, theirs, out)
		}
	}
	for _, name := range []string{"@", "HEAD/x", strings.Repeat("x", 201)} {
		if err := checkBranch(name); err == nil {
			t.Errorf("%q passed", name)
		}
	}
}

func FuzzParseRepo(f *testing.F) {
	for _, s := range []string{"https://github.com/acme/api", "git@github.com:acme/api", "ssh://git@h:22/a", "https://u:hunter2@h/a", "u:hunter2@h:a", "file:///tmp", "http://[::1]/x", "ext::x", "//x", "https://h:80@x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, repo string) {
		r, err := parseRepo(repo)
		if err != nil {
			return
		}
		if r.arg == "" || r.arg[0] == '-' || strings.ContainsAny(r.arg, "\x00\n") {
			t.Errorf("%q gives git the argument %q", repo, r.arg)
		}
		if r.scope != "" && !strings.HasPrefix(r.arg, r.scope+"/") {
			t.Errorf("%q: credential for %q would be offered to %q", repo, r.scope, r.arg)
		}
		if r.protocol != "file" && strings.Count(r.arg, "@") > 0 && r.scope != "" && strings.Contains(strings.SplitN(r.arg, "/", 4)[2], "@") {
			t.Errorf("%q keeps user information: %q", repo, r.arg)
		}
		again, err := parseRepo(r.arg)
		if err != nil || again.key != r.key {
			t.Errorf("%q is %q, which is %q (%v)", repo, r.key, again.key, err)
		}
	})
}
