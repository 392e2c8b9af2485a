package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/podman"
)

// OCIRuntimes are the values of PodmanChoice.OCIRuntime. [engine.runtimes] of the
// service's containers.conf says which programs these are.
var OCIRuntimes = []string{"crun", "runc", "runsc", "krun", "kata"}

// guestRuntimes are those that give a container a kernel of its own, with what
// they need of the host.
var guestRuntimes = map[string]struct{ device string }{
	"runsc": {}, // gVisor: its kernel is a process
	"krun":  {"/dev/kvm"},
	"kata":  {"/dev/kvm"},
}

// guestRuntime tells by an OCI runtime's name or program whether the host can
// look into its containers. A program that runs one of these under a name like
// runsc-for-kick is one too.
func guestRuntime(engine string) (name string, guest bool) {
	for name := range guestRuntimes {
		if strings.HasPrefix(filepath.Base(engine), name) {
			return name, true
		}
	}
	return "", false
}

// checkEngine compares the chosen OCI runtime with the one that Podman has made
// the container for. Podman 4.3 to 5.8, at the least, takes the choice in a
// request and does not heed it: a service has one runtime for all its containers.
func checkEngine(chosen, engine string) error {
	if chosen != "" && !strings.HasPrefix(filepath.Base(engine), chosen) {
		return &Error{Kind: ErrSpec, Op: "OCI runtime " + chosen, Err: fmt.Errorf("the Podman service starts containers with %s", escaped(engine)),
			Remedy: "Give the service that runtime (runtime = \"" + chosen + "\" below [engine] in its containers.conf, or podman --runtime " + chosen + " system service), or name the socket of one that has it"}
	}
	if name, guest := guestRuntime(engine); guest && chosen == "" {
		return &Error{Kind: ErrSpec, Op: "OCI runtime", Err: fmt.Errorf("the Podman service starts containers with %s, which has a kernel of its own", escaped(engine)),
			Remedy: "Choose it for kick, too (podman_oci_runtime: " + name + " in kick.yaml, or --oci-runtime " + name + "), or use a service with crun or runc, whose containers can be looked into"}
	}
	return nil
}

// checkOCIRuntime looks for what a kick under the chosen runtime would lack.
// Whether the service has it, the service says.
func (c PodmanConfig) checkOCIRuntime() error {
	if c.OCIRuntime == "" {
		return nil
	}
	if !slices.Contains(OCIRuntimes, c.OCIRuntime) {
		return specError("OCI runtime", fmt.Errorf("%q", c.OCIRuntime), "Use one of "+strings.Join(OCIRuntimes, ", "))
	}
	device := guestRuntimes[c.OCIRuntime].device
	if device == "" {
		return nil
	}
	if err := unix.Access(device, unix.R_OK|unix.W_OK); err != nil {
		return &Error{Kind: ErrRuntime, Op: "use the OCI runtime " + c.OCIRuntime, Err: &os.PathError{Op: "open", Path: device, Err: err},
			Remedy: "It starts virtual machines: use a host whose processor can and whose " + device + " this user may open (often by its group kvm), or another runtime"}
	}
	return nil
}

var networkForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// noNetworks are words of Podman's --network that name no network of the
// operator's own, with what they would give.
var noNetworks = map[string]string{
	"host":        "is the host's own network",
	"bridge":      "is the network of all other containers",
	"podman":      "is the network of all other containers",
	"slirp4netns": "is a way to the host's networks",
	"pasta":       "is a way to the host's networks",
	"private":     "is whatever Podman has for its default",
	"default":     "is whatever Podman has for its default",
	"none":        "is no network, which is what a kick has without one",
	"container":   "is another container's network",
	"ns":          "is a network namespace of the host",
	"pod":         "is a pod's network",
}

// CheckPodmanNetwork says why a name cannot be PodmanChoice.Network. "" is
// right. Whether there is such a network, the service says when a kick starts.
func CheckPodmanNetwork(name string) error {
	word, _, _ := strings.Cut(name, ":")
	switch {
	case name == "":
		return nil
	case noNetworks[word] != "":
		return fmt.Errorf("%q %s", name, noNetworks[word])
	case !networkForm.MatchString(name):
		return fmt.Errorf("%q is no name of a network", name)
	}
	return nil
}

// network looks the configured network up.
func (l *Podman) network(ctx context.Context) (podman.Network, error) {
	name := l.config.Network
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	n, err := l.client.Network(ctx, name)
	if podman.IsStatus(err, 404) || err == nil && n.Name != name { // an id finds one, too
		return n, &Error{Kind: ErrSpec, Op: "podman network " + name, Err: errors.New("the service has none of that name"), Remedy: "Make it: podman network create --internal " + name}
	}
	if err != nil {
		return n, &Error{Kind: ErrRuntime, Op: "look for the network " + name, Err: err}
	}
	return n, nil
}

// describeNetwork says what a network lets a sandbox reach.
func describeNetwork(n podman.Network) string {
	reach := "has a way to the host and beyond it"
	if n.Internal {
		reach = "is internal: it reaches the containers in it and this host's end of it, and nothing beyond"
	}
	return fmt.Sprintf("the operator's network %s (%s) %s", n.Name, escaped(n.Driver), reach)
}
