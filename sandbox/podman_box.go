package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/podman"
)

// podmanBox is one container, from its making to its removal.
type podmanBox struct {
	plan   *podmanPlan
	client *podman.Client
	weak   func(*podman.Spec)

	caller      context.Context // of start
	dog         *watchdog
	id          string
	engine      string // the OCI runtime that Podman has chosen
	stream      *podman.Stream
	from        *io.PipeReader // what the shim sends
	copied      chan struct{}  // closed when the stream has ended
	log         tail           // what the shim and the service said of their trouble
	pid         int
	groups      groups
	freezer     freezer
	shim        *watchedProcess
	keeper      *watchedProcess // Podman's process beside the container, which removes it at its end
	serving     sync.WaitGroup  // what is asked of the service while the container runs
	stopServing context.CancelFunc

	mu      sync.Mutex
	killed  bool
	unheard bool // the service does not answer any more
	used    boxUsage
}

func (b *podmanBox) start(ctx context.Context, dog *watchdog) (_ line, err error) {
	p := b.plan
	b.caller, b.dog, b.log.max = ctx, dog, 8<<10
	if !p.service.limits["memory-limit"] {
		dog.limitMemory(p.limits.Memory)
	}
	if !p.service.limits["process-limit"] {
		dog.processes = p.limits.Processes
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			b.release()
			err = errors.Join(err, b.remove())
		}
	}()
	if err := b.make(ctx); err != nil {
		return line{}, err
	}
	if b.stream, err = b.client.Attach(ctx, b.id); err != nil {
		return line{}, b.startError("prepare the container", err)
	}
	if err := b.find(ctx); err != nil {
		return line{}, err
	}
	dog.pid = b.pid
	b.read()
	var serving context.Context
	serving, b.stopServing = context.WithCancel(context.Background())
	b.startContainer(serving)
	b.watchService(serving)
	return line{to: b.stream, from: b.from}, nil
}

// startContainer has the first process started. The shim speaks before Podman has
// answered, so nobody waits for that; a failure ends the sandbox, with Podman's
// words for the last.
func (b *podmanBox) startContainer(ctx context.Context) {
	b.serving.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, createTimeout)
		defer cancel()
		if err := b.client.Start(ctx, b.id); err != nil && ctx.Err() == nil {
			_, _ = b.log.Write([]byte("start the container: " + err.Error()))
			b.kill()
		}
	})
}

// make makes the container. One of that name is what a dead kick of this id has
// left, since the id is claimed.
func (b *podmanBox) make(ctx context.Context) error {
	spec := b.plan.create // the expectations stay what they are
	if b.weak != nil {
		b.weak(&spec)
	}
	created, err := b.client.Create(ctx, spec)
	if isNameTaken(err) {
		var old podman.Container
		if old, err = b.client.Inspect(ctx, b.plan.create.Name); err == nil && old.Config.Labels[labelID] != b.plan.spec.ID {
			return &Error{Kind: ErrRuntime, Op: "make the container " + b.plan.create.Name, Err: errors.New("there is one of that name, and it is not kick's"), Remedy: "Rename or remove it"}
		}
		if err == nil {
			err = removeContainer(ctx, b.client, old.ID)
		}
		if err != nil && !podman.IsStatus(err, http.StatusNotFound) {
			return b.startError("remove what a dead kick of this id has left", err)
		}
		created, err = b.client.Create(ctx, spec)
	}
	if err != nil {
		return b.startError("make the container", err)
	}
	b.id = created.ID
	if len(created.Warnings) > 0 {
		return &Error{Kind: ErrIsolation, Op: "container", Err: fmt.Errorf("Podman says: %s", escaped(strings.Join(created.Warnings, "; "))),
			Remedy: "Set the service up so that it can give what it says it ignores, or set no such limit"}
	}
	return nil
}

func isNameTaken(err error) bool {
	var e *podman.Error
	return errors.As(err, &e) && (e.Status == http.StatusConflict || strings.Contains(e.Message+e.Cause, "already in use"))
}

// startError says what may help where Podman could not do its part.
func (b *podmanBox) startError(op string, err error) error {
	if b.caller.Err() != nil {
		return context.Cause(b.caller)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in %v", createTimeout)
	}
	remedy := ""
	for _, r := range []struct{ text, remedy string }{
		{"cannot run with network enabled", "gVisor wants to be told that it has no network: name a program below [engine.runtimes] in the service's containers.conf that runs runsc --network=none (see docs/podman.md)"},
		{"hybrid", "This host has control groups of both versions, which crun refuses: use runc (runtime = \"runc\" in the [engine] section of containers.conf)"},
		{"rlimit", "The service is under lower limits of open files or processes than kick is: raise them, or start kick under the same"},
		{"RLIMIT", "The service is under lower limits of open files or processes than kick is: raise them, or start kick under the same"},
		{"executable file", "The shim could not be executed in the container"},
		{"newuidmap", "Install uidmap and give this user ranges in /etc/subuid and /etc/subgid"},
		{"/etc/subuid", "Give this user ranges in /etc/subuid and /etc/subgid"},
		{shimPath + "\": stat", "The image's /run, and /run/kick if it has it, must be directories that everybody may enter"},
		{"permission denied", "The service must be able to read kick's state directory"},
	} {
		if remedy == "" && strings.Contains(err.Error(), r.text) {
			remedy = r.remedy
		}
	}
	return &Error{Kind: ErrRuntime, Op: op, Err: err, Remedy: remedy}
}

// find finds the container's first process on this host, which waits to be
// started.
func (b *podmanBox) find(ctx context.Context) error {
	c, err := b.client.Inspect(ctx, b.id)
	if err != nil {
		return b.startError("look at the container", err)
	}
	b.engine, b.pid = c.OCIRuntime, c.State.Pid
	if b.pid <= 1 {
		return &Error{Kind: ErrRuntime, Op: "find the container's process", Err: fmt.Errorf("Podman says that it is %d (%s)", b.pid, escaped(c.State.Status)),
			Remedy: "The service must run in this process namespace: a Podman machine or a remote service cannot be proved from here"}
	}
	if err := checkEngine(b.plan.create.OCIRuntime, b.engine); err != nil {
		return err
	}
	if b.shim, err = watchProcess(b.pid); err == nil {
		b.keeper, err = watchProcess(parentProcess(b.pid))
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "find the container's process", Err: fmt.Errorf("process %d: %w", b.pid, err),
			Remedy: "The service must run in this process namespace: a Podman machine or a remote service cannot be proved from here"}
	}
	b.groups, b.freezer = groupsOf(b.pid), freezerOf(b.pid)
	for limit, controller := range limitControllers {
		if !b.plan.service.limits[limit] {
			delete(b.groups.dirs, controller) // the group is the service's, and counts others too
		}
	}
	return nil
}

// read passes on what the shim sends.
func (b *podmanBox) read() {
	r, w := io.Pipe()
	b.from = r
	b.copied = make(chan struct{})
	go func() {
		defer close(b.copied)
		err := b.stream.Copy(w, &b.log)
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil && !b.killed {
			_, _ = b.log.Write([]byte(err.Error()))
		}
		_ = w.Close() // what is missing, the conversation knows
	}()
}

// How often the service is asked whether it still answers, and the container
// looked at. A service that stands still would leave the sandbox's words unheard,
// and a container that was paused would be waited for to its end.
const pingEvery = 5 * time.Second

// pingTimeout is how long the answer may take, which has no work behind it:
// measured, 0.2 s at most at a load of 20 on two processors.
var pingTimeout = 15 * time.Second // tests of a service that stands still wait less

func (b *podmanBox) watchService(ctx context.Context) {
	lost := make(chan loss, 1)
	b.dog.lost = lost
	b.serving.Go(func() {
		t := time.NewTicker(pingEvery)
		defer t.Stop()
		wasFrozen := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			frozen := b.freezer.isFrozen()
			if frozen && wasFrozen { // not just for the moment of a snapshot
				lost <- loss{ReasonLost, "the container was paused from outside", "Start the kick again, and let its container run"}
				return
			}
			wasFrozen = frozen
			asking, stop := context.WithTimeout(ctx, pingTimeout)
			_, err := b.client.Ping(asking)
			stop()
			if err != nil && ctx.Err() == nil {
				b.mu.Lock()
				b.unheard = true
				b.mu.Unlock()
				b.plan.service.silent.Store(true)
				lost <- loss{ReasonLost, fmt.Sprintf("the Podman service does not answer any more (%v)", err), "Look at the service's log, start it again, and then the kick"}
				return
			}
		}
	})
}

func (b *podmanBox) configs() ([]frame.Config, error) { return b.plan.configs() }

// kill ends the container's first process, and with it all others. What it
// wrote before that still comes, unless the service stands still.
func (b *podmanBox) kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.killed {
		return
	}
	b.killed = true
	b.shim.kill()
	b.freezer.thaw() // it dies of that without running on
	time.AfterFunc(killGrace, func() { b.stream.Close() })
}

// killGrace is how long the service may take to pass on the last output.
const killGrace = 5 * time.Second

func (b *podmanBox) gone() <-chan struct{} { return b.shim.ended }

func (b *podmanBox) lastWords() string { return b.log.String() }

// describe tells what ran.
func (b *podmanBox) describe(r *Result) {
	kind := "rootless"
	if b.plan.service.rootful {
		kind = "rootful"
	}
	r.Image = b.plan.image.pinned
	r.Isolation.Engine = fmt.Sprintf("Podman %s, %s, %s", b.plan.service.version, kind, filepath.Base(b.engine))
}

// look reads the container's control groups, which go with it.
func (b *podmanBox) look() {
	u := b.groups.usage()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.oomKills = max(b.used.oomKills, u.oomKills)
	b.used.forkFailures = max(b.used.forkFailures, u.forkFailures)
	b.used.peak.Memory = max(b.used.peak.Memory, u.peak.Memory)
	b.used.peak.Processes = max(b.used.peak.Processes, u.peak.Processes)
}

func (b *podmanBox) end() (boxUsage, error) {
	b.look()
	select {
	case <-b.shim.ended: // by itself, after its last word
	case <-time.After(killGrace):
		b.kill()
	}
	b.release()
	return b.used, b.remove()
}

// release ends the container, if it has not ended, and closes what the launcher
// has open.
func (b *podmanBox) release() {
	if b.stopServing != nil {
		b.stopServing()
	}
	b.serving.Wait()
	if b.stream != nil {
		b.stream.Close()
	}
	if b.from != nil {
		_ = b.from.Close() // what nobody reads any more would be waited for
		<-b.copied
	}
	b.mu.Lock()
	b.killed = true // from here on there is nothing to kill
	b.mu.Unlock()
	if b.shim != nil {
		b.shim.kill()
		b.freezer.thaw()
		b.shim.wait(removeTimeout)
	}
}

// remove removes the container. Podman's process beside it starts to do the same
// by a new podman program, which takes several times as long as the service
// does; it is not waited for. Where the service does not answer, it is.
func (b *podmanBox) remove() error {
	var err error
	done := b.id == "" || b.unheard // none was made, or there is nobody to ask
	if !done {
		err = removeContainer(context.Background(), b.client, b.id)
		var refused *podman.Error
		if err != nil && b.keeper != nil && !errors.As(err, &refused) {
			done, err = true, nil // the service is gone
		}
	}
	if b.keeper != nil {
		if !done && err == nil {
			b.keeper.kill() // it has no container any more
		}
		b.keeper.wait(removeTimeout)
	}
	return err
}

// removeContainer removes a container. Podman may be doing the same: then it
// refuses, and is asked again until one of the two is done.
func removeContainer(ctx context.Context, c *podman.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	for {
		err := c.Remove(ctx, name)
		var refused *podman.Error
		if err == nil {
			return nil
		}
		if !errors.As(err, &refused) || ctx.Err() != nil {
			return &Error{Kind: ErrRuntime, Op: "remove the container " + name, Err: err, Remedy: "Its processes are dead; kick gc removes the rest when Podman answers again"}
		}
		select {
		case <-time.After(10 * time.Millisecond): // nothing tells when Podman is done
		case <-ctx.Done():
		}
	}
}

// watchedProcess is a process that is no child of this one. Its descriptor is of
// that very process, whatever becomes of its number.
type watchedProcess struct {
	file  *os.File
	raw   syscall.RawConn
	ended chan struct{}
}

func watchProcess(pid int) (*watchedProcess, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	p := &watchedProcess{file: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		p.file.Close()
		return nil, err
	}
	go func() {
		defer close(p.ended)
		// It is readable when the process has ended. An error comes when it is
		// closed.
		_ = p.raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 && err == nil
		})
	}()
	return p, nil
}

// kill kills the process. An error means that it is gone already.
func (p *watchedProcess) kill() {
	_ = p.raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// wait waits for the end, at most so long, and frees the descriptor.
func (p *watchedProcess) wait(most time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(most):
	}
	p.file.Close()
	<-p.ended
}

func parentProcess(pid int) int {
	parent, _ := parentOf(pid) // 0, which no process has, if it is gone
	return parent
}

// groups are the control groups that a process is in, with all that are above
// them, as this process sees them.
type groups struct{ dirs map[string][]string } // by controller, the process's own first

func groupsOf(pid int) groups {
	g := groups{map[string][]string{}}
	mounts, err := hostMounts()
	if err != nil {
		return g
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return g
	}
	for _, h := range findHierarchies(mounts, string(text)) {
		for _, c := range controllers {
			if len(g.dirs[c]) > 0 {
				continue
			}
			for at := h.own; within(at, []string{h.mount}); at = filepath.Dir(at) {
				if h.version == 2 || hasController(h, c) {
					g.dirs[c] = append(g.dirs[c], at)
				}
			}
		}
	}
	return g
}

func hasController(h hierarchy, name string) bool {
	for _, c := range h.controllers {
		if c == name {
			return true
		}
	}
	return false
}

// usage is what the process's own groups have counted.
func (g groups) usage() boxUsage {
	own := &cgroup{dirs: map[string]string{}}
	for c, dirs := range g.dirs {
		own.dirs[c] = dirs[0]
	}
	return boxUsage{own.oomKills(), own.forkFailures(), own.peak()}
}
