package pushbroker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// MaxReport is the largest agent report that is read, in bytes; it is the
// shim's cap too.
const MaxReport = 1 << 20

// Report is what an agent says of its work in agent-report*.json. It is shown,
// in quotes, and decides nothing. The shape is that of Hive's agent reports.
type Report struct {
	Lane     string          `json:"lane,omitempty"`     // at most 64 bytes
	Kind     string          `json:"kind,omitempty"`     // findings, fix, review, advisory or summary
	Summary  string          `json:"summary,omitempty"`  // at most 2000 bytes
	Findings []ReportFinding `json:"findings,omitempty"` // at most 100
	PRs      []ReportPR      `json:"prs_opened,omitempty"`
	Beads    []ReportBead    `json:"beads_filed,omitempty"`
}

// ReportFinding is one thing that the agent found.
type ReportFinding struct {
	Title    string `json:"title"`    // at most 200 bytes
	Severity string `json:"severity"` // info, low, medium, high or critical
	Summary  string `json:"summary,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
}

// ReportPR is a pull request that the agent says it opened. It cannot have: it
// has no credential.
type ReportPR struct {
	Repo   string `json:"repo"`
	Number int    `json:"number"`
	Title  string `json:"title,omitempty"`
	URL    string `json:"url,omitempty"`
}

// ReportBead is an entry of a work ledger.
type ReportBead struct {
	ID    string `json:"id"`
	Type  string `json:"type"`
	Title string `json:"title,omitempty"`
	URL   string `json:"url,omitempty"`
}

// ParseReport reads a report: one JSON object, no unknown field, within the
// caps. The error says what is wrong and may hold text of the report.
func ParseReport(b []byte) (Report, error) {
	var r Report
	if len(b) > MaxReport {
		return Report{}, fmt.Errorf("agent report has %d bytes, more than %d", len(b), MaxReport)
	}
	if !utf8.Valid(b) {
		return Report{}, errors.New("agent report is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("agent report: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Report{}, errors.New("agent report: something follows the object")
	}
	if err := r.check(); err != nil {
		return Report{}, fmt.Errorf("agent report: %w", err)
	}
	return r, nil
}

func (r Report) check() error {
	switch {
	case !slices.Contains([]string{"", "findings", "fix", "review", "advisory", "summary"}, r.Kind):
		return fmt.Errorf("kind %q is not known", r.Kind)
	case len(r.Findings) > 100 || len(r.PRs) > 50 || len(r.Beads) > 50:
		return errors.New("more than 100 findings, 50 pull requests or 50 beads")
	}
	err := errors.Join(atMost("lane", r.Lane, 64), atMost("summary", r.Summary, 2000))
	for i, f := range r.Findings {
		if !slices.Contains([]string{"info", "low", "medium", "high", "critical"}, f.Severity) {
			err = errors.Join(err, fmt.Errorf("finding %d: severity %q is not known", i+1, f.Severity))
		}
		if f.Line < 0 {
			err = errors.Join(err, fmt.Errorf("finding %d: line %d is negative", i+1, f.Line))
		}
		err = errors.Join(err, atMost("title", f.Title, 200), atMost("summary", f.Summary, 2000), atMost("file", f.File, 4096))
	}
	for _, p := range r.PRs {
		err = errors.Join(err, atMost("repo", p.Repo, 200), atMost("url", p.URL, 500), atMost("title", p.Title, 200))
	}
	for _, b := range r.Beads {
		err = errors.Join(err, atMost("id", b.ID, 120), atMost("url", b.URL, 500), atMost("title", b.Title, 200))
	}
	return err
}

func atMost(what, s string, n int) error {
	if len(s) > n {
		return fmt.Errorf("%s has %d bytes, more than %d", what, len(s), n)
	}
	return nil
}
