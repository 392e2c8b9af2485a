package gitcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Remote is a repository that git reaches by a URL or a path. The zero
// credential is none. It is for one goroutine at a time.
type Remote struct {
	Protocol string // the one transport that git may use: "file", "ssh", "https" or "http"
	// Path is the directory of a repository on this machine. Empty: a URL.
	Path string
	// Origin is the scheme://host[:port] that the credential is for and that
	// alone gets it. It holds nothing that a shell or git would interpret.
	Origin         string
	User, Password string

	trusted []string // directories whose owner the user told git to trust
}

// Output runs git for the repository in dir, or for none if dir is empty. The
// deadline bounds each of the at most two runs; 0 is none. The output is valid
// also with an error.
func (r *Remote) Output(ctx context.Context, dir string, deadline time.Duration, args ...string) ([]byte, error) {
	out, err := r.once(ctx, dir, deadline, args)
	doubted := DubiousOwner(err)
	if doubted == "" || r.Path == "" || r.trusted != nil {
		return out, err
	}
	dirs := []string{r.Path, r.Path + "/.git", doubted}
	if !userTrusts(ctx, dirs) {
		return out, err
	}
	r.trusted = dirs
	return r.once(ctx, dir, deadline, args)
}

func (r *Remote) once(ctx context.Context, dir string, deadline time.Duration, args []string) (out []byte, err error) {
	g := Git{Dir: dir, Protocols: r.Protocol, Limits: Limits{Deadline: deadline}}
	switch r.Protocol {
	case "https":
		// A proxy and a private certificate authority are the host's matter,
		// as for any other program of this user.
		g.Env = inherited("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO")
		fallthrough
	case "http":
		// A remote that sends nothing for two minutes is dead. While it prepares
		// a pack it sends five bytes every five seconds (uploadpack.keepAlive).
		g.Config = append(g.Config, "http.lowSpeedLimit=1", "http.lowSpeedTime=120")
	case "ssh":
		g.Env = append(inherited("SSH_AUTH_SOCK"), "GIT_SSH_COMMAND=ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15", "GIT_SSH_VARIANT=ssh")
	}
	var fd3 *os.File
	switch {
	case r.User != "" || r.Password != "":
		var helper string
		helper, fd3, err = credential(r.Origin, r.User, r.Password)
		g.Config = append(g.Config, helper)
	case r.trusted != nil:
		fd3, err = trustFile(r.trusted)
		g.Env = append(g.Env, "GIT_CONFIG_GLOBAL=/proc/self/fd/3")
	}
	if err != nil {
		return nil, fmt.Errorf("make descriptor for git: %w", err)
	}
	if fd3 != nil {
		defer func() { err = errors.Join(err, fd3.Close()) }()
		g.ExtraFiles = []*os.File{fd3}
	}
	return g.Output(ctx, nil, args...)
}

// inherited returns the entries of this process's environment with one of the
// names.
func inherited(names ...string) []string {
	var env []string
	for _, n := range names {
		if v, ok := os.LookupEnv(n); ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// helper answers git's question for a credential, and no other: it checks who
// asks for which host, and reads the answer from descriptor 3. Everything in it
// is built into the shell, so that no program gets the password as an argument.
const helper = `!f() { test "$1" = get || exit 0; ` +
	`while IFS= read -r l && test -n "$l"; do case $l in protocol=*) p=${l#*=};; host=*) h=${l#*=};; esac; done; ` +
	`test "$p://$h" = '%s' || exit 0; ` +
	`while IFS= read -r l; do printf '%%s\n' "$l"; done <&3; }; f`

// maxCredential is far above any token (GitHub's longest is about 520 bytes),
// and lets a pipe (64 KiB) take it before anybody reads.
const maxCredential = 8 << 10

// CheckCredential refuses what cannot be given to git. The error does not
// repeat it.
func CheckCredential(user, password string) error {
	if len(user)+len(password) > maxCredential || strings.ContainsFunc(user+password, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("it holds control characters or is longer than 8 KiB")
	}
	return nil
}

// credential returns the setting that makes git ask for the credential on one
// host, and the descriptor 3 that holds it. The caller closes that.
func credential(origin, user, password string) (config string, fd3 *os.File, err error) {
	if err := CheckCredential(user, password); err != nil {
		return "", nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	_, err = w.WriteString("username=" + user + "\npassword=" + password + "\n")
	if err = errors.Join(err, w.Close()); err != nil {
		return "", nil, errors.Join(err, r.Close())
	}
	return "credential." + origin + ".helper=" + fmt.Sprintf(helper, origin), r, nil
}
