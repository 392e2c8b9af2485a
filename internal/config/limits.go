package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// Bounds that tell a slip of the finger from a setting. The lower ones are
// what a sandbox needs to start at all, the upper ones are beyond any host.
const (
	maxTimeout   = 7 * 24 * 3600 // seconds
	maxCPUs      = 4096
	minMemory    = 16 << 20
	maxMemory    = 64 << 40
	minProcesses = 8
	maxProcesses = 1 << 22 // PID_MAX_LIMIT of Linux on 64 bits
	minDisk      = 1 << 20
	maxDisk      = 1 << 50
	minOutput    = 64 << 10 // of cut output, that much is kept anyway
	maxOutput    = 16 << 30
)

func readTimeout(d *decoder, p place) (time.Duration, bool) {
	n, ok := d.integer(p, 0, maxTimeout, "seconds")
	return time.Duration(n) * time.Second, ok
}

func readProcesses(d *decoder, p place) (int, bool) {
	n, ok := d.integer(p, minProcesses, maxProcesses, "processes")
	return int(n), ok
}

func readCPUs(d *decoder, p place) (float64, bool) {
	want := fmt.Sprintf("a number of cores such as 0.5 or 2, at most %d", maxCPUs)
	n, ok := d.scalar(p, want)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	tag := n.ShortTag()
	if tag != "!!float" && tag != "!!int" || err != nil || math.IsNaN(v) || v <= 0 || v > maxCPUs {
		d.problem(p, "is "+shown(n.Value), "write "+want)
		return 0, false
	}
	return v, true
}

const sizePattern = `^([0-9]{1,18}(?:\.[0-9]{1,6})?) ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$`

var (
	sizeForm   = lazyregexp.New(sizePattern)
	sizeSchema = object{"type": "string", "pattern": sizePattern}
	// Short units mean 1000 to some programs and 1024 to others.
	shortSize = lazyregexp.New(`^([0-9.]+) ?([kKmMgGtT])[bi]?$`)
)

var units = map[string]float64{
	"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// ParseSize reads a number of bytes with its unit: B, kB, MB, GB and TB are
// powers of 1000, KiB, MiB, GiB and TiB of 1024. The error says how to write it.
func ParseSize(s string) (int64, error) {
	if m := sizeForm.FindStringSubmatch(s); m != nil {
		number, err := strconv.ParseFloat(m[1], 64)
		if bytes := number * units[m[2]]; err == nil && bytes <= maxDisk {
			return int64(bytes), nil
		}
		return 0, fmt.Errorf("%s is too much; the most is %s", shown(s), formatSize(maxDisk))
	}
	if m := shortSize.FindStringSubmatch(s); m != nil {
		return 0, fmt.Errorf("%s has an ambiguous unit; write %s%siB if that is meant", shown(s), m[1], strings.ToUpper(m[2]))
	}
	return 0, fmt.Errorf("%s is not a size; write a number and a unit, such as 512MiB or 2GiB", shown(s))
}

// sizeReader reads a size from low to high.
func sizeReader(low, high int64) func(*decoder, place) (int64, bool) {
	return func(d *decoder, p place) (int64, bool) {
		want := fmt.Sprintf("a size from %s to %s, such as 512MiB or 2GiB", formatSize(low), formatSize(high))
		n, ok := d.scalar(p, want)
		if !ok {
			return 0, false
		}
		v, err := ParseSize(n.Value)
		if err != nil {
			what, remedy, _ := strings.Cut(err.Error(), "; ")
			d.problem(p, what, remedy)
			return 0, false
		}
		if v < low || v > high {
			d.problem(p, "is "+shown(n.Value), "write "+want)
			return 0, false
		}
		return v, true
	}
}

// CheckLimits holds limits given outside a file to the bounds of those in one. 0 is
// none.
func CheckLimits(cpus float64, memory, disk int64, processes int) error {
	var errs []error
	size := func(name string, n, low, high int64) {
		if n != 0 && (n < low || n > high) {
			errs = append(errs, fmt.Errorf("--%s %s: want a size from %s to %s", name, formatSize(n), formatSize(low), formatSize(high)))
		}
	}
	size("memory", memory, minMemory, maxMemory)
	size("disk", disk, minDisk, maxDisk)
	if processes != 0 && (processes < minProcesses || processes > maxProcesses) {
		errs = append(errs, fmt.Errorf("--processes %d: want from %d to %d", processes, minProcesses, maxProcesses))
	}
	if math.IsNaN(cpus) || cpus < 0 || cpus > maxCPUs {
		errs = append(errs, fmt.Errorf("--cpus %v: want a number of cores such as 0.5 or 2, at most %d", cpus, maxCPUs))
	}
	return errors.Join(errs...)
}

// formatSize writes bytes in the largest binary unit that leaves a whole
// number, as sizeReader reads it.
func formatSize(n int64) string {
	for _, u := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if unit := int64(units[u]); n >= unit && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + u
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
