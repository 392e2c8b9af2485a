package sandbox

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestFilter runs the compiled filter in a virtual machine.
func TestFilter(t *testing.T) {
	t.Parallel()
	raw, err := systemCallFilter()
	if err != nil {
		t.Fatal(err)
	}
	var prog []bpf.RawInstruction
	for b := raw; len(b) > 0; b = b[8:] {
		prog = append(prog, bpf.RawInstruction{Op: binary.NativeEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.NativeEndian.Uint32(b[4:])})
	}
	instructions, all := bpf.Disassemble(prog)
	if !all {
		t.Fatal("the program does not disassemble")
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	info, err := arch.GetInfo(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	call := func(archID, nr uint32, args ...uint64) uint32 {
		// The virtual machine loads in network order, the kernel in its own.
		data := make([]byte, 64)
		binary.BigEndian.PutUint32(data[offsetNr:], nr)
		binary.BigEndian.PutUint32(data[offsetArch:], archID)
		for i, a := range args {
			binary.BigEndian.PutUint32(data[offsetArgs+8*i:], uint32(a))
			binary.BigEndian.PutUint32(data[offsetArgs+8*i+4:], uint32(a>>32))
		}
		got, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(got)
	}
	const eperm, enosys = retErrno | uint32(unix.EPERM), retErrno | uint32(unix.ENOSYS)
	tests := []struct {
		name string
		args []uint64
		want uint32
	}{
		{"read", nil, retAllow},
		{"openat", nil, retAllow},
		{"execve", nil, retAllow},
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, retAllow},
		{"clone", []uint64{unix.CLONE_NEWUSER | unix.CLONE_VM}, eperm},
		{"clone", []uint64{unix.CLONE_NEWNET}, eperm},
		{"clone", []uint64{unix.CLONE_NEWNS}, eperm},
		{"clone", []uint64{unix.CLONE_NEWPID}, eperm},
		{"clone3", nil, enosys},
		{"unshare", []uint64{0}, eperm},
		{"setns", nil, eperm},
		{"mount", nil, eperm},
		{"umount2", nil, eperm},
		{"move_mount", nil, eperm},
		{"open_tree", nil, eperm},
		{"fsopen", nil, eperm},
		{"mount_setattr", nil, eperm},
		{"pivot_root", nil, eperm},
		{"chroot", nil, eperm},
		{"io_uring_setup", nil, eperm},
		{"io_uring_enter", nil, eperm},
		{"bpf", nil, eperm},
		{"keyctl", nil, eperm},
		{"add_key", nil, eperm},
		{"request_key", nil, eperm},
		{"userfaultfd", nil, eperm},
		{"perf_event_open", nil, eperm},
		{"process_vm_readv", nil, eperm},
		{"process_vm_writev", nil, eperm},
		{"pidfd_getfd", nil, eperm},
		{"kcmp", nil, eperm},
		{"init_module", nil, eperm},
		{"kexec_load", nil, eperm},
		{"open_by_handle_at", nil, eperm},
		{"ptrace", []uint64{unix.PTRACE_TRACEME}, retAllow},
		{"ptrace", []uint64{unix.PTRACE_ATTACH}, eperm},
		{"ptrace", []uint64{unix.PTRACE_SEIZE}, eperm},
		{"ioctl", []uint64{0, unix.TCGETS}, retAllow},
		{"ioctl", []uint64{0, unix.TIOCSTI}, eperm},
		{"ioctl", []uint64{0, unix.TIOCSTI | 1<<40}, eperm}, // the kernel reads 32 bits of it
		{"ioctl", []uint64{0, unix.TIOCLINUX}, eperm},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, retAllow},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM}, retAllow},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM}, retAllow},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, retAllow},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, retAllow},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, eperm},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, eperm},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, eperm},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, eperm},
		{"memfd_create", []uint64{0, unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING}, retAllow},
		{"memfd_create", []uint64{0, unix.MFD_HUGETLB}, eperm},
		{"mmap", []uint64{0, 4096, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, retAllow},
		{"mmap", []uint64{0, 2 << 20, unix.PROT_READ, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, eperm},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, retAllow},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, eperm},
		{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, eperm},
		{"socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW}, eperm},
		{"socket", []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, eperm},
		{"socket", []uint64{unix.AF_VSOCK | 1<<32, unix.SOCK_STREAM}, eperm},
		{"socketpair", []uint64{unix.AF_UNIX}, retAllow},
		{"socketpair", []uint64{unix.AF_TIPC}, eperm},
		{"prlimit64", []uint64{0, unix.RLIMIT_NOFILE}, retAllow},
		{"prlimit64", []uint64{1, unix.RLIMIT_NOFILE}, eperm},
		{"personality", []uint64{0xffffffff}, retAllow},
		{"personality", []uint64{0x0400000}, eperm}, // READ_IMPLIES_EXEC
		{"landlock_restrict_self", nil, retAllow},
		{"seccomp", nil, retAllow},
		{"close_range", nil, retAllow},
	}
	for _, tt := range tests {
		nr, ok := info.SyscallNames[tt.name]
		if !ok {
			t.Errorf("%s is unknown here", tt.name)
			continue
		}
		if got := call(uint32(info.ID), uint32(nr), tt.args...); got != tt.want {
			t.Errorf("%s%x: %#x, want %#x", tt.name, tt.args, got, tt.want)
		}
	}
	if got := call(uint32(info.ID), 9999); got != enosys {
		t.Errorf("a call of the future: %#x", got)
	}
	if got := call(uint32(info.ID), x32Bit); got != enosys {
		t.Errorf("a call of the second ABI: %#x", got)
	}
	if got := call(uint32(arch.I386.ID), 11); got != enosys {
		t.Errorf("a call of another architecture: %#x", got)
	}
	if runtime.GOARCH == "amd64" {
		// Every number is decided: only what the rules name is allowed.
		rules, _ := filterRules(info)
		named := map[uint32]bool{}
		for _, r := range rules {
			named[r.nr] = true
		}
		for nr := range uint32(600) {
			if got := call(uint32(info.ID), nr); got == retAllow && !named[nr] {
				t.Errorf("call %d is allowed by no rule", nr)
			}
		}
	}
}
