package sandbox

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// entry finds the entry of a path in a sandbox's root.
func entry(s *embeddedBox, path string) *frame.Entry {
	i := slices.IndexFunc(s.plan.jail.Entries, func(e frame.Entry) bool { return e.Path == path })
	return &s.plan.jail.Entries[i]
}

// insertMount adds an entry at the end of the root.
func insertMount(s *embeddedBox, e frame.Entry) {
	s.plan.jail.Entries = append(s.plan.jail.Entries, e)
}

// TestPlantedWeaknesses takes one property away at a time. The launcher must
// notice, name it, and run nothing.
func TestPlantedWeaknesses(t *testing.T) {
	t.Parallel()
	allowAll, err := encodeFilter([]bpf.Instruction{bpf.RetConstant{Val: retAllow}})
	if err != nil {
		t.Fatal(err)
	}
	keepNamespace := func(flag uintptr) func(*embeddedBox) {
		return func(b *embeddedBox) { b.plan.clone &^= flag }
	}
	devNull, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer devNull.Close()
	otherShim, err := sealShim(bytes.NewReader(shimBytes))
	if err != nil {
		t.Fatal(err)
	}
	defer otherShim.Close()

	tests := []struct {
		name     string
		property string
		rootOnly bool
		box      func(*embeddedBox)
		process  func(*os.ProcAttr)
	}{
		{name: "host's user namespace", property: "user-namespace", rootOnly: true, process: func(a *os.ProcAttr) {
			a.Sys.Cloneflags &^= unix.CLONE_NEWUSER
			a.Sys.UidMappings, a.Sys.GidMappings, a.Sys.GidMappingsEnableSetgroups = nil, nil, false
		}},
		{name: "host's mount namespace", property: "mount-namespace", box: keepNamespace(unix.CLONE_NEWNS)},
		{name: "host's process namespace", property: "proc", box: keepNamespace(unix.CLONE_NEWPID)},
		{name: "host's network namespace", property: "network-namespace", box: keepNamespace(unix.CLONE_NEWNET)},
		{name: "host's IPC namespace", property: "ipc-namespace", box: keepNamespace(unix.CLONE_NEWIPC)},
		{name: "host's UTS namespace", property: "uts-namespace", box: keepNamespace(unix.CLONE_NEWUTS)},
		{name: "host's cgroup namespace", property: "cgroup-namespace", box: func(b *embeddedBox) { b.plan.jail.Unshare = 0 }},
		{name: "host's root mapped", property: "unprivileged-user", rootOnly: true, box: func(b *embeddedBox) { b.plan.hostUID = 0 }},
		{name: "another user mapped", property: "uid-mapping", rootOnly: true, box: func(b *embeddedBox) { b.plan.hostUID++ }},
		{name: "a supplementary group", property: "supplementary-groups", rootOnly: true, process: func(a *os.ProcAttr) {
			a.Sys.Credential.Groups = []uint32{insideUID}
		}},
		{name: "a capability kept", property: "capabilities", box: func(b *embeddedBox) { b.plan.jail.Capabilities = []int{unix.CAP_NET_ADMIN} }},
		{name: "new privileges", property: "no-new-privileges", box: func(s *embeddedBox) {
			s.plan.jail.NoNewPrivs, s.plan.jail.Filter, s.plan.jail.Landlock = false, nil, nil
		}},
		{name: "no system call filter", property: "seccomp", box: func(b *embeddedBox) { b.plan.jail.Filter = nil }},
		{name: "a system call filter that allows all", property: "seccomp-rules", box: func(b *embeddedBox) { b.plan.jail.Filter = allowAll }},
		{name: "no Landlock", property: "landlock", box: func(b *embeddedBox) { b.plan.jail.Landlock = nil }},
		{name: "Landlock rule for everything", property: "landlock", box: func(s *embeddedBox) {
			s.plan.jail.Landlock.Rules = append(slices.Clone(s.plan.jail.Landlock.Rules), frame.LandlockRule{Path: "/", Access: frame.AccessWrite})
		}},
		{name: "an extra mount", property: "mounts", box: func(s *embeddedBox) {
			insertMount(s, frame.Entry{Kind: frame.BindEntry, Path: "/mnt", Source: "/etc", Recursive: true, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true})
		}},
		{name: "a mount over another", property: "mounts", box: func(s *embeddedBox) {
			insertMount(s, frame.Entry{Kind: frame.BindEntry, Path: HomeDir, Source: "/etc", Recursive: true, NoSuid: true, NoDev: true})
		}},
		{name: "the host's root still there", property: "mounts", box: func(s *embeddedBox) {
			insertMount(s, frame.Entry{Kind: frame.BindEntry, Path: "/old", Source: "/", Recursive: true})
		}},
		{name: "a mount less", property: "mounts", box: func(s *embeddedBox) {
			*entry(s, "/proc/keys") = frame.Entry{Kind: frame.DirEntry, Path: "/var", Mode: 0o755}
		}},
		{name: "writable programs", property: "read-only-mounts", box: func(s *embeddedBox) { entry(s, "/usr").ReadOnly = false }},
		{name: "set-user-ID programs", property: "nosuid-mounts", box: func(s *embeddedBox) { entry(s, "/usr").NoSuid = false }},
		{name: "devices in the workspace", property: "nodev-mounts", box: func(s *embeddedBox) { entry(s, DefaultMountPath).NoDev = false }},
		{name: "programs in /proc", property: "noexec-mounts", box: func(s *embeddedBox) { entry(s, "/proc").NoExec = false }},
		{name: "the host's /proc", property: "proc", box: func(s *embeddedBox) {
			*entry(s, "/proc") = frame.Entry{Kind: frame.BindEntry, Path: "/proc", Source: "/proc", Recursive: true, NoSuid: true, NoDev: true, NoExec: true}
		}},
		{name: "a foreign descriptor", property: "descriptors", process: func(a *os.ProcAttr) { a.Files[2] = devNull }},
		{name: "another first process", property: "shim", process: func(a *os.ProcAttr) { a.Files[3] = otherShim }},
		{name: "a variable", property: "environment", process: func(a *os.ProcAttr) { a.Env = append(a.Env, "TOKEN=x") }},
		{name: "no resource limit", property: "rlimits", box: func(b *embeddedBox) { b.plan.jail.Rlimits = nil }},
		{name: "no process limit in the cgroup", property: "process-limit", rootOnly: true, box: func(s *embeddedBox) {
			if err := writeFile(filepath.Join(s.group.dirs["pids"], "pids.max"), "max"); err != nil {
				t.Error(err)
			}
		}},
		{name: "not in the cgroup", property: "memory-limit", rootOnly: true, box: func(b *embeddedBox) { b.group.places = nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.rootOnly && os.Geteuid() != 0 {
				return // an ordinary user cannot even do it
			}
			e := newEmbedded(t)
			e.weak = weakness{tt.box, tt.process}
			r := launch(t, e, LaunchSpec{Command: []string{"sh", "-c", "echo it ran"}})
			var failure *Error
			if !errors.As(r.err, &failure) || !errors.Is(r.err, ErrIsolation) || r.Reason != ReasonIsolation {
				t.Fatalf("reason %s, error %v, stdout %q; want %v", r.Reason, r.err, r.stdout, ErrIsolation)
			}
			if !slices.Contains(strings.Split(failure.Op, ", "), tt.property) {
				t.Errorf("the error names %q, want %q: %v", failure.Op, tt.property, failure)
			}
			if failure.Remedy == "" {
				t.Error("the error has no remedy")
			}
			if r.stdout != "" || !r.Started.IsZero() {
				t.Errorf("the command ran: %q", r.stdout)
			}
		})
	}
}

// TestAcceptWeaker lets a run go on without a property that was named, and
// with that one alone.
func TestAcceptWeaker(t *testing.T) {
	t.Parallel()
	e := newEmbedded(t)
	e.weak.box = func(b *embeddedBox) { b.plan.jail.Landlock = nil }
	r := launch(t, e, LaunchSpec{Command: []string{"true"}, AcceptWeaker: []string{"seccomp"}})
	if !errors.Is(r.err, ErrIsolation) {
		t.Errorf("accepted another property: %v", r.err)
	}
	r = launch(t, e, LaunchSpec{Command: []string{"echo", "ran"}, AcceptWeaker: []string{"landlock"}})
	if r.err != nil || r.stdout != "ran\n" {
		t.Fatalf("error %v, stdout %q", r.err, r.stdout)
	}
	var names []string
	for _, p := range r.Isolation.Properties {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, EmbeddedProperties) {
		t.Errorf("proved are %q, and the names that can be accepted are %q", names, EmbeddedProperties)
	}
	i := slices.IndexFunc(r.Isolation.Properties, func(p Property) bool { return p.Name == "landlock" })
	if p := r.Isolation.Properties[i]; p.Status != Accepted || p.Evidence == "" {
		t.Errorf("the result says %+v", p)
	}
}

// TestProveHost looks at this process as if it were a sandbox: nearly every
// property is missing, and the look must say so of each.
func TestProveHost(t *testing.T) {
	t.Parallel()
	fi, err := os.Stat("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, p := range prove(subject{
		proc: "/proc/self", hostUID: 4242, hostGID: 4242, groups: []int{77}, shim: fi, filters: 1, witness: true,
		entries: []frame.Entry{{Kind: frame.BindEntry, Path: "/nonexistent", ReadOnly: true}},
		rlimits: []frame.Rlimit{{Resource: unix.RLIMIT_NPROC, Value: 1}},
	}) {
		missing[p.Name] = p.Status == Missing
	}
	for _, name := range []string{
		"user-namespace", "mount-namespace", "pid-namespace", "network-namespace", "ipc-namespace", "uts-namespace", "cgroup-namespace",
		"uid-mapping", "unprivileged-user", "supplementary-groups", "seccomp", "mounts", "descriptors", "environment", "shim", "rlimits", "landlock", "seccomp-rules",
	} {
		if !missing[name] {
			t.Errorf("%s was not found missing", name)
		}
	}
}

// TestProveGone looks at a process that does not exist: everything is missing.
func TestProveGone(t *testing.T) {
	t.Parallel()
	fi, err := os.Stat("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prove(subject{proc: "/proc/nonexistent", hostUID: 1, hostGID: 1, shim: fi, witness: true}) {
		if p.Status != Missing {
			t.Errorf("%s is %s: %s", p.Name, p.Status, p.Evidence)
		}
	}
}
