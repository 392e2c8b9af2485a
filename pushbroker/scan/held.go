package scan

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
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
	// heldPart is how long the parts are that find a value which is split over
	// lines or literals, maxHeldParts how many parts of one are looked for, and
	// maxSeam how many bytes may stand between two of its bytes.
	heldPart, maxHeldParts, maxSeam = 8, 8, 24
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
	// whole is the value of which the literal is the part at off, if the rest
	// may be split from it; empty: the literal is enough.
	whole string
	off   int
}

// HeldRule is the rule of a finding that is a held value.
const HeldRule = "held-value"

// NewHeld makes the set of values by name. Each is found as it is, in base64
// and base32 (of any alignment, in both alphabets), in hexadecimal,
// percent-encoded, in UTF-16 and UTF-32, escaped for JSON, reversed, in rot13,
// and split in any way that leaves eight of its first 64 bytes together; the
// scanner's decoding finds it in more. key, at least 16 bytes, makes the digest;
// the same values and key give the same digest.
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
				h.forms = append(h.forms, heldForm{literal: form, owner: i})
			}
		}
		h.forms = append(h.forms, heldParts(strings.TrimSpace(v), i)...)
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
		for _, zeros := range []string{"\x00", "\x00\x00\x00"} { // UTF-16, UTF-32
			exact(strings.Join(strings.Split(p, ""), zeros) + zeros)
			exact(zeros + strings.Join(strings.Split(p, ""), zeros))
		}
		for shift := range 5 {
			folded(base32At(base32.StdEncoding, []byte(p), shift))
			folded(base32At(base32.HexEncoding, []byte(p), shift))
		}
		exact(rotated.of(p))
		reversed := []byte(p)
		slices.Reverse(reversed)
		exact(string(reversed))
	}
	if b, err := json.Marshal(v); err == nil {
		escaped := string(b[1 : len(b)-1])
		exact(escaped)
		exact(strings.ReplaceAll(escaped, "/", `\/`))
	}
	if strings.Contains(v, "\n") {
		exact(strings.ReplaceAll(v, "\n", "\r\n"))
	}
	return out
}

// heldParts returns the parts by which a value is found that is split. Of one
// of less than 16 bytes, the parts would strike too often.
func heldParts(v string, owner int) (parts []heldForm) {
	if len(v) < 2*heldPart {
		return nil
	}
	for off := 0; off+heldPart <= len(v) && len(parts) < maxHeldParts; off += heldPart {
		parts = append(parts, heldForm{literal{text: v[off : off+heldPart]}, owner, v, off})
	}
	return parts
}

// around returns where the whole of a split value is whose part begins at
// text[at].
func (f *heldForm) around(text []byte, at int) (from, to int, ok bool) {
	from, to = at, at+len(f.text)
	for i, gap := f.off-1, 0; i >= 0; {
		switch {
		case from > 0 && text[from-1] == f.whole[i]:
			from, i, gap = from-1, i-1, 0
		case from > 0 && gap < maxSeam && seamByte(text, from-1):
			from, gap = from-1, gap+1
		default:
			return 0, 0, false
		}
	}
	for i, gap := f.off+len(f.text), 0; i < len(f.whole); {
		switch {
		case to < len(text) && text[to] == f.whole[i]:
			to, i, gap = to+1, i+1, 0
		case to < len(text) && gap < maxSeam && seamByte(text, to):
			to, gap = to+1, gap+1
		default:
			return 0, 0, false
		}
	}
	return from, to, true
}

// seamByte reports whether text[i] may separate the parts of a split value:
// what is no letter or digit, and the letter of an escaped line end.
func seamByte(text []byte, i int) bool {
	c := text[i]
	if c == 'n' || c == 'r' || c == 't' {
		return i > 0 && text[i-1] == '\\'
	}
	return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
}

// base32At returns those letters of base32 that v alone decides when it stands
// shift bytes (0 to 4) behind a group's begin.
func base32At(encoding *base32.Encoding, v []byte, shift int) string {
	padded := append(bytes.Repeat([]byte{0}, shift), v...)
	return encoding.WithPadding(base32.NoPadding).EncodeToString(padded)[(8*shift+4)/5 : 8*len(padded)/5]
}

// base64At returns those letters of base64 that v alone decides when it stands
// shift bytes (0 to 2) behind a group's begin.
func base64At(v []byte, shift int) string {
	padded := append(bytes.Repeat([]byte{0}, shift), v...)
	whole := len(padded) / 3 * 3
	b := base64.StdEncoding.EncodeToString(padded[:whole])
	return b[min([]int{0, 2, 3}[shift], len(b)):]
}
