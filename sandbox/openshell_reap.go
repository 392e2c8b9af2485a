package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Preflight implements Preflighter: it runs a command in a sandbox of its own that
// finds what a kick needs of the image.
func (l *OpenShell) Preflight(ctx context.Context) (Isolation, error) {
	out := &tail{max: 4 << 10}
	res, err := l.Run(ctx, LaunchSpec{
		ID:      fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Agent:   "preflight",
		Image:   l.config.Image,
		Command: []string{"/bin/sh", "-c", preflightScript},
		Env:     map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
		Egress:  Egress{Policy: preflightPolicy},
		Stdout:  out, Stderr: out,
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run a command in a sandbox of " + l.config.Image, Err: fmt.Errorf("exit code %d: %s", res.ExitCode, escaped(out.String())), Remedy: "Put what is missing into the image, as kick image build does"}
	}
	addTries(res.Isolation.Properties, out.String())
	return res.Isolation, err
}

// addTries adds to what was found of the network how a write, and a connection that
// nothing allows, fared from within. What could not be tried is said, and no failure.
func addTries(props []Property, said string) {
	for i := range props {
		p := &props[i]
		if p.Name != "no-network" || p.Status == Missing {
			continue
		}
		for _, try := range []struct{ word, what string }{{"write", "a POST to api.github.com, which may be read,"}, {"other", "example.com, which nothing allows,"}} {
			_, rest, ok := strings.Cut(said, "tried "+try.word+" ")
			code, _, _ := strings.Cut(rest, "\n")
			switch {
			case !ok:
				p.Evidence += "; " + try.what + " was not tried, for want of curl in the image"
			case strings.Contains(code, "403"): // of the proxy, or of the answer in the host's name
				p.Evidence += "; " + try.what + " was refused"
			case code == "000 000" || strings.HasPrefix(code, "5") || strings.HasSuffix(code, " 502"):
				p.Evidence += "; " + try.what + " could not be tried (status " + escaped(clipped(code)) + ")"
			default:
				p.Status, p.Evidence = Missing, try.what+" was answered with status "+escaped(clipped(code))
				p.Remedy = "See that the sandboxes' way out is the gateway's own proxy, and that it enforces their policies"
				return
			}
		}
	}
}

// preflightPolicy lets curl read one API.
const preflightPolicy = `version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, /lib, /lib64, /bin, /sbin, /etc, /opt, /proc, /dev/urandom]
  read_write: [/tmp, /dev/null]
landlock: {compatibility: hard_requirement}
network_policies:
  kick:
    name: kick
    endpoints: [{host: api.github.com, ports: [443], protocol: rest, enforcement: enforce, access: read-only}]
    binaries: [{path: /usr/bin/curl}, {path: /usr/local/bin/curl}]
`

// preflightScript fails with words where the image lacks what a kick needs.
const preflightScript = `git --version >/dev/null || { echo "the image has no git"; exit 3; }
for d in ` + DefaultMountPath + ` ` + HomeDir + `; do
  touch $d/.kick-preflight && rm $d/.kick-preflight || { echo "$d cannot be written: the image needs it, owned by the sandbox's user"; exit 4; }
done
command -v curl >/dev/null || exit 0
curl -s -m 20 -o /dev/null -w 'tried write %{http_code} %{http_connect}\n' -X POST https://api.github.com/
curl -s -m 20 -o /dev/null -w 'tried other %{http_code} %{http_connect}\n' https://example.com/
exit 0`

// Reap implements Reaper. A sandbox of OpenShell never expires; it is deleted if it
// has no work that could still be taken and the kick's id can be claimed, which it
// cannot while the kick lives, or if it is past its deadline.
func (l *OpenShell) Reap(ctx context.Context) ([]string, error) {
	if !l.chosen {
		return nil, nil // no gateway was chosen, so nothing that it could have
	}
	g, _, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	list, err := g.List(ctx, map[string]string{labelManaged: "yes"})
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "list the sandboxes of kick", Err: shown(err)}
	}
	here, err := claimOwner()
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	var errs []error
	for _, s := range list {
		id := s.Labels[labelID]
		if !idForm.MatchString(id) || s.Name != id {
			continue // not one that this launcher has made
		}
		deadline, err := time.Parse(time.RFC3339, s.Annotations[annotationDeadline])
		expired := err == nil && time.Now().After(deadline)
		switch {
		case expired:
		case s.Labels[labelOwner] != here:
			continue // whether its kick lives, only another place knows
		case l.holds(id) && !ended(s.Phase):
			continue
		}
		release, err := claimNow(id)
		if err != nil && !expired {
			continue // its kick lives
		}
		err = deleteSandbox(ctx, g, s.Name)
		if release != nil {
			release()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.forget(id)
		removed[id] = true
	}
	return names(removed), errors.Join(errs...)
}
