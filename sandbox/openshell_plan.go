package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/internal/openshellapi"
)

// openShellPlan is one sandbox, decided before anything is asked: the launch
// specification translated into what the gateway is to make, and into what is then
// checked.
type openShellPlan struct {
	spec   LaunchSpec
	limits Limits // resolved: 0 means none
	jail   frame.Jail
	config frame.Config
	create openshellapi.CreateRequest
}

// Labels of our sandboxes, by which a reaper finds them, and an annotation, whose
// value a label could not have.
const (
	labelManaged       = "kick.managed"
	annotationDeadline = "kick.deadline" // RFC 3339; nothing of ours runs longer
	annotationAttempt  = "kick.attempt"  // random: tells whether a sandbox is the one that was asked for
)

var pinnedImage = lazyregexp.New(`^[a-z0-9][a-zA-Z0-9._/:-]{0,500}@sha256:[0-9a-f]{64}$`)

// newOpenShellPlan translates a specification, which was checked.
func newOpenShellPlan(spec LaunchSpec, mode frame.Mode, ready time.Duration) (*openShellPlan, error) {
	filter, err := systemCallFilter()
	if err != nil {
		return nil, &Error{Kind: ErrIsolation, Op: "seccomp", Err: err, Remedy: remedyOf("seccomp")}
	}
	policy, err := openShellPolicy(spec)
	if err != nil {
		return nil, err
	}
	owner, err := claimOwner()
	if err != nil {
		return nil, err
	}
	p := &openShellPlan{spec: spec, limits: resolveLimits(spec.Limits)}
	p.jail = frame.Jail{NoNewPrivs: true, Filter: filter, Rlimits: commonRlimits(p.limits)}
	watch := &frame.Watch{Disk: p.limits.Disk, Memory: p.limits.Memory, Processes: p.limits.Processes}
	if spec.Limits.Processes > 0 {
		r := processRlimit(p.limits)
		r.Value += lineProcesses
		p.jail.Rlimits = append(p.jail.Rlimits, r)
	} else {
		// The kernel counts all processes of the user at the node, of other sandboxes
		// too, so that its limit would hit who did not ask for one. The shim counts
		// those of the command.
		watch.Uncounted = p.limits.Processes > 0
	}
	p.config = shimConfig(spec, p.limits, mode)
	p.config.Sent = spec.Workspace.Dir != ""
	p.config.CheckpointMS = spec.Workspace.checkpointMS()
	p.config.Objects = shimDir(spec.ID) + "/objects"
	p.config.Pause = true
	p.config.Show = []string{frame.ShownLandlock, osRelease}
	for _, program := range slices.Sorted(maps.Keys(spec.Egress.Programs)) {
		p.config.Show = append(p.config.Show, frame.ShownProgram+program)
	}
	p.config.Watch = watch
	if spec.Egress.Policy != "" {
		p.config.Inherit = gatewayVariables
	}
	if spec.Egress.TCP != nil {
		// The shim's end of the way to the gateway is at loopback, which no proxy leads
		// to: the specification says so.
		p.config.Inherit = slices.DeleteFunc(slices.Clone(gatewayVariables), func(name string) bool { return strings.EqualFold(name, "NO_PROXY") })
	}
	lifetime := ready + gapTimeout + startTimeout + checkoutTimeout + p.limits.Wall + 2*wallGrace + collectTimeout + time.Minute
	p.create = openshellapi.CreateRequest{
		Name:   spec.ID,
		Image:  spec.Image,
		Labels: map[string]string{labelManaged: "yes", labelID: spec.ID, labelOwner: owner},
		Annotations: map[string]string{
			annotationDeadline: time.Now().Add(lifetime).UTC().Format(time.RFC3339),
			labelAgent:         spec.Agent,
		},
		// The main process is the keeper of the deadline: the sandbox ends with it,
		// whatever has become of kick. Sandboxes of OpenShell never expire otherwise.
		Command: []string{"sleep", strconv.Itoa(int(lifetime.Seconds()))},
		Policy:  policy,
	}
	for k, v := range spec.Labels {
		p.create.Labels[k] = v
	}
	limits := map[string]any{}
	if p.limits.Memory > 0 {
		// The shim ends the command at the limit; what kills whom above it, the node says
		// to nobody here. It may be the shim, while a killed command's memory is not free yet.
		limits["memory"] = strconv.FormatInt(p.limits.Memory+max(p.limits.Memory/4, openShellRoom), 10)
	}
	if p.limits.CPUs > 0 {
		limits["cpu"] = strconv.FormatInt(int64(p.limits.CPUs*1000), 10) + "m"
	}
	if len(limits) > 0 {
		p.create.Resources = map[string]any{"limits": limits}
	}
	return p, nil
}

// openShellRoom is how many bytes the node leaves above the memory limit at least: a
// command was measured to take up to 150 MB between two looks of the shim.
const openShellRoom = 256 << 20

// osRelease is the version of the sandbox's kernel.
const osRelease = "/proc/sys/kernel/osrelease"

// shimDir is where the sandbox has the shim, and the objects of the base.
func shimDir(id string) string { return "/tmp/kick-" + id }

// basePolicy is the policy of a sandbox without a network.
func basePolicy() *openshellapi.Policy {
	return &openshellapi.Policy{
		Version: 1,
		Filesystem: openshellapi.Filesystem{
			IncludeWorkdir: true,
			ReadOnly:       []string{"/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/dev/urandom"},
			ReadWrite:      []string{"/tmp", "/dev/null"},
		},
		Landlock: openshellapi.Landlock{Compatibility: openshellapi.HardRequirement},
		Network:  map[string]openshellapi.NetworkRule{},
	}
}

// openShellPolicy is the policy that a specification asks for, which may write to
// the workspace and the home directory.
func openShellPolicy(spec LaunchSpec) (*openshellapi.Policy, error) {
	p := basePolicy()
	if spec.Egress.Policy != "" {
		var err error
		if p, err = openshellapi.ParsePolicy([]byte(spec.Egress.Policy)); err != nil {
			return nil, specError("egress policy", err, "Make it with kick policy compile --to openshell")
		}
	}
	for _, dir := range []string{spec.Workspace.MountPath, HomeDir} {
		if dir != "" && !slices.Contains(p.Filesystem.ReadWrite, dir) {
			p.Filesystem.ReadWrite = append(p.Filesystem.ReadWrite, dir)
		}
	}
	if t := spec.Egress.TCP; t != nil {
		host, text, err := net.SplitHostPort(t.Address)
		port, err2 := strconv.ParseUint(text, 10, 16)
		if err := errors.Join(err, err2); err != nil {
			return nil, specError("egress address", err, "Give a host and a port")
		}
		p.Network[ownGateway] = openshellapi.NetworkRule{
			Name:      ownGateway,
			Endpoints: []openshellapi.Endpoint{{Host: host, Ports: []uint32{uint32(port)}, Enforcement: openshellapi.Enforce, Relayed: true}},
			Binaries:  []openshellapi.Binary{{Path: shimDir(spec.ID) + "/kick-shim"}},
		}
	}
	return p, nil
}

// ownGateway is the rule of a policy for the way to kick's own gateway. The shim has
// it, and with it all that it starts, to which it is of no use: the gateway knows the
// shim by the kick's secret.
const ownGateway = "kick-gateway"

// shim is the shim's path in the sandbox.
func (p *openShellPlan) shim() string { return shimDir(p.spec.ID) + "/kick-shim" }

// wait is what the shim is told where it begins to listen.
func (p *openShellPlan) wait(alone time.Duration) frame.Wait {
	return frame.Wait{Jail: p.jail, AloneMS: alone.Milliseconds(), Inherit: p.config.Inherit}
}

// gatewayVariables are what OpenShell's supervisor gives to commands, to find its
// proxy and to trust it. They hold whatever the specification says.
var gatewayVariables = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
}

// OpenShellProperties are the names of what the OpenShell launcher finds of every
// sandbox, in the order of Isolation.Properties.
var OpenShellProperties = []string{
	"policy", "no-network", "landlock", "unprivileged-user", "capabilities", "service-account", "seccomp-rules", "telemetry",
	"memory-limit", "process-limit", "cpu-limit", "disk-limit",
}

// guestProbes are the properties that the shim alone can see, by its probes.
var guestProbes = []struct{ probe, property, evidence, remedy string }{
	{"no-direct-network", "no-network", "the shim could not connect to an address outside", "The gateway's driver must leave sandboxes no way out but its proxy: see that the cluster's network plugin enforces NetworkPolicy"},
	{"unprivileged-user", "unprivileged-user", "the shim runs as an ordinary user", "Set the driver's sandbox_uid to an ordinary user"},
	{"capabilities", "capabilities", "status: no capability, and none can be had", "Run sandboxes without capabilities"},
	{"service-account", "service-account", "no service account's token is there", "Set automountServiceAccountToken to false for the sandboxes' account"},
}

// prove says what is known of the sandbox: of its policy by what the gateway gave
// back, of the rest by what the shim found in it before anything of the agent ran.
func (p *openShellPlan) prove(r frame.Readiness, policy string, telemetryOff bool, sandbox openshellapi.Sandbox) []Property {
	var props []Property
	add := func(name, problem, evidence, remedy string) {
		prop := Property{Name: name, Status: Enforced, Evidence: evidence}
		if problem != "" {
			prop.Status, prop.Evidence, prop.Remedy = Missing, problem, remedy
		}
		props = append(props, prop)
	}
	said := func(probe string) string {
		s, ok := r.Probes[probe]
		if !ok {
			return probe + ": the shim did not try"
		}
		return s
	}
	programs, remedy := p.otherPrograms(r)
	if n := len(p.spec.Egress.Programs); n > 0 {
		policy += fmt.Sprintf("; the shim found the files of %d programs to be those that were named", n)
	}
	add("policy", programs, policy, remedy)
	network := "the policy has no network at all"
	if n := len(p.create.Policy.Network); n > 0 {
		network = "nothing but what the policy lists, enforced by the gateway"
	}
	for i, g := range guestProbes {
		evidence := g.evidence
		if i == 0 {
			evidence = network + "; " + evidence
		}
		add(g.property, said(g.probe), evidence, g.remedy)
		if i == 0 {
			// The shim ends, and names the property, where it cannot have a domain.
			add("landlock", "", fmt.Sprintf("the policy's hard requirement, and a domain of the shim's own; Linux %s, Landlock ABI %s", shownOf(r, osRelease), shownOf(r, frame.ShownLandlock)), "")
		}
	}
	var rules string
	for _, name := range wantedProbes {
		if name != "landlock" && said(name) != "" {
			rules = said(name)
		}
	}
	add("seccomp-rules", rules, fmt.Sprintf("the shim was refused each of %d calls", len(wantedProbes)-1), remedyOf("seccomp-rules"))
	telemetry := "nobody says whether the gateway sends telemetry, and its wire does not tell"
	if telemetryOff {
		telemetry = ""
	}
	add("telemetry", telemetry, "the operator's word that it is off", "Set OPENSHELL_TELEMETRY_ENABLED=false in the gateway's environment (server.telemetryEnabled=false in its chart), and then openshell.telemetry_off: true in kick.yaml")
	return append(props, p.limitProperties(sandbox)...)
}

// shownOf is what the shim has shown, fit for a message.
func shownOf(r frame.Readiness, name string) string {
	s := strings.TrimSpace(r.Shown[name])
	return cmp.Or(escaped(s[:min(len(s), 200)]), "unknown")
}

// otherPrograms names the first program that is not the one that was named.
func (p *openShellPlan) otherPrograms(r frame.Readiness) (problem, remedy string) {
	for _, program := range slices.Sorted(maps.Keys(p.spec.Egress.Programs)) {
		want := program + " " + p.spec.Egress.Programs[program]
		if have := shownOf(r, frame.ShownProgram+program); have != want {
			return fmt.Sprintf("the program %s is %s, want the SHA-256 %s", program, have, p.spec.Egress.Programs[program]),
				"If the image is the right one, write what is there into openshell.binaries: the real path, @sha256: and the digest"
		}
	}
	return "", ""
}

// proveAdopted is what counts of a sandbox whose command is dead.
func (p *openShellPlan) proveAdopted(r frame.Readiness) []Property {
	var props []Property
	for _, g := range guestProbes {
		prop := Property{Name: g.property, Status: Enforced, Evidence: g.evidence}
		if said := r.Probes[g.probe]; said != "" {
			prop.Status, prop.Evidence, prop.Remedy = Missing, said, g.remedy
		}
		props = append(props, prop)
	}
	return props
}

// limitProperties tells how each limit is held. What nothing holds is missing only
// where somebody asked for it.
func (p *openShellPlan) limitProperties(sandbox openshellapi.Sandbox) []Property {
	gateway := func(name, key string, none bool) Property {
		if none {
			return Property{Name: name, Status: NotRequested}
		}
		want, _ := p.create.Resources["limits"].(map[string]any)
		have, _ := sandbox.Resources["limits"].(map[string]any)
		if have[key] != want[key] {
			return Property{Name: name, Status: Missing, Evidence: fmt.Sprintf("the gateway has it as %v, want %v", have[key], want[key]), Remedy: "Use a driver of the gateway that sets limits, or ask for none"}
		}
		return Property{Name: name, Status: Enforced, Evidence: fmt.Sprintf("the gateway's word: resources.limits.%s is %v", key, have[key])}
	}
	processes := Property{Name: "process-limit", Status: NotRequested}
	switch {
	case p.config.Watch.Uncounted:
		processes.Status = Enforced
		processes.Evidence = fmt.Sprintf("the shim kills the command when it has %d processes and threads, looked at at least every 500ms", p.limits.Processes)
	case p.limits.Processes > 0:
		processes.Status = Enforced
		processes.Evidence = fmt.Sprintf("RLIMIT_NPROC is %d above what the sandbox had before, and counts all processes of its user on its node", p.limits.Processes+shimThreads+lineProcesses)
	}
	disk := Property{Name: "disk-limit", Status: NotRequested}
	if p.limits.Disk > 0 {
		disk.Status = Enforced
		disk.Evidence = fmt.Sprintf("the shim measures the workspace and ends the command above %d bytes; RLIMIT_FSIZE for one file", p.limits.Disk)
	}
	memory := gateway("memory-limit", "memory", p.limits.Memory == 0)
	if memory.Status == Enforced {
		memory.Evidence += fmt.Sprintf("; the shim ends the command above %d bytes, looked at at least every 500ms", p.limits.Memory)
	}
	return []Property{memory, processes, gateway("cpu-limit", "cpu", p.limits.CPUs == 0), disk}
}

// readBack compares the policy that holds with the one that was asked for.
func (p *openShellPlan) readBack(e openshellapi.Effective) (evidence string, err error) {
	problem := e.Strange
	switch {
	case problem != "":
	case !e.Own:
		problem = "it is not the sandbox's own but one of the whole gateway, which replaces it"
	default:
		problem = p.create.Policy.Difference(e.Policy)
	}
	if problem != "" {
		return "", &Error{Kind: ErrIsolation, Op: "policy", Err: errors.New("the policy that holds is not the one that was asked for: " + escaped(problem)),
			Remedy: "Remove the policy of the whole gateway, or see which other version or generation of OpenShell it is"}
	}
	return fmt.Sprintf("read back from the gateway and compared, hash %.80s", escaped(e.Hash)), nil
}
