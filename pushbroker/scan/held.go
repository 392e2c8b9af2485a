package scan

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"sort"
	"strings"
)

const (
	// minHeld is the shortest value that can be looked for: a shorter one would
	// strike in ordinary text.
	minHeld = 8
	// maxHeld is the longest value, and maxHeldForms how many forms of all
	// values one scanner looks for.
	maxHeld      = 64 << 10
	maxHeldForms = 20_000
	// minHeldLine is the shortest line of a value of several lines (a PEM key)
	// that is looked for by itself.
	minHeldLine = 24
)

// Held is the set of values that this process holds and that must never leave:
// App keys, tokens, model keys. It never prints one.
type Held struct {
	names  []string
	forms  []heldForm
	digest string
}

type heldForm struct {
	literal
	owner int // index into names
}

// HeldRule is the rule of a finding that is a held value.
const HeldRule = "held-value"

// NewHeld makes the set of values by name. Each is found as it is, in base64
// (of any alignment, both alphabets), in hexadecimal, percent-encoded, in
// UTF-16 and reversed; the scanner's decoding finds it in more. key, at least 16 bytes,
// makes the digest; the same values and key give the same digest.
//
// A value of less than 8 or more than 64 KiB bytes is an error that names it,
// as is an empty name.
func NewHeld(key []byte, values map[string]string) (*Held, error) {
	if len(key) < minKey {
		return nil, fmt.Errorf("held values: the digest key has %d bytes; give at least %d", len(key), minKey)
	}
	h := &Held{}
	for name := range values {
		h.names = append(h.names, name)
	}
	sort.Strings(h.names)
	mac := hmac.New(sha256.New, key)
	seen := map[string]bool{}
	for i, name := range h.names {
		v := values[name]
		switch {
		case name == "":
			return nil, fmt.Errorf("held values: a value has no name; name it by where it comes from")
		case len(strings.TrimSpace(v)) < minHeld:
			return nil, fmt.Errorf("held value %s has fewer than %d bytes, too few to be told from other text; use a longer credential", name, minHeld)
		case len(v) > maxHeld:
			return nil, fmt.Errorf("held value %s has %d bytes, more than %d; is it a credential?", name, len(v), maxHeld)
		}
		fmt.Fprintf(mac, "%d:%s%d:%s", len(name), name, len(v), v)
		for _, form := range heldForms(strings.TrimSpace(v)) {
			if len(form.text) >= minHeld && !seen[form.text] {
				seen[form.text] = true
				h.forms = append(h.forms, heldForm{form, i})
			}
		}
	}
	if len(h.forms) > maxHeldForms {
		return nil, fmt.Errorf("held values: %d forms to look for, more than %d; hold fewer values", len(h.forms), maxHeldForms)
	}
	h.digest = hex.EncodeToString(mac.Sum(nil))
	return h, nil
}

// Names returns the values' names, sorted.
func (h *Held) Names() []string {
	if h == nil {
		return nil
	}
	return slices.Clone(h.names)
}

// Digest names the set. It is keyed: who lacks the key learns nothing from it.
func (h *Held) Digest() string {
	if h == nil {
		return ""
	}
	return h.digest
}

// String keeps the values out of logs.
func (h Held) String() string { return fmt.Sprintf("%d held values", len(h.names)) }

// GoString does the same for %#v.
func (h Held) GoString() string { return h.String() }

func (h *Held) literals() []heldForm {
	if h == nil {
		return nil
	}
	return h.forms
}

// heldForms returns the strings that reveal v.
func heldForms(v string) []literal {
	parts := []string{v}
	if lines := strings.Fields(v); len(lines) > 1 && strings.Contains(v, "\n") {
		for _, line := range strings.Split(v, "\n") {
			line = strings.TrimSpace(line)
			if len(line) >= minHeldLine && !strings.HasPrefix(line, "-----") {
				parts = append(parts, line)
			}
		}
	}
	var out []literal
	exact := func(s string) { out = append(out, literal{text: s}) }
	folded := func(s string) { out = append(out, literal{text: strings.ToLower(s), fold: true}) }
	for _, p := range parts {
		exact(p)
		for shift := range 3 {
			b := base64At([]byte(p), shift)
			exact(b)
			exact(strings.NewReplacer("+", "-", "/", "_").Replace(b))
		}
		folded(hex.EncodeToString([]byte(p)))
		var percent strings.Builder
		for _, c := range []byte(p) {
			fmt.Fprintf(&percent, "%%%02x", c)
		}
		folded(percent.String())
		exact(url.QueryEscape(p))
		exact(url.PathEscape(p))
		var little, big strings.Builder // UTF-16
		for _, c := range []byte(p) {
			little.Write([]byte{c, 0})
			big.Write([]byte{0, c})
		}
		exact(little.String())
		exact(big.String())
		reversed := []byte(p)
		slices.Reverse(reversed)
		exact(string(reversed))
	}
	if strings.Contains(v, "\n") {
		exact(strings.ReplaceAll(v, "\n", `\n`))
		exact(strings.ReplaceAll(v, "\n", "\r\n"))
	}
	return out
}

// base64At returns those letters of base64 that v alone decides when it stands
// shift bytes (0 to 2) behind a group's begin.
func base64At(v []byte, shift int) string {
	padded := append(bytes.Repeat([]byte{0}, shift), v...)
	whole := len(padded) / 3 * 3
	b := base64.StdEncoding.EncodeToString(padded[:whole])
	return b[min([]int{0, 2, 3}[shift], len(b)):]
}
