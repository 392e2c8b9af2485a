package pushbroker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/policy"
)

// ErrNothing means that the work ends at the base: there is nothing to publish.
var ErrNothing = errors.New("nothing to publish: the work's last commit is the base itself; commit the change in the workspace")

// Refusal is an error that is the work's doing, not the broker's: it says what
// in the work must change. Any other error of this package means that the
// broker itself could not do its job.
type Refusal struct {
	Findings []policy.Finding
}

// Error names the first finding, escaped, and how many there are.
func (r *Refusal) Error() string {
	if len(r.Findings) == 0 {
		return "refused"
	}
	f := r.Findings[0]
	more := ""
	if n := len(r.Findings) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("refused by rule %s: %s%s. %s", f.Rule, strings.TrimRight(escape.String(f.Message), "."), more, escape.String(f.Remedy))
}

// refuse returns a Refusal of one built-in rule.
func refuse(rule, format string, args ...any) *Refusal {
	return &Refusal{Findings: []policy.Finding{policy.NewFinding(rule, fmt.Sprintf(format, args...))}}
}

// IngestLimits bound what a bundle may cost before anything of it is read.
// They protect the host; the policy's limits are lower and about review.
type IngestLimits struct {
	PackBytes   int64         // of the bundle's pack
	Objects     int           // in the pack
	ObjectBytes int64         // of one object, inflated
	TotalBytes  int64         // of all objects in the pack, inflated
	CommitBytes int64         // of one commit
	Commits     int           // new ones
	Parents     int           // of one commit
	TreeDepth   int           // directories above a file
	TreeWidth   int           // entries of one directory
	PathBytes   int           // of one path
	Changes     int           // changed paths, over all new commits and their parents
	Visits      int           // directories that are compared, likewise
	Deadline    time.Duration // wall time of all of it
	CPU         time.Duration // of each git child
	Memory      uint64        // address space of each git child in bytes
}

// DefaultIngestLimits are far above the policy's default limits and far below
// what would hurt the host: 64 MiB of pack, 256 MiB inflated, one minute.
func DefaultIngestLimits() IngestLimits {
	return IngestLimits{
		PackBytes:   64 << 20,
		Objects:     100_000,
		ObjectBytes: 32 << 20,
		TotalBytes:  256 << 20,
		CommitBytes: 1 << 20,
		Commits:     5_000,
		Parents:     16,
		TreeDepth:   128,
		TreeWidth:   100_000,
		PathBytes:   16 << 10,
		Changes:     50_000,
		Visits:      200_000,
		Deadline:    time.Minute,
		CPU:         time.Minute,
		// The mirror's packs are mapped into it, in windows of at most 256 MiB
		// in all, and their indexes whole.
		Memory: 4 << 30,
	}
}

func (l IngestLimits) orDefault() IngestLimits {
	if l == (IngestLimits{}) {
		return DefaultIngestLimits()
	}
	return l
}
