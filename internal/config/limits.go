package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
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
	sizeForm   = regexp.MustCompile(sizePattern)
	sizeSchema = object{"type": "string", "pattern": sizePattern}
	// Short units mean 1000 to some programs and 1024 to others.
	shortSize = regexp.MustCompile(`^([0-9.]+) ?([kKmMgGtT])[bi]?$`)
)

var units = map[string]float64{
	"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// sizeReader reads a number of bytes with its unit, from low to high.
func sizeReader(low, high int64) func(*decoder, place) (int64, bool) {
	return func(d *decoder, p place) (int64, bool) {
		want := fmt.Sprintf("a size with its unit from %s to %s, such as 512MiB or 2GiB", formatSize(low), formatSize(high))
		n, ok := d.scalar(p, want)
		if !ok {
			return 0, false
		}
		remedy := "write " + want
		if m := shortSize.FindStringSubmatch(n.Value); m != nil {
			remedy = fmt.Sprintf("write %s%siB if that is meant", m[1], strings.ToUpper(m[2]))
		}
		m := sizeForm.FindStringSubmatch(n.Value)
		if m == nil {
			d.problem(p, "is "+shown(n.Value), remedy)
			return 0, false
		}
		number, err := strconv.ParseFloat(m[1], 64)
		bytes := number * units[m[2]]
		if err != nil || bytes < float64(low) || bytes > float64(high) {
			d.problem(p, "is "+shown(n.Value), "write "+want)
			return 0, false
		}
		return int64(bytes), true
	}
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
