// Package doctor checks a host: a list of small named checks, each with what
// was found and what to do.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/internal/gitversion"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Found  string `json:"found"`            // what was seen
	Remedy string `json:"remedy,omitempty"` // what to do, if it is not OK
	// Isolation marks what a kick does not start without, unless it is accepted.
	Isolation bool `json:"isolation,omitempty"`
}

// minFree is the free space below which a kick may not get far: a mirror, a
// work tree and a bundle of a middling repository.
const minFree = 1 << 30

// Options say what is checked.
type Options struct {
	StateDir string  // empty: the default
	Shim     fs.File // nil: ShimErr says why there is none
	ShimErr  error
	Runtime  string // one of config.Runtimes; empty: embedded
	Image    string // of the sandbox that a runtime with images is tried with
	// Kubernetes is where pods are tried.
	Kubernetes sandbox.KubernetesChoice
	// KubeVirt is where machines are tried, unless Kubernetes says of the cluster.
	KubeVirt sandbox.KubeVirtChoice
	// OCIRuntime is what Podman is to start it with; empty: its own choice.
	OCIRuntime string
	// OpenShell is the gateway.
	OpenShell sandbox.OpenShellChoice
}

// ForAgent takes over what kick.yaml says of an agent's runtime, where nothing is said
// yet.
func (o *Options) ForAgent(r config.Resolved) {
	o.Runtime = cmp.Or(o.Runtime, r.Runtime.Value)
	if o.Runtime != "embedded" {
		o.Image = cmp.Or(o.Image, r.Image.Value)
	}
	switch o.Runtime {
	case "podman":
		o.OCIRuntime = cmp.Or(o.OCIRuntime, r.PodmanOCIRuntime.Value)
	case "openshell":
		own := o.OpenShell
		if o.OpenShell = r.OpenShell.Choice(); own.Gateway != "" {
			o.OpenShell.Gateway, o.OpenShell.Connection.Endpoint = own.Gateway, ""
		}
		o.OpenShell.TelemetryOff = o.OpenShell.TelemetryOff || own.TelemetryOff
	case "kubernetes":
		own := o.Kubernetes
		o.Kubernetes = r.Kubernetes.Value
		for _, f := range []struct {
			dst *string
			own string
		}{
			{&o.Kubernetes.Kubeconfig, own.Kubeconfig}, {&o.Kubernetes.Context, own.Context}, {&o.Kubernetes.Namespace, own.Namespace},
			{&o.Kubernetes.Gateway, own.Gateway}, {&o.Kubernetes.ShimImage, own.ShimImage}, {&o.Kubernetes.Claim, own.Claim},
		} {
			*f.dst = cmp.Or(f.own, *f.dst)
		}
	case "kubevirt":
		o.KubeVirt = r.KubeVirt.Value
	}
}

// Run runs all checks.
func Run(ctx context.Context, o Options) []Check {
	checks := append(git(ctx), state(o.StateDir), shimCheck(o.Shim, o.ShimErr))
	if o.Runtime == "podman" {
		checks = append(checks, podmanService(ctx)...)
	}
	switch {
	case o.ShimErr != nil:
	case o.Runtime == "podman":
		checks = append(checks, podmanSandbox(ctx, o)...)
	case o.Runtime == "openshell":
		checks = append(checks, openShell(ctx, o)...)
	case o.Runtime == "kubernetes":
		checks = append(checks, kubernetes(ctx, o)...)
	case o.Runtime == "kubevirt":
		checks = append(checks, kubeVirt(ctx, o)...)
	default:
		checks = append(checks, embedded(ctx, o.Shim)...)
	}
	return checks
}

// ExitCode is 0 when all is well, 14 when isolation is not provable, else 1.
func ExitCode(checks []Check) int {
	code := 0
	for _, c := range checks {
		if c.OK {
			continue
		}
		if c.Isolation {
			return manager.NotIsolated.ExitCode()
		}
		code = manager.Internal.ExitCode()
	}
	return code
}

// git judges the host's git. A hole is a check of its own, under the name that
// accepts it.
func git(ctx context.Context) []Check {
	g, err := gitversion.Find(ctx)
	if errors.Is(err, gitcmd.ErrMissing) {
		return []Check{{Name: "git", Found: err.Error()}}
	}
	if err != nil {
		return []Check{{Name: "git", Found: err.Error(), Remedy: "Install git " + gitversion.Recommended + " or newer."}}
	}
	if fault := g.Fault(); fault != "" {
		return []Check{{Name: "git", Found: g.String(), Remedy: fault}}
	}
	checks := []Check{{Name: "git", OK: true, Found: g.String()}}
	for _, h := range g.Holes() {
		checks = append(checks, Check{Name: h.Name(), Isolation: true, Found: h.Reach, Remedy: h.Remedy()})
	}
	return checks
}

func state(dir string) Check {
	c := Check{Name: "state directory", Found: dir}
	dir, err := stateDir(dir)
	if err != nil {
		c.Remedy = err.Error()
		return c
	}
	s, err := manager.OpenState(dir)
	if err != nil {
		c.Found, c.Remedy = dir, err.Error()
		return c
	}
	c.Found = s.Dir
	probe, err := os.CreateTemp(s.Dir, "doctor-")
	if err == nil {
		err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	}
	if err != nil {
		c.Found += ": " + err.Error()
		c.Remedy = "Make it writable and free some space there, or pass --state-dir DIR for another place."
		return c
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.Dir, &fs); err == nil {
		free := fs.Bavail * uint64(fs.Bsize)
		c.Found += fmt.Sprintf(", %.1f GiB free", float64(free)/(1<<30))
		if free < minFree {
			c.Remedy = "Free some space, or pass --state-dir DIR on a larger file system."
			return c
		}
	}
	c.OK = true
	return c
}

// stateDir is the directory, or the default.
func stateDir(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	return manager.DefaultStateDir()
}

// onState opens what launchers are made of. There may be no state.
func onState(o Options) (*manager.State, *sandbox.Embedded, error) {
	dir, err := stateDir(o.StateDir)
	if err != nil {
		return nil, nil, err
	}
	state, err := manager.OpenState(dir)
	if err != nil {
		return nil, nil, err
	}
	embedded, err := manager.NewEmbedded(o.Shim)
	return state, embedded, err
}

func shimCheck(shim fs.File, err error) Check {
	if err != nil {
		return Check{Name: "shim", Found: "none", Remedy: err.Error()}
	}
	info, err := shim.Stat()
	if err != nil {
		return Check{Name: "shim", Found: err.Error(), Remedy: "Build kick with make build."}
	}
	return Check{Name: "shim", OK: true, Found: fmt.Sprintf("%.1f MiB", float64(info.Size())/(1<<20))}
}

// found says of a property what a person reads first: that it is enforced, and by
// what that is known.
func found(p sandbox.Property) string {
	status := strings.ReplaceAll(string(p.Status), "-", " ")
	if evidence := strings.TrimSpace(p.Evidence); evidence != "" {
		return status + ": " + evidence
	}
	return status
}

// embedded proves the properties of the embedded sandbox on a live one.
func embedded(ctx context.Context, shim fs.File) []Check {
	const name = "embedded sandbox"
	l, err := manager.NewEmbedded(shim)
	if err != nil {
		return []Check{notProved(name, err)}
	}
	return proved(ctx, name, l)
}

// proved tells what a launcher proves of its sandboxes.
func proved(ctx context.Context, name string, l sandbox.Preflighter) []Check {
	iso, err := l.Preflight(ctx)
	var checks []Check
	for _, p := range iso.Properties {
		checks = append(checks, Check{
			Name: p.Name, OK: p.Status != sandbox.Missing, Found: found(p), Remedy: p.Remedy, Isolation: true,
		})
	}
	if err != nil && len(iso.Missing()) == 0 {
		checks = append(checks, notProved(name, err))
	}
	if len(checks) == 0 {
		checks = []Check{{Name: name, Isolation: true, Found: "nothing was proved", Remedy: "Report this with the output of `kick doctor -o json` and " + os.Args[0] + " version."}}
	}
	return checks
}

// provedOnce is proved by a launcher that nothing else needs.
func provedOnce(ctx context.Context, name string, l interface {
	sandbox.Preflighter
	io.Closer
}) []Check {
	checks := proved(ctx, name, l)
	if err := l.Close(); err != nil {
		checks = append(checks, notProved(name, err))
	}
	return checks
}

func notProved(name string, err error) Check {
	c := Check{Name: name, Isolation: true, Found: err.Error(), Remedy: "See the message."}
	var se *sandbox.Error
	if errors.As(err, &se) && se.Remedy != "" {
		c.Found, c.Remedy = strings.TrimSuffix(c.Found, ". "+se.Remedy), se.Remedy
	}
	return c
}
