// Command probe answers questions about the sandbox that it runs in, for the
// launcher contract suite. It prints one JSON object: question to answer. What
// a sandbox must refuse is answered by the error, or by "allowed".
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const allowed = "allowed"

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("want a question"))
	}
	question, args := os.Args[1], os.Args[2:]
	answer, ok := map[string]func([]string) (map[string]string, error){
		"descriptors": descriptors,
		"calls":       calls,
		"connect":     connect,
		"get":         get,
		"processes":   processes,
		"search":      search,
		"write":       write,
		"read":        read,
		"memory":      memory,
		"ids":         ids,
		"faults":      faults,
	}[question]
	if !ok {
		fail(fmt.Errorf("no question %q", question))
	}
	answers, err := answer(args)
	if err != nil {
		fail(fmt.Errorf("%s: %w", question, err))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// verdict turns the outcome of something forbidden into an answer.
func verdict(err error) string {
	if err == nil {
		return allowed
	}
	return err.Error()
}

// descriptors tells what each open descriptor is. Those that Go's runtime
// opened itself have close-on-exec set, which nothing inherited has.
func descriptors([]string) (map[string]string, error) {
	out := map[string]string{}
	for fd := range 1 << 16 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return nil, err
		}
		out[strconv.Itoa(fd)], _, _ = strings.Cut(link, ":")
	}
	return out, nil
}

// calls tries system calls that open ways out of a sandbox. Each runs on a
// thread of its own, which ends with what it gained.
//
// Where they are not refused they do what they say: with capabilities over the
// host they would unmount its /proc and more, so then none is tried.
func calls([]string) (map[string]string, error) {
	if err := harmless(); err != nil {
		return nil, err
	}
	out := map[string]string{}
	try := func(name string, f func() error) {
		done := make(chan string)
		go func() {
			runtime.LockOSThread()
			done <- verdict(f())
		}()
		out[name] = <-done
	}
	raw := func(trap uintptr, a ...uintptr) func() error {
		var v [6]uintptr
		copy(v[:], a)
		return func() error {
			if _, _, e := unix.Syscall6(trap, v[0], v[1], v[2], v[3], v[4], v[5]); e != 0 {
				return e
			}
			return nil
		}
	}
	for name, flag := range map[string]int{"user": unix.CLONE_NEWUSER, "mount": unix.CLONE_NEWNS, "pid": unix.CLONE_NEWPID, "network": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP} {
		try("unshare "+name, func() error { return unix.Unshare(flag) })
		try("clone "+name, func() error {
			cmd := exec.Command("/proc/self/exe")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: uintptr(flag)}
			if err := cmd.Start(); err != nil {
				return err
			}
			_ = cmd.Wait()
			return nil
		})
	}
	try("setns of process 1", func() error {
		fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Setns(fd, 0)
	})
	try("mount", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") })
	try("bind mount", func() error { return unix.Mount("/usr", "/tmp", "", unix.MS_BIND, "") })
	try("remount", func() error { return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "") })
	try("unmount", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) })
	try("chroot", func() error { return unix.Chroot("/tmp") })
	try("pivot_root", func() error { return unix.PivotRoot("/tmp", "/tmp") })
	try("sethostname", func() error { return unix.Sethostname([]byte("x")) })
	try("device node", func() error { return unix.Mknod("/tmp/device", unix.S_IFBLK|0o600, 8<<8) })
	try("setuid 0", func() error { return raw(unix.SYS_SETUID, 0)() })
	try("setgid 0", func() error { return raw(unix.SYS_SETGID, 0)() })
	try("setgroups", func() error { return unix.Setgroups([]int{0}) })
	try("ptrace of process 1", func() error { return unix.PtraceAttach(1) })
	try("memory of process 1", func() error {
		var b [1]byte
		local := []unix.Iovec{{Base: &b[0], Len: 1}}
		_, err := unix.ProcessVMReadv(1, local, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		return err
	})
	try("descriptor of process 1", func() error {
		fd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 0, 0)
		return err
	})
	try("bpf", raw(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&[128]byte{})), 128))
	try("perf_event_open", func() error {
		_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Size: unix.PERF_ATTR_SIZE_VER0, Type: unix.PERF_TYPE_SOFTWARE}, 0, -1, -1, 0)
		return err
	})
	try("userfaultfd", raw(unix.SYS_USERFAULTFD, 0))
	try("io_uring", raw(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&[256]byte{}))))
	try("keyring", func() error {
		_, err := unix.AddKey("user", "x", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
		return err
	})
	try("kernel module", func() error { return unix.InitModule([]byte{0}, "") })
	try("kexec", raw(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0))
	try("reboot", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) })
	try("set the clock", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: time.Now().Unix()}) })
	try("open by handle", func() error {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, "/", 0)
		if err != nil {
			return err
		}
		_, err = unix.OpenByHandleAt(unix.AT_FDCWD, h, unix.O_RDONLY)
		return err
	})
	for name, s := range map[string][3]int{
		"packet socket": {unix.AF_PACKET, unix.SOCK_RAW, 0},
		"raw socket":    {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"vsock socket":  {unix.AF_VSOCK, unix.SOCK_STREAM, 0},
	} {
		try(name, func() error {
			_, err := unix.Socket(s[0], s[1], s[2])
			return err
		})
	}
	return out, nil
}

// harmless reports whether this process could change the host: whether it has
// capabilities in the host's own user namespace, which maps all ids.
func harmless() error {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	all := strings.Fields(string(ids))
	if len(all) != 3 || all[2] != "4294967295" {
		return nil
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if (name == "CapPrm" || name == "CapEff") && strings.Trim(strings.TrimSpace(value), "0") != "" {
			return errors.New("this process has capabilities over the host: the calls would change it, so none is tried")
		}
	}
	return nil
}

// connect tries addresses such as tcp:127.0.0.1:80, udp:..., unix:/path,
// unix:@name and dns:name, and names the interfaces.
func connect(args []string) (map[string]string, error) {
	out := map[string]string{}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	out["interfaces"] = strings.Join(names, " ")
	for _, a := range args {
		network, address, _ := strings.Cut(a, ":")
		if network == "dns" {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			_, err := net.DefaultResolver.LookupHost(ctx, address)
			cancel()
			out[a] = verdict(err)
			continue
		}
		c, err := net.DialTimeout(network, address, 2*time.Second)
		if err == nil {
			_, err = c.Write([]byte("from the sandbox"))
			c.Close()
		}
		out[a] = verdict(err)
	}
	return out, nil
}

// get fetches /TEXT over unix:/path or tcp:address, ten times at once.
func get(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		network, address, _ := strings.Cut(a, ":")
		client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, address)
			},
		}}
		answers := make(chan string, 10)
		for range cap(answers) {
			go func() {
				res, err := client.Get("http://gateway/" + network)
				if err != nil {
					answers <- err.Error()
					return
				}
				defer res.Body.Close()
				n, err := io.Copy(io.Discard, res.Body)
				answers <- fmt.Sprint(res.Header.Get("X-Path"), " ", n, " ", err)
			}()
		}
		for range cap(answers) {
			s := <-answers
			if old, ok := out[a]; ok && old != s {
				s = old + " / " + s
			}
			out[a] = s
		}
	}
	return out, nil
}

// processes lists the command lines that are to be seen, and tries to signal
// process ids of the host.
func processes(args []string) (map[string]string, error) {
	out := map[string]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/cmdline")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			out[d] = err.Error()
			continue
		}
		out[d] = string(bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
	}
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			return nil, err
		}
		if _, seen := out["/proc/"+a]; !seen {
			out["signal "+a] = verdict(unix.Kill(pid, 0))
		}
	}
	return out, nil
}

// search looks for a text in names and contents of all small files, the
// system's programs apart, and in the environment of all processes.
func search(args []string) (map[string]string, error) {
	if len(args) != 1 {
		return nil, errors.New("want one text")
	}
	text, self := args[0], strconv.Itoa(os.Getpid())
	out := map[string]string{}
	// This process has the text among its arguments, so that only its
	// environment tells something.
	if strings.Contains(strings.Join(os.Environ(), "\n"), text) {
		out["environment"] = "content"
	}
	var looked int
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // not readable, as it should be
		case path == "/usr" || path == "/sys" || path == "/proc/"+self || path == "/proc/self" || path == "/proc/thread-self":
			return filepath.SkipDir
		}
		if strings.Contains(path, text) {
			out[path] = "name"
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return nil
		}
		if strings.HasPrefix(path, "/proc/") && !strings.HasSuffix(path, "/environ") && !strings.HasSuffix(path, "/cmdline") && !strings.HasSuffix(path, "mounts") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		looked++
		if bytes.Contains(b, []byte(text)) {
			out[path] = "content"
		}
		return nil
	})
	out["files"] = strconv.Itoa(looked)
	return out, err
}

// write tries to create a file in each directory, or to open each file for
// writing.
func write(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		flags := os.O_WRONLY
		name := a
		if strings.HasSuffix(a, "/") {
			name, flags = a+"kick-probe", os.O_WRONLY|os.O_CREATE|os.O_EXCL
		}
		f, err := os.OpenFile(name, flags, 0o600)
		if err == nil {
			f.Close()
		}
		out[a] = verdict(err)
	}
	return out, nil
}

// read tries to read one byte of each file, or one name of each directory.
func read(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		out[a] = verdict(readOne(a))
	}
	return out, nil
}

func readOne(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		_, err = f.Readdirnames(1)
		return err
	}
	_, err = f.Read(make([]byte, 1))
	return err
}

// ids tells real and effective user and group.
func ids([]string) (map[string]string, error) {
	return map[string]string{
		"uid": strconv.Itoa(os.Getuid()), "euid": strconv.Itoa(os.Geteuid()),
		"gid": strconv.Itoa(os.Getgid()), "egid": strconv.Itoa(os.Getegid()),
	}, nil
}

// faults sends every signal to process 1 with the look of one that the kernel
// sends for a fault or a timer, by each call that takes such a description.
func faults([]string) (map[string]string, error) {
	pidfd, err := unix.PidfdOpen(1, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return nil, err
	}
	sent := 0
	for sig := 1; sig <= 64; sig++ {
		var info [128]byte // siginfo_t
		*(*int32)(unsafe.Pointer(&info[0])) = int32(sig)
		*(*int32)(unsafe.Pointer(&info[8])) = -60 // SI_ASYNCNL: not from a kill
		at := uintptr(unsafe.Pointer(&info))
		for _, call := range [][4]uintptr{
			{unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(sig), at},
			{unix.SYS_PIDFD_SEND_SIGNAL, uintptr(pidfd), uintptr(sig), at},
		} {
			if _, _, e := unix.Syscall6(call[0], call[1], call[2], call[3], 0, 0, 0); e == 0 {
				sent++
			}
		}
		if _, _, e := unix.Syscall6(unix.SYS_RT_TGSIGQUEUEINFO, 1, 1, uintptr(sig), at, 0, 0); e == 0 {
			sent++
		}
	}
	return map[string]string{"sent": strconv.Itoa(sent)}, nil
}

// memory takes so many bytes and holds them for ever.
func memory(args []string) (map[string]string, error) {
	n, err := strconv.Atoi(strings.Join(args, ""))
	if err != nil {
		return nil, err
	}
	held := make([]byte, n)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	fmt.Println("holding", len(held))
	for {
		time.Sleep(time.Hour)
		held[0]++
	}
}
