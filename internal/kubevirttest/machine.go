package kubevirttest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

// finalizer is what KubeVirt has on every instance until its machine is gone.
const finalizer = "foregroundDeleteVirtualMachine"

// machine is one instance and its QEMU.
type machine struct {
	plane           *KubeVirt
	namespace, name string
	uid             string
	spec            kubevirtapi.InstanceSpec

	delete  sync.Once
	deleted chan struct{} // closed when the instance is to go
	ended   chan struct{} // closed when nothing of it is left

	mu    sync.Mutex
	port  int // of its sshd, on this host; 0: it does not run
	cmd   *exec.Cmd
	qmp   net.Conn
	lines map[io.Closer]bool // that come to it by portforward
	other func(net.Conn)     // who answers them in its place; nil: it does
	said  string             // on the console of one that has ended
}

// come is a connection to the machine's sshd, or to who answers in its place; nil if the
// machine does not run.
func (m *machine) come() (net.Conn, error) {
	m.mu.Lock()
	port, other := m.port, m.other
	m.mu.Unlock()
	switch {
	case port == 0:
		return nil, nil
	case other != nil:
		ours, theirs := net.Pipe()
		go other(theirs)
		return ours, nil
	}
	return net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// Replace has somebody else answer in place of an instance's machine from now on, who
// closes each connection, and cuts those that there are.
func (k *KubeVirt) Replace(t testing.TB, namespace, name string, other func(net.Conn)) {
	t.Helper()
	m := k.machine(namespace, name)
	if m == nil {
		t.Fatalf("there is no machine %s", name)
	}
	m.mu.Lock()
	m.other = other
	m.mu.Unlock()
	k.Cut(namespace, name)
}

// connect notes a connection until the function that it returns is called.
func (m *machine) connect(c io.Closer) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lines == nil {
		m.lines = map[io.Closer]bool{}
	}
	m.lines[c] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.lines, c)
	}
}

// Cut ends all connections with an instance's machine, as an API server that restarts
// does, and says how many there were.
func (k *KubeVirt) Cut(namespace, name string) (n int) {
	m := k.machine(namespace, name)
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.lines {
		_ = c.Close() // that is the point
		n++
	}
	return n
}

func (m *machine) over() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

// run is the life of a machine, as KubeVirt's controllers tell of it.
func (m *machine) run(ctx context.Context) {
	defer close(m.ended)
	m.plane.set(m.namespace, m.name, map[string]any{"metadata": map[string]any{"finalizers": []string{finalizer}}})
	phase := m.live(ctx)
	if phase != "" && ctx.Err() == nil {
		m.status(phase, condition(kubevirtapi.Ready, corev1.ConditionFalse, "PodTerminating", "the machine has ended"))
		select {
		case <-m.deleted:
		case <-ctx.Done():
		}
	}
	m.plane.set(m.namespace, m.name, map[string]any{"metadata": map[string]any{"finalizers": nil}})
}

// live boots the machine and waits for its end. It returns the phase after that;
// empty if the instance was deleted.
func (m *machine) live(ctx context.Context) kubevirtapi.Phase {
	m.status(kubevirtapi.Scheduling, condition(kubevirtapi.Ready, corev1.ConditionFalse, "GuestNotRunning", "Guest VM is not reported as running"))
	dir := m.dir()
	defer func() {
		said := m.console()
		m.mu.Lock()
		m.said = said
		m.mu.Unlock()
		_ = os.RemoveAll(dir) // else with all else of the plane, at its end
	}()
	args, err := m.prepare(ctx, dir)
	var held *unready
	switch {
	case errors.As(err, &held): // for good, as far as this node knows
		m.status(kubevirtapi.Scheduling, condition(kubevirtapi.Synchronized, corev1.ConditionFalse, held.reason, held.message))
		<-either(m.deleted, ctx.Done())
		return ""
	case err != nil:
		return "" // deleted meanwhile
	}
	m.status(kubevirtapi.Scheduled, condition(kubevirtapi.Ready, corev1.ConditionFalse, "GuestNotRunning", "Guest VM is not reported as running"))
	exited, err := m.boot(dir, args)
	if err != nil {
		m.status(kubevirtapi.Scheduled, condition(kubevirtapi.Synchronized, corev1.ConditionFalse, "Synchronizing with the Domain failed.", err.Error()))
		<-either(m.deleted, ctx.Done())
		return ""
	}
	if m.spec.ReadinessProbe != nil {
		m.status(kubevirtapi.Running, condition(kubevirtapi.Ready, corev1.ConditionFalse, "GuestNotReady", "the readiness probe has not succeeded yet"))
		m.probe(ctx)
	}
	if !m.off() {
		m.status(kubevirtapi.Running, condition(kubevirtapi.Ready, corev1.ConditionTrue, "", ""))
	}
	select {
	case phase := <-exited:
		return phase
	case <-m.deleted:
	case <-ctx.Done():
	}
	m.kill()
	<-exited
	return ""
}

// probe waits until the machine's sshd answers. QEMU's own network takes a connection
// before the machine does, so it is what sshd says first that counts.
func (m *machine) probe(ctx context.Context) {
	for !m.off() {
		m.mu.Lock()
		port := m.port
		m.mu.Unlock()
		if conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second)) // else Read says so
			n, _ := conn.Read(make([]byte, 1))
			_ = conn.Close()
			if n > 0 {
				return
			}
		}
		if !kube.Pause(ctx, time.Second) {
			return
		}
	}
}

// off tells a machine that does not run any more, or is to go.
func (m *machine) off() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.deleted:
		return true
	default:
		return m.port == 0
	}
}

func either(a, b <-chan struct{}) <-chan struct{} {
	one := make(chan struct{})
	go func() {
		defer close(one)
		select {
		case <-a:
		case <-b:
		}
	}()
	return one
}

// unready is why a machine does not come to its start.
type unready struct{ reason, message string }

func (u *unready) Error() string { return u.reason + ": " + u.message }

// prepare makes the machine's disks, and returns QEMU's arguments for them.
func (m *machine) prepare(ctx context.Context, dir string) ([]string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, &unready{"Failed", err.Error()}
	}
	volumes := map[string]kubevirtapi.Volume{}
	for _, v := range m.spec.Volumes {
		volumes[v.Name] = v
	}
	var args []string
	for i, d := range m.spec.Domain.Devices.Disks {
		file, format := filepath.Join(dir, d.Name), "raw"
		switch v := volumes[d.Name]; {
		case v.ContainerDisk != nil && v.ContainerDisk.Image != Image:
			return nil, &unready{"ErrImagePull", fmt.Sprintf("failed to pull image %q: not found", v.ContainerDisk.Image)}
		case v.ContainerDisk != nil:
			format = "qcow2"
			if err := do("qemu-img", "create", "-q", "-f", format, "-b", filepath.Join(m.plane.image, "disk.qcow2"), "-F", "qcow2", file); err != nil {
				return nil, &unready{"Failed", err.Error()}
			}
		case v.Secret != nil:
			if err := m.secretDisk(ctx, v.Secret.SecretName, dir, file, "cfgdata", nil); err != nil {
				return nil, err
			}
		case v.CloudInit != nil:
			names := map[string]string{"userdata": "user-data"}
			if err := m.secretDisk(ctx, v.CloudInit.Secret.Name, dir, file, "cidata", names); err != nil {
				return nil, err
			}
		default:
			return nil, &unready{"Failed", fmt.Sprintf("disk %s has no volume that this knows", d.Name)}
		}
		id := "disk" + strconv.Itoa(i)
		drive := fmt.Sprintf("file=%s,if=none,id=%s,format=%s", file, id, format)
		if d.Disk.ReadOnly {
			drive += ",readonly=on"
		}
		device := "virtio-blk-pci,drive=" + id
		if d.Serial != "" {
			device += ",serial=" + d.Serial
		}
		args = append(args, "-drive", drive, "-device", device)
	}
	return args, nil
}

// secretDisk waits for a Secret, as a kubelet does, and makes a disk of its files, as
// virt-launcher does. With names it is one for cloud-init, whose files have those, and
// there is one more with the instance's name.
func (m *machine) secretDisk(ctx context.Context, name, dir, file, label string, names map[string]string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		<-either(m.deleted, ctx.Done())
		cancel()
	}()
	for {
		s, err := kube.Get[corev1.Secret](ctx, m.plane.client, kube.Secrets, m.namespace, name)
		if err == nil {
			files := filepath.Join(dir, "files")
			if err := os.Mkdir(files, 0o700); err != nil {
				return err
			}
			if names != nil {
				if s.Data == nil {
					s.Data = map[string][]byte{}
				}
				s.Data["meta-data"] = fmt.Appendf(nil, "{instance-id: %q, local-hostname: %q}\n", m.name+"."+m.namespace, m.name)
			}
			for name, content := range s.Data {
				name = cmp.Or(names[name], name)
				if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
					return err
				}
			}
			return do("genisoimage", "-quiet", "-R", "-J", "-V", label, "-o", file, files)
		}
		if !kube.Pause(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func do(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

// boot starts QEMU. The channel tells how the machine ended.
//
// The image's kernel is given to QEMU, which saves the time that a boot loader takes of
// a software CPU. The network of user mode with restrict lets nothing out and one
// port in. An NMI is a panic, for tests, and after a panic the machine is reset, which
// ends QEMU. The kernel does not try out its timers, which come too late for that where
// the host is busy.
func (m *machine) boot(dir string, disks []string) (<-chan kubevirtapi.Phase, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	memory := m.spec.Domain.Memory.Guest
	args := append([]string{
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-nodefaults", "-display", "none", "-no-reboot",
		"-smp", strconv.Itoa(int(m.spec.Domain.CPU.Cores)), "-m", strconv.FormatInt(memory.Value()>>20, 10),
		"-kernel", filepath.Join(m.plane.image, "vmlinuz"), "-initrd", filepath.Join(m.plane.image, "initrd"),
		"-append", "console=ttyS0 quiet no_timer_check panic=-1 oops=panic unknown_nmi_panic sysrq_always_enabled=1",
		"-chardev", "socket,id=console,server=on,wait=off,path=" + filepath.Join(dir, "tty") + ",logfile=" + filepath.Join(dir, "console"), "-serial", "chardev:console", "-qmp", "unix:" + filepath.Join(dir, "qmp") + ",server,nowait",
		"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:22", port), "-device", "virtio-net-pci,netdev=net,romfile=",
	}, disks...)
	cmd := exec.Command("qemu-system-x86_64", args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error), make(chan kubevirtapi.Phase, 1)
	go func() {
		// The death signal comes when the thread that has started QEMU ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		reasons := m.follow(filepath.Join(dir, "qmp"))
		err = cmd.Wait()
		m.mu.Lock()
		m.port = 0
		m.mu.Unlock()
		// The guest's own power-off is an orderly end; everything else is not.
		if <-reasons == "guest-shutdown" && err == nil {
			exited <- kubevirtapi.Succeeded
		} else {
			exited <- kubevirtapi.Failed
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cmd, m.port = cmd, port
	return exited, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// follow tells why the guest has ended, in QEMU's words.
func (m *machine) follow(socket string) <-chan string {
	reason := make(chan string, 1)
	go func() {
		last := ""
		defer func() { reason <- last }()
		var conn net.Conn
		for range 100 {
			var err error
			if conn, err = net.Dial("unix", socket); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond) // QEMU tells nobody when it listens
		}
		if conn == nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(`{"execute":"qmp_capabilities"}` + "\n")) // reading tells
		m.mu.Lock()
		m.qmp = conn
		m.mu.Unlock()
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			var e struct {
				Event string `json:"event"`
				Data  struct {
					Reason string `json:"reason"`
				} `json:"data"`
			}
			if json.Unmarshal(lines.Bytes(), &e) == nil && e.Event == "SHUTDOWN" {
				last = e.Data.Reason
			}
		}
	}()
	return reason
}

func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cmd != nil {
		_ = m.cmd.Process.Kill() // an error means that it is gone already
	}
}

// status tells of the machine what KubeVirt would.
func (m *machine) status(phase kubevirtapi.Phase, conditions ...map[string]any) {
	s := map[string]any{"phase": phase, "conditions": conditions, "activePods": map[string]string{m.uid: m.plane.cluster.Node}}
	if phase == kubevirtapi.Scheduled || phase == kubevirtapi.Running {
		s["nodeName"] = m.plane.cluster.Node
	}
	if phase == kubevirtapi.Running {
		s["interfaces"] = []map[string]any{{"name": "default", "ipAddress": "10.0.2.15", "mac": "52:54:00:12:34:56"}}
	}
	m.plane.set(m.namespace, m.name, map[string]any{"status": s})
}

func condition(kind string, status corev1.ConditionStatus, reason, message string) map[string]any {
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": message, "lastProbeTime": nil, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}
}

// Panic makes the kernel of an instance's machine panic.
func (k *KubeVirt) Panic(t testing.TB, namespace, name string) {
	t.Helper()
	k.command(t, namespace, name, `{"execute":"inject-nmi"}`)
}

// PowerOff has the kernel of an instance's machine turn it off, by a key of its console.
func (k *KubeVirt) PowerOff(t testing.TB, namespace, name string) {
	t.Helper()
	m := k.machine(namespace, name)
	if m == nil {
		t.Fatalf("there is no machine %s", name)
	}
	tty, err := net.Dial("unix", filepath.Join(m.dir(), "tty"))
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	// The break and the key come by two ways, of which either may be the faster.
	for deadline := time.Now().Add(2 * time.Minute); !m.off(); {
		if time.Now().After(deadline) {
			t.Fatalf("the machine %s does not go off: %s", name, k.Console(namespace, name))
		}
		k.command(t, namespace, name, `{"execute":"chardev-send-break","arguments":{"id":"console"}}`)
		if _, err := tty.Write([]byte("o")); err != nil && !m.off() {
			t.Fatal(err)
		}
		kube.Pause(k.ctx, time.Second)
	}
}

// command has QEMU do something with an instance's machine.
func (k *KubeVirt) command(t testing.TB, namespace, name, command string) {
	t.Helper()
	m := k.machine(namespace, name)
	if m == nil {
		t.Fatalf("there is no machine %s", name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.qmp.Write([]byte(command + "\n")); err != nil && m.port != 0 {
		t.Fatal(err)
	}
}

// Kill ends the QEMU of an instance's machine, as a node that runs out of memory does.
func (k *KubeVirt) Kill(t testing.TB, namespace, name string) {
	t.Helper()
	m := k.machine(namespace, name)
	if m == nil {
		t.Fatalf("there is no machine %s", name)
	}
	m.kill()
}

// Console is what the kernel and the first process of an instance's machine have said,
// also when it has ended.
func (k *KubeVirt) Console(namespace, name string) (said string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.nodes {
		if m.namespace == namespace && m.name == name {
			said += m.console()
		}
	}
	return said
}

func (m *machine) console() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, err := os.ReadFile(filepath.Join(m.dir(), "console")); err == nil {
		return string(b)
	}
	return m.said // and else it has said nothing yet
}

// dir is where the files of the machine are.
func (m *machine) dir() string { return filepath.Join(m.plane.dir, m.uid[:8]) }
