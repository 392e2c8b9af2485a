package sandbox

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/frame"
)

// GuestProperties are the names of what the Podman launcher tells of a sandbox
// whose OCI runtime has a kernel of its own, in the order of
// Isolation.Properties. The first is never enforced. Those of namespaces, user,
// privileges and network are of the process that is this kernel, or its virtual
// machine; seccomp-rules is what the shim has tried inside.
var GuestProperties = []string{
	guestKernel, "user-namespace", "mount-namespace", "network-namespace", "unprivileged-user", "no-new-privileges", "seccomp",
	"no-network", "seccomp-rules", "memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

const guestKernel = "guest-kernel"

// guestTasks is how many processes and threads of the host a guest's kernel
// takes for itself, beyond those of the guest's own. gVisor hangs below some
// hundred.
const guestTasks = 1024

// proveGuest looks at what the host can see of a container with a kernel of its
// own: the process that is that kernel, and its control groups.
func (b *podmanBox) proveGuest(r frame.Readiness) []Property {
	p := &prover{s: subject{proc: "/proc/" + strconv.Itoa(b.pid), readiness: r}}
	name := filepath.Base(b.engine)
	p.props = []Property{{Name: guestKernel, Status: Missing,
		Evidence: name + " gives the container a kernel of its own, and the host cannot look into that: mounts, users and capabilities in it are as that runtime makes them",
		Remedy:   "Accept " + guestKernel + " by name if you trust " + name + " to isolate, or use crun or runc, whose containers can be looked into"}}
	for _, ns := range namespaces {
		if ns.link == "user" || ns.link == "mnt" || ns.link == "net" {
			p.namespace(ns.link, ns.property)
		}
	}
	p.guestStatus(name)
	p.podmanNetwork(b.plan)
	p.probes()
	return append(p.props, b.limitProperties()...)
}

// guestStatus wants the guest's kernel to be an unprivileged process: who breaks
// out of the guest is in it.
func (p *prover) guestStatus(name string) {
	text, problem := p.read("status")
	f := parseStatus(text)
	add := func(property, field string, bad bool) {
		evidence, why := fmt.Sprintf("status of %s: %s %s", name, field, strings.Join(strings.Fields(f[field]), " ")), problem
		if why == "" && (bad || f[field] == "") {
			why = evidence
		}
		p.add(property, why, evidence)
	}
	uids := strings.Fields(f["Uid"])
	add("unprivileged-user", "Uid", len(uids) != 4 || uids[0] == "0" || uids[1] == "0" || uids[2] == "0" || uids[3] == "0")
	add("no-new-privileges", "NoNewPrivs", f["NoNewPrivs"] != "1")
	add("seccomp", "Seccomp", f["Seccomp"] != "2")
}

// podmanNetwork wants no network, or the operator's in the plan. That lacks the
// property, which the operator has accepted by naming the network.
func (p *prover) podmanNetwork(plan *podmanPlan) {
	if plan.network == "" {
		p.network()
		return
	}
	text, problem := p.read("net/dev")
	if problem != "" {
		p.add("no-network", problem, "")
		return
	}
	p.props = append(p.props, Property{Name: "no-network", Status: Accepted, Evidence: fmt.Sprintf("net/dev: %s; %s", strings.Join(interfaces(text), ", "), plan.network)})
}
