package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/kickhq/kick/internal/frame"
)

// embeddedBox is one sandbox of the embedded runtime.
type embeddedBox struct {
	plan *plan
	shim *os.File
	weak weakness
	dog  *watchdog

	proc    *process
	group   *cgroup
	rlimits []frame.Rlimit // those that the host wants to see
}

// weakness changes a sandbox so that it lacks a property, for the tests of the
// host's checks. Both functions are nil in earnest.
type weakness struct {
	box     func(*embeddedBox)
	process func(*os.ProcAttr)
}

func (b *embeddedBox) start(_ context.Context, dog *watchdog) (_ line, err error) {
	p := b.plan
	b.dog = dog
	b.group, err = newCgroup(groupName(p.spec.ID, p.mode), cgroupLimits{p.limits.Memory, p.limits.Processes, p.limits.CPUs})
	if err != nil {
		return line{}, &Error{Kind: ErrRuntime, Op: "make the control group", Err: err, Remedy: "If another sandbox of this id is running, wait for its end"}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.group.remove())
		}
	}()
	if !b.group.limits("memory-limit") {
		dog.limitMemory(p.limits.Memory)
	}
	if !b.group.limits("process-limit") {
		dog.processes = p.limits.Processes
		p.limitProcesses()
	}
	b.rlimits = slices.Clone(p.jail.Rlimits)
	started := *p // the expectations stay what they are
	if b.weak.box != nil {
		b.weak.box(b)
	}
	var trees []*os.File
	if started.asRoot {
		trees, err = cloneTrees(p.jail.Entries, firstTreeFD)
		if err != nil {
			return line{}, &Error{Kind: ErrRuntime, Op: "prepare the mounts", Err: err}
		}
		defer closeAll(trees)
	}
	b.proc, err = startProcess(p, b.shim, trees, b.weak.process)
	if err != nil {
		return line{}, startError(err, p.clone)
	}
	p.hostUID, p.hostGID = started.hostUID, started.hostGID
	dog.pid = b.proc.pid
	if b.group != nil {
		if err := b.group.add(b.proc.pid); err != nil {
			b.proc.end()
			return line{}, &Error{Kind: ErrRuntime, Op: "limit the sandbox", Err: err}
		}
	}
	return line{to: b.proc.stdin, from: b.proc.stdout}, nil
}

func (b *embeddedBox) configs() ([]frame.Config, error) {
	first, err := b.plan.jailConfig()
	return []frame.Config{first, b.plan.config}, err
}

func (b *embeddedBox) prove(r frame.Readiness) ([]Property, error) {
	shim, err := b.shim.Stat()
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "look at the shim", Err: err}
	}
	self, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "look at this process", Err: err}
	}
	filters, _ := strconv.Atoi(parseStatus(string(self))["Seccomp_filters"])
	var groups []int
	if !b.plan.asRoot {
		if groups, err = os.Getgroups(); err != nil {
			return nil, &Error{Kind: ErrRuntime, Op: "look at this process's groups", Err: err}
		}
		slices.Sort(groups)
	}
	props := prove(subject{
		proc:      "/proc/" + strconv.Itoa(b.proc.pid),
		hostUID:   b.plan.hostUID,
		hostGID:   b.plan.hostGID,
		groups:    groups,
		pipes:     b.proc.pipes,
		shim:      shim,
		entries:   b.plan.root.entries,
		rlimits:   b.rlimits,
		filters:   filters + 1, // the launcher's own, and the shim's
		witness:   true,
		readiness: r,
	})
	return append(props, b.limitProperties()...), nil
}

// limitProperties tells how each limit is enforced.
func (b *embeddedBox) limitProperties() []Property {
	p := b.plan
	limit := func(name string, none bool, otherwise string) Property {
		switch {
		case none:
			return Property{Name: name, Status: NotRequested}
		case b.group.limits(name):
			problem, evidence := b.group.verify(name, b.proc.pid)
			if problem != "" {
				return Property{Name: name, Status: Missing, Evidence: problem, Remedy: remedyOf(name)}
			}
			return Property{Name: name, Status: Enforced, Evidence: evidence}
		case otherwise == "":
			return Property{Name: name, Status: Missing, Evidence: "no control group may be used here, and nothing else limits it", Remedy: remedyOf(name)}
		}
		return Property{Name: name, Status: Enforced, Evidence: otherwise}
	}
	processes := limit("process-limit", p.limits.Processes == 0, fmt.Sprintf("RLIMIT_NPROC in the user namespace is %d", p.limits.Processes+shimThreads))
	if processes.Status == Enforced {
		processes.Evidence += fmt.Sprintf("; %d of it for the shim's threads", shimThreads)
	}
	return []Property{
		limit("memory-limit", p.limits.Memory == 0, memoryEvidence(p.limits, b.dog.reserve)),
		processes,
		limit("cpu-limit", p.limits.CPUs == 0, ""),
		limit("disk-limit", p.limits.Disk == 0, diskEvidence(p.spec, p.limits)),
	}
}

// describe has nothing to tell: the host's programs run.
func (b *embeddedBox) describe(*Result) {}

// look has nothing to note: the control group stays until it is removed.
func (b *embeddedBox) look() {}

func (b *embeddedBox) kill() { b.proc.kill() }

func (b *embeddedBox) gone() <-chan struct{} { return b.proc.done }

func (b *embeddedBox) lastWords() string {
	select {
	case <-b.proc.done:
		if words := b.proc.log.String(); words != "" {
			return words
		}
		return b.proc.state.String() // an exit status or a signal
	default:
		return b.proc.log.String()
	}
}

func (b *embeddedBox) end() (boxUsage, error) {
	b.proc.end()
	return boxUsage{b.group.oomKills(), b.group.forkFailures(), b.group.peak()}, b.group.remove()
}
