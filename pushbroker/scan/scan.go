// Package scan looks for secrets in what would leave with a push: by rules
// (kick's own and those of gitleaks), and by the very values that the process
// holds, in plain and in encoded form.
//
// One pass over the bytes finds literals that the rules' matches hold; only
// around such a literal does an expression run. What may be encoded (base64,
// hexadecimal, escapes, UTF-16, compression, joined literals, invisible
// characters) is decoded and searched again, within a budget.
//
// A value that is certainly a secret blocks, one that may be one asks for
// review, and what documentation shows as an example is reported. No finding
// holds the value.
package scan

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/pushbroker"
)

// Defaults of Options.
const (
	// DefaultMaxDecoded is what one item may decode to: a jar of 20 MiB, the
	// most that a push may bring by default, holds about three times that.
	DefaultMaxDecoded = 64 << 20
	// DefaultMaxMatched is what expressions may read of one item. Of source they
	// read a tenth; they read about 30 MB/s, so that bytes which are made to
	// strike every rule cost some ten seconds.
	DefaultMaxMatched = 256 << 20
)

const (
	minKey = 16
	// maxFindings of one item are told; the rest would tell nothing new.
	maxFindings = 200
	// version counts changes of the engine that change what is found.
	version = 5
)

// Options of a Scanner.
type Options struct {
	// Key makes fingerprints, so that they name a value without revealing it;
	// at least 16 bytes, kept by the operator, or allow entries are lost.
	Key []byte
	// Held are the values that this process holds; nil: none.
	Held *Held
	// MaxDecoded caps the bytes that one item is decoded to; 0: DefaultMaxDecoded.
	MaxDecoded int64
	// MaxMatched caps the bytes of one item that expressions read, decoded ones
	// included, each as often as a rule reads it; 0: DefaultMaxMatched.
	MaxMatched int64
}

// Scanner looks for secrets. It is for use by many goroutines at once.
type Scanner struct {
	key        []byte
	held       *Held
	maxDecoded int64
	maxMatched int64
	engine     *engine
}

var (
	_ pushbroker.Scanner    = (*Scanner)(nil)
	_ pushbroker.HeldValues = (*Scanner)(nil)
)

// New returns a Scanner.
func New(o Options) (*Scanner, error) {
	if len(o.Key) < minKey {
		return nil, fmt.Errorf("scanner: the fingerprint key has %d bytes; give at least %d", len(o.Key), minKey)
	}
	s := &Scanner{key: append([]byte{}, o.Key...), held: o.Held, maxDecoded: o.MaxDecoded, maxMatched: o.MaxMatched}
	if s.maxDecoded == 0 {
		s.maxDecoded = DefaultMaxDecoded
	}
	if s.maxMatched == 0 {
		s.maxMatched = DefaultMaxMatched
	}
	if s.maxDecoded < 0 || s.maxMatched < 0 {
		return nil, fmt.Errorf("scanner: a budget is negative; give more than 0, or 0 for the default")
	}
	s.engine = newEngine(o.Held)
	return s, nil
}

// Scan returns the findings in it that are new against it.Base. A value that
// was in the base version of the same path, decoded or not, or that stands as
// these very bytes anywhere in base, is not new; a held value that stands there
// is still reported, since it is to be rotated. Scan fails only if ctx ends or
// base cannot be read.
func (s *Scanner) Scan(ctx context.Context, it pushbroker.Item) ([]policy.Finding, error) {
	found, not, err := s.search(ctx, it.Data, it.Path)
	if err != nil {
		return nil, fmt.Errorf("scan %s %s: %w", it.Kind, it.OID, err)
	}
	if it.Kind == pushbroker.BlobItem {
		found = append(found, byPath(it.Path)...)
	}
	if len(found) > 0 && it.Base != nil {
		if found, err = s.dropKnown(ctx, it, found); err != nil {
			return nil, fmt.Errorf("scan %s %s against base: %w", it.Kind, it.OID, err)
		}
	}
	return s.findings(it.Data, found, not), nil
}

// Text returns the findings in bytes that are no object: a title or body of a
// pull request, for instance.
func (s *Scanner) Text(ctx context.Context, text []byte) ([]policy.Finding, error) {
	found, not, err := s.search(ctx, text, "")
	if err != nil {
		return nil, fmt.Errorf("scan text: %w", err)
	}
	return s.findings(text, found, not), nil
}

// Digest names the rules and the budget.
func (s *Scanner) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %s %d %d", version, gitleaksVersion, tableDigest(), s.maxDecoded, s.maxMatched)
	return hex.EncodeToString(h.Sum(nil))
}

var tableDigest = sync.OnceValue(func() string {
	h := sha256.New()
	for i := range ruleTable {
		fmt.Fprintf(h, "%+v\n", ruleTable[i])
	}
	fmt.Fprintf(h, "%q %q", globalAllow, stopWords)
	return hex.EncodeToString(h.Sum(nil))
})

// HeldDigest names the set of held values by a keyed digest; empty: none.
func (s *Scanner) HeldDigest() string { return s.held.Digest() }

// String keeps the key out of logs.
func (s *Scanner) String() string { return fmt.Sprintf("scanner of %d rules", len(ruleTable)) }

// GoString does the same for %#v.
func (s *Scanner) GoString() string { return s.String() }

// found is a hit with its value and its place in the item.
type found struct {
	hit
	value  string // the secret, decoded
	at     span   // in the item
	how    string // the outermost encoding; empty: none
	decode bool
}

// unsearched says what of an item was not searched, and why.
type unsearched struct {
	why    string // the search stopped early; empty: it did not
	opaque string // the kind of what could not be opened; empty: nothing
}

// search returns what is in data, at most maxFindings, the gravest first.
func (s *Scanner) search(ctx context.Context, data []byte, path string) (all []found, not unsearched, err error) {
	b := &budget{ctx: ctx, left: s.maxDecoded, work: s.maxMatched}
	defer b.close()
	seen := map[string]int{} // value to its place in all
	for views := []*view{{text: data}}; len(views) > 0; {
		v := views[len(views)-1]
		views = views[:len(views)-1]
		b.opaque = cmp.Or(b.opaque, closedKind(v.text))
		hits, err := s.engine.find(b, v, path)
		if err != nil && !errors.Is(err, errSpent) {
			return nil, unsearched{}, err
		}
		for _, h := range strongest(hits) {
			at, how, ok := v.locate(h.start, h.end)
			if !ok { // unless it is the name before the value that was encoded
				if at, how, ok = v.locate(h.match, h.end); !ok {
					continue
				}
			}
			f := found{h, string(v.text[h.start:h.end]), at, how, v.parent != nil}
			if i, ok := seen[f.value]; !ok {
				seen[f.value] = len(all)
				all = append(all, f)
			} else if graver(f.hit, all[i].hit) {
				f.at, f.how, f.decode = all[i].at, all[i].how, all[i].decode
				all[i] = f
			}
		}
		if err != nil {
			break
		}
		views = append(views, derive(v, b)...)
		if v.parent != nil {
			v.release()
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		if gi, gj := grade(all[i].hit), grade(all[j].hit); gi != gj {
			return gi > gj
		}
		return all[i].at.from < all[j].at.from
	})
	return all[:min(len(all), maxFindings)], unsearched{b.spent, b.opaque}, ctx.Err()
}

// strongest leaves out hits that overlap a graver one.
func strongest(hits []hit) []hit {
	sort.SliceStable(hits, func(i, j int) bool {
		if hits[i].start != hits[j].start {
			return hits[i].start < hits[j].start
		}
		return graver(hits[i], hits[j])
	})
	var out []hit
	for _, h := range hits {
		if n := len(out); n > 0 && h.start < out[n-1].end {
			if graver(h, out[n-1]) {
				out[n-1] = h
			}
			continue
		}
		out = append(out, h)
	}
	return out
}

// grade orders hits: held values, then by level, then kick's own rules, whose
// messages say more.
func grade(h hit) int {
	if h.rule == heldRule {
		return 10
	}
	g := map[policy.Level]int{policy.Block: 6, policy.Review: 4, policy.Report: 2}[h.level]
	if ruleTable[h.rule].own {
		g++
	}
	return g
}

func graver(a, b hit) bool {
	if ga, gb := grade(a), grade(b); ga != gb {
		return ga > gb
	}
	return a.end-a.start > b.end-b.start
}

// byPath returns the hits of rules that ask for nothing but a path.
func byPath(path string) []found {
	var out []found
	for i := range ruleTable {
		if ruleTable[i].expr == "" && compile(i).path.MatchString(path) {
			out = append(out, found{hit: hit{rule: i, level: ruleTable[i].level()}, value: path})
		}
	}
	return out
}

// dropKnown drops what base holds already.
func (s *Scanner) dropKnown(ctx context.Context, it pushbroker.Item, all []found) ([]found, error) {
	before := map[string]bool{}
	if it.Path != "" {
		data, ok, err := it.Base.Blob(ctx, it.Path)
		if err != nil {
			return nil, err
		}
		if ok {
			old, _, err := s.search(ctx, data, it.Path)
			if err != nil {
				return nil, err
			}
			for _, f := range append(old, byPath(it.Path)...) {
				before[f.value] = true
			}
		}
	}
	var out []found
	for _, f := range all {
		known := before[f.value]
		if !known && f.at.to > f.at.from {
			// What stands in the item: the value, or the stretch that encodes it.
			raw := it.Data[f.at.from:f.at.to]
			var err error
			if known, err = it.Base.Contains(ctx, raw); err != nil {
				return nil, err
			}
		}
		switch {
		case !known:
			out = append(out, f)
		case f.rule == heldRule:
			f.level = policy.Report
			out = append(out, f)
		}
	}
	return out, nil
}

// findings words what was found.
func (s *Scanner) findings(data []byte, all []found, not unsearched) []policy.Finding {
	var out []policy.Finding
	for _, f := range all {
		out = append(out, s.finding(data, f))
	}
	// A fingerprint of the whole item lets an operator accept it as it is.
	if not.why != "" {
		out = append(out, policy.Finding{
			Rule: "not-searched", Level: policy.Block, Fingerprint: s.fingerprint("not-searched", string(data)),
			Message: "this could not be searched to its end: " + not.why,
			Remedy:  "commit what it was made from instead of the archive or encoded data, or look at it and allow its fingerprint in the policy with a reason",
		})
	}
	if not.opaque != "" {
		out = append(out, policy.Finding{
			Rule: "opaque-archive", Level: policy.Review, Fingerprint: s.fingerprint("opaque-archive", string(data)),
			Message: "this holds " + not.opaque + " data that cannot be opened: it is encrypted, or needs a kind of archive, a method, a dictionary or a window that is not supported",
			Remedy:  "look at it, or commit what it was made from",
		})
	}
	return out
}

func (s *Scanner) finding(data []byte, f found) policy.Finding {
	out := policy.Finding{Level: f.level, Excerpt: excerpt(f)}
	if f.rule == heldRule {
		name := s.held.names[f.held]
		out.Rule = HeldRule
		out.Message = fmt.Sprintf("this is the value of %s, which this kick process holds", name)
		out.Remedy = fmt.Sprintf("rotate %s at once, find out how the agent came by it, and remove it from every commit", name)
		out.Fingerprint = s.fingerprint(out.Rule, name)
		if f.level == policy.Report {
			out.Message += "; base holds it already"
		}
	} else {
		r := &ruleTable[f.rule]
		out.Rule = r.id
		out.Fingerprint = s.fingerprint(r.id, f.value)
		switch f.level {
		case policy.Block:
			out.Message = "this is " + r.what
			out.Remedy = "remove it from every commit (an amended or squashed branch holds no old copy), and rotate it if it is real"
		case policy.Review:
			out.Message = "this may be " + r.what
			out.Remedy = "look at it: remove it from every commit and rotate it if it is real, or allow its fingerprint in the policy with a reason"
		default:
			out.Message = "this has the form of " + r.what + ", with a value that examples use"
			out.Remedy = "nothing, if it is an example"
		}
	}
	if f.how != "" {
		out.Message += " (in " + f.how + ")"
	}
	if f.value != "" && f.at.to <= len(data) && (f.at.to > 0 || f.how == "") && f.at != (span{}) {
		out.Line, out.Column = position(data, f.at.from)
	}
	return out
}

// excerpt shows of a long value its first four characters, of a short or a held
// one nothing.
func excerpt(f found) string {
	shown := ""
	if f.rule != heldRule && len(f.value) >= 20 && printableRun([]byte(f.value[:4])) == 4 {
		shown = f.value[:4]
	}
	return fmt.Sprintf("%s… (%d bytes)", shown, len(f.value))
}

func (s *Scanner) fingerprint(rule, value string) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%d:%s%s", len(rule), rule, value)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// position returns the line and the byte column of an offset, from 1.
func position(data []byte, at int) (line, column int) {
	line, start := 1, 0
	for i, c := range data[:at] {
		if c == '\n' {
			line, start = line+1, i+1
		}
	}
	return line, at - start + 1
}
