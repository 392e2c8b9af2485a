package sandbox

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The system call filter of the embedded runtime: what the containers of Docker
// and containerd may call without any capability, less what follows. The
// profile is an allow-list; what it does not name is refused with EPERM, and
// what is newer than it knows with ENOSYS, so that programs fall back.

// refusedCalls are in the profile and not in ours.
var refusedCalls = []string{
	"process_vm_readv", "process_vm_writev", // of other processes; debuggers use ptrace for their own
	"memfd_secret", // memory that no watchdog sees
	"name_to_handle_at", "fanotify_mark",
	"modify_ldt", // a source of kernel holes; only 16-bit programs use it
	"vmsplice",   // likewise, and nothing that agents run needs it
	"clock_adjtime", "clock_adjtime64", "adjtimex",
	"lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
}

// condition allows a call only if the low 32 bits of an argument, masked,
// compare as said. The kernel reads no more than those of any argument that is
// named here.
type condition struct {
	arg   uint32
	mask  uint32 // 0: all bits
	value uint32
	not   bool
}

// rule allows a call, if it has alternatives only where all conditions of one
// of them hold.
type rule struct {
	nr           uint32
	alternatives [][]condition
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// narrowed are calls that are allowed with some arguments only. They replace
// what the profile says of them.
var narrowed = map[string][][]condition{
	"clone": {{{arg: 0, mask: newNamespaces, value: 0}}},
	// Local sockets, TCP and UDP (the sandbox has loopback alone) and the
	// routing table. Everything else is kernel surface, other protocols of the
	// Internet too, and AF_VSOCK is not confined by network namespaces.
	"socket": {
		{{arg: 0, value: unix.AF_UNIX}},
		{{arg: 0, value: unix.AF_INET}, {arg: 2, value: 0}},
		{{arg: 0, value: unix.AF_INET}, {arg: 2, value: unix.IPPROTO_TCP}},
		{{arg: 0, value: unix.AF_INET}, {arg: 2, value: unix.IPPROTO_UDP}},
		{{arg: 0, value: unix.AF_INET6}, {arg: 2, value: 0}},
		{{arg: 0, value: unix.AF_INET6}, {arg: 2, value: unix.IPPROTO_TCP}},
		{{arg: 0, value: unix.AF_INET6}, {arg: 2, value: unix.IPPROTO_UDP}},
		{{arg: 0, value: unix.AF_NETLINK}, {arg: 2, value: unix.NETLINK_ROUTE}},
	},
	// Huge pages are a pool of the host that no limit of ours counts.
	"memfd_create": {{{arg: 1, mask: unix.MFD_HUGETLB, value: 0}}},
	"mmap":         {{{arg: 3, mask: unix.MAP_HUGETLB, value: 0}}},
	"socketpair":   {{{arg: 0, value: unix.AF_UNIX}}},
	// Typing into a terminal, and driving the console's selection.
	"ioctl": {{{arg: 1, value: unix.TIOCSTI, not: true}, {arg: 1, value: unix.TIOCLINUX, not: true}}},
	// A debugger may start its own process; nothing may attach to another.
	"ptrace": {{{arg: 0, value: unix.PTRACE_ATTACH, not: true}, {arg: 0, value: unix.PTRACE_SEIZE, not: true}}},
	// The limits of others, process 1's above all, are not the agent's.
	"prlimit64": {{{arg: 0, value: 0}}},
	"personality": {
		{{arg: 0, value: 0}}, {{arg: 0, value: 8}}, {{arg: 0, value: 0x20000}}, {{arg: 0, value: 0x20008}}, {{arg: 0, value: 0xffffffff}},
	},
}

// systemCallFilter is the compiled filter, for the shim to load as it is.
var systemCallFilter = sync.OnceValues(func() ([]byte, error) {
	info, err := arch.GetInfo(runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("system call filter: %w", err)
	}
	rules, newest := filterRules(info)
	return compileFilter(info, rules, newest)
})

// filterRules returns the rules by number, and the largest number that the
// profile knows, allowed or not.
func filterRules(info *arch.Info) (rules []rule, newest uint32) {
	allowed := map[string]bool{}
	for _, s := range seccomp.DefaultProfile().Syscalls {
		for _, name := range s.Names {
			if nr, ok := info.SyscallNames[name]; ok {
				newest = max(newest, uint32(nr))
			}
			if s.Action == specs.ActAllow && applies(s) {
				allowed[name] = true
			}
		}
	}
	for _, name := range refusedCalls {
		delete(allowed, name)
	}
	for name := range allowed {
		nr, ok := info.SyscallNames[name]
		if !ok {
			continue // of another architecture
		}
		rules = append(rules, rule{uint32(nr), narrowed[name]})
	}
	slices.SortFunc(rules, func(a, b rule) int { return int(a.nr) - int(b.nr) })
	return rules, newest
}

// applies reports whether a part of the profile holds for a process without
// capabilities on this architecture. Conditions on the kernel's version are
// met by every kernel that has Landlock.
func applies(s *seccomp.Syscall) bool {
	if in := s.Includes; in != nil {
		if len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, runtime.GOARCH) {
			return false
		}
	}
	return s.Excludes == nil || !slices.Contains(s.Excludes.Arches, runtime.GOARCH)
}

// Offsets in struct seccomp_data, and return values, from linux/seccomp.h.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16 // 8 bytes each, the low half first on the architectures that we compile for

	retAllow = 0x7fff0000
	retErrno = 0x00050000

	x32Bit = 0x40000000 // set in the numbers of amd64's second ABI
)

// compileFilter makes the program. Every path that has loaded an argument ends
// in a return, so that a number is never compared with an argument.
func compileFilter(info *arch.Info, rules []rule, newest uint32) ([]byte, error) {
	allow := bpf.RetConstant{Val: retAllow}
	refuse := bpf.RetConstant{Val: retErrno | uint32(unix.EPERM)}
	unknown := bpf.RetConstant{Val: retErrno | uint32(unix.ENOSYS)}
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		unknown,
		bpf.LoadAbsolute{Off: offsetNr, Size: 4},
		// This takes the second ABI along, whose numbers have a high bit.
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: min(newest, x32Bit-1), SkipFalse: 1},
		unknown,
		// Its flags are behind a pointer, out of a filter's sight; C libraries
		// fall back to clone.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		unknown,
	}
	for i := 0; i < len(rules); i++ {
		r := rules[i]
		if len(r.alternatives) > 0 {
			block := compileAlternatives(r.alternatives, allow, refuse)
			if len(block) > 255 {
				return nil, fmt.Errorf("system call filter: %d instructions for call %d", len(block), r.nr)
			}
			prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: r.nr, SkipTrue: uint8(len(block))})
			prog = append(prog, block...)
			continue
		}
		last := r.nr
		for i+1 < len(rules) && rules[i+1].nr == last+1 && len(rules[i+1].alternatives) == 0 {
			i++
			last = rules[i].nr
		}
		prog = append(prog,
			bpf.JumpIf{Cond: bpf.JumpLessThan, Val: r.nr, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: last, SkipTrue: 1},
			allow)
	}
	prog = append(prog, refuse)
	return encodeFilter(prog)
}

func compileAlternatives(alternatives [][]condition, allow, refuse bpf.Instruction) []bpf.Instruction {
	var block []bpf.Instruction
	for _, conditions := range alternatives {
		var one []bpf.Instruction
		for i := len(conditions) - 1; i >= 0; i-- { // backwards: jumps skip what follows
			c := conditions[i]
			skip := uint8(len(one) + 1) // the rest of this alternative, with its return
			jump := bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.value, SkipFalse: skip}
			if c.not {
				jump = bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.value, SkipFalse: skip}
			}
			test := []bpf.Instruction{bpf.LoadAbsolute{Off: offsetArgs + 8*c.arg, Size: 4}}
			if c.mask != 0 {
				test = append(test, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask})
			}
			one = append(append(test, jump), one...)
		}
		block = append(append(block, one...), allow)
	}
	return append(block, refuse)
}

func encodeFilter(prog []bpf.Instruction) ([]byte, error) {
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return nil, fmt.Errorf("system call filter: %w", err)
	}
	if len(raw) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("system call filter: %d instructions, the kernel takes %d", len(raw), unix.BPF_MAXINSNS)
	}
	var out []byte
	for _, in := range raw {
		out = binary.NativeEndian.AppendUint16(out, in.Op)
		out = append(out, in.Jt, in.Jf)
		out = binary.NativeEndian.AppendUint32(out, in.K)
	}
	return out, nil
}
