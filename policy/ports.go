package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports are the TCP ports from First to Last, both included.
type Ports struct{ First, Last int }

// ParsePorts reads PORT or PORT-PORT, as in "8377" and "8377-8392". The port 0
// alone is any that is free.
func ParsePorts(s string) (Ports, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from > to || isRange && from == 0 {
		return Ports{}, fmt.Errorf("%q are no ports: write one, as in 8377, or the first and the last, as in 8377-8392", s)
	}
	return Ports{int(from), int(to)}, nil
}

// String writes them as ParsePorts reads them.
func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(p.First)
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Set reads them from a flag.
func (p *Ports) Set(s string) (err error) {
	*p, err = ParsePorts(s)
	return err
}

// Type is how the help of a flag calls them.
func (p *Ports) Type() string { return "ports" }
