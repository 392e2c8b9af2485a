// Package sarif writes a verdict in the Static Analysis Results Interchange
// Format, version 2.1.0, which code hosts and editors read.
// https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
package sarif

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

type log struct {
	Schema  string `json:"$schema"`
	Version string `json:"version"`
	Runs    []run  `json:"runs"`
}

type run struct {
	Tool        tool           `json:"tool"`
	Invocations []invocation   `json:"invocations"`
	Results     []result       `json:"results"`
	Properties  map[string]any `json:"properties"`
}

type tool struct {
	Driver driver `json:"driver"`
}

type driver struct {
	Name           string `json:"name"`
	InformationURI string `json:"informationUri"`
	Version        string `json:"version"`
	Rules          []rule `json:"rules"`
}

type rule struct {
	ID          string        `json:"id"`
	Short       text          `json:"shortDescription"`
	Help        text          `json:"help"`
	Default     configuration `json:"defaultConfiguration"`
	indexInRun  int
	occurrences map[string]int // of the same finding, to tell them apart
}

type text struct {
	Text string `json:"text"`
}

type configuration struct {
	Level string `json:"level"`
}

type invocation struct {
	Successful bool `json:"executionSuccessful"`
}

type result struct {
	RuleID       string            `json:"ruleId"`
	RuleIndex    int               `json:"ruleIndex"`
	Level        string            `json:"level"`
	Message      text              `json:"message"`
	Locations    []location        `json:"locations"`
	Prints       map[string]string `json:"fingerprints,omitempty"`
	Partial      map[string]string `json:"partialFingerprints"`
	Suppressions []suppression     `json:"suppressions,omitempty"`
	Properties   map[string]any    `json:"properties,omitempty"`
}

type location struct {
	Physical physical  `json:"physicalLocation"`
	Logical  []logical `json:"logicalLocations,omitempty"`
}

type physical struct {
	Artifact artifact `json:"artifactLocation"`
	Region   *region  `json:"region,omitempty"`
}

type artifact struct {
	URI  string `json:"uri"`
	Base string `json:"uriBaseId"`
}

type region struct {
	Line int `json:"startLine"`
}

type logical struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

type suppression struct {
	Kind          string `json:"kind"`
	Justification string `json:"justification"`
}

// levels maps a finding's level; one that nobody knows blocks.
var levels = map[policy.Level]string{policy.Block: "error", policy.Review: "warning", policy.Report: "note"}

func levelOf(l policy.Level) string {
	if s, ok := levels[l]; ok {
		return s
	}
	return "error"
}

// Write writes the verdict as one log with one run. version is kick's own.
// What comes from the work is escaped, paths are percent-encoded. The format
// counts columns in characters and a finding in bytes, so a column is only
// given as the property byteColumn.
func Write(w io.Writer, v pushbroker.Verdict, version string) error {
	r := run{
		Tool:        tool{driver{Name: "kick", InformationURI: "https://github.com/kickhq/kick", Version: version, Rules: []rule{}}},
		Invocations: []invocation{{Successful: true}},
		Results:     []result{},
		Properties:  map[string]any{"pass": v.Pass, "review": v.Review, "base": v.Base, "tip": v.Tip, "digests": v.Digests},
	}
	rules := map[string]*rule{}
	for _, f := range v.Findings {
		d := rules[f.Rule]
		if d == nil {
			d = describe(f)
			d.indexInRun = len(r.Tool.Driver.Rules)
			rules[f.Rule] = d
			r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, *d)
		}
		r.Results = append(r.Results, resultOf(f, d))
	}
	return escape.JSON(w, log{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []run{r}})
}

// describe returns what a rule says of itself, or what its finding says.
func describe(f policy.Finding) *rule {
	d := &rule{ID: escape.String(f.Rule), Short: message(f.Message), Help: message(f.Remedy), Default: configuration{levelOf(f.Level)}, occurrences: map[string]int{}}
	if r, ok := policy.RuleByID(f.Rule); ok {
		d.Short, d.Help, d.Default = message(r.Reason), message(r.Remedy), configuration{levelOf(r.Level)}
	}
	return d
}

func resultOf(f policy.Finding, d *rule) result {
	r := result{
		RuleID: d.ID, RuleIndex: d.indexInRun, Level: levelOf(f.Level),
		Message:    message(strings.TrimRight(f.Message, ".") + ". " + f.Remedy),
		Properties: map[string]any{},
	}
	// The repository as a whole is the place of what is in no file.
	at := location{Physical: physical{Artifact: artifact{URI: "./", Base: "%SRCROOT%"}}}
	if f.Path != "" {
		at.Physical.Artifact.URI = uri(f.Path)
		if f.Line > 0 {
			at.Physical.Region = &region{Line: f.Line}
		}
	}
	if f.Commit != "" {
		at.Logical = []logical{{Name: escape.String(f.Commit), Kind: "commit"}}
	}
	r.Locations = []location{at}
	// Neither the commit nor the line, which change when work is redone.
	id := strings.Join([]string{f.Rule, f.Path, f.Place, f.Message, f.Fingerprint}, "\x00")
	d.occurrences[id]++
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", id, d.occurrences[id]))
	r.Partial = map[string]string{"kickFinding/v1": hex.EncodeToString(sum[:])}
	if f.Fingerprint != "" {
		r.Prints = map[string]string{"kickSecret/v1": escape.String(f.Fingerprint)}
	}
	if f.Exception != "" && f.Level == policy.Report {
		r.Suppressions = []suppression{{Kind: "external", Justification: escape.String(f.Exception)}}
	}
	for name, value := range map[string]string{"place": f.Place, "excerpt": f.Excerpt} {
		if value != "" {
			r.Properties[name] = escape.String(value)
		}
	}
	if f.Column > 0 {
		r.Properties["byteColumn"] = f.Column
	}
	return r
}

// placeholder is what a reader of the format would replace in a message.
var placeholder = regexp.MustCompile(`\{(\d+)\}`)

// message escapes a text; no part of it is a link or a placeholder.
func message(s string) text {
	s = placeholder.ReplaceAllString(escape.String(s), "{{$1}}")
	return text{strings.ReplaceAll(s, "](", `]\(`)}
}

// uri encodes a path of a tree as a relative URI, byte by byte.
func uri(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
