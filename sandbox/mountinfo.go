package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/frame"
)

// mount is one line of /proc/PID/mountinfo, see proc(5).
type mount struct {
	device  string // major:minor
	root    string
	target  string
	options []string // of the mount
	fstype  string
	super   []string // options of the file system
}

// parseMountinfo parses a mount table of the kernel.
func parseMountinfo(text string) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			return nil, fmt.Errorf("mountinfo has the line %q", line)
		}
		m := mount{device: l[2], root: unescapeMount(l[3]), target: unescapeMount(l[4]), options: strings.Split(l[5], ","), fstype: r[0]}
		if len(r) > 2 {
			m.super = strings.Split(r[2], ",")
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

func unescapeMount(s string) string { return mountEscapes.Replace(s) }

func (m mount) has(option string) bool { return slices.Contains(m.options, option) }

// expectedMounts is the mount table that a root makes, in order. Mounts of the
// host below a program directory come along; hostMounts tells which.
func expectedMounts(entries []frame.Entry, hostMounts []mount) []frame.Entry {
	want := []frame.Entry{{Kind: frame.TmpfsEntry, Path: "/", ReadOnly: true, NoSuid: true, NoDev: true}}
	for _, e := range entries {
		switch e.Kind {
		case frame.BindEntry, frame.TmpfsEntry, frame.ProcEntry, frame.DevptsEntry:
		default:
			continue
		}
		want = append(want, e)
		if !e.Recursive {
			continue
		}
		for _, m := range hostMounts {
			if m.target != e.Source && within(m.target, []string{e.Source}) {
				below := e
				below.Path = e.Path + strings.TrimPrefix(m.target, e.Source)
				want = append(want, below)
			}
		}
	}
	return want
}

// mountProblem is a difference between the mount table and the expected one,
// with the property that is missing because of it.
type mountProblem struct{ property, text string }

// compareMounts compares the sandbox's mount table with the expected one. The
// host's own mounts tell which proc file systems are the host's.
func compareMounts(got []mount, want []frame.Entry, hostMounts []mount) []mountProblem {
	var problems []mountProblem
	report := func(property, format string, args ...any) {
		problems = append(problems, mountProblem{property, fmt.Sprintf(format, args...)})
	}
	wanted := map[string][]frame.Entry{}
	for _, e := range want {
		wanted[e.Path] = append(wanted[e.Path], e)
	}
	for _, m := range got {
		list := wanted[m.target]
		if len(list) == 0 {
			report("mounts", "%s (%s, %s of device %s) is mounted and should not be", m.target, m.fstype, m.root, m.device)
			continue
		}
		e := list[0]
		wanted[m.target] = list[1:]
		compareMount(m, e, report)
		if e.Kind == frame.ProcEntry && slices.ContainsFunc(hostMounts, func(h mount) bool { return h.fstype == "proc" && h.device == m.device }) {
			report("proc", "%s is the host's", m.target)
		}
	}
	for _, e := range want {
		if n := len(wanted[e.Path]); n > 0 {
			wanted[e.Path] = nil
			report("mounts", "%s should be mounted and is not", e.Path)
		}
	}
	return problems
}

func compareMount(m mount, e frame.Entry, report func(property, format string, args ...any)) {
	switch e.Kind {
	case frame.TmpfsEntry, frame.ProcEntry, frame.DevptsEntry:
		if m.fstype != string(e.Kind) {
			name := "mounts"
			if e.Kind == frame.ProcEntry {
				name = "proc"
			}
			report(name, "%s is a %s, want a %s", m.target, m.fstype, e.Kind)
		}
	}
	for _, f := range []struct {
		want             bool
		option, property string
	}{
		{e.ReadOnly, "ro", "read-only-mounts"},
		{e.NoSuid, "nosuid", "nosuid-mounts"},
		{e.NoDev, "nodev", "nodev-mounts"},
		{e.NoExec, "noexec", "noexec-mounts"},
	} {
		if f.want && !m.has(f.option) {
			report(f.property, "%s is mounted without %s", m.target, f.option)
		}
	}
}
