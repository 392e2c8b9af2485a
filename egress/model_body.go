package egress

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// shape is what a value in a request's body may be. Null may stand anywhere.
// One shape serves all variants of a tagged object: each key is judged by its
// name alone and each tag by its value, wherever in the object it stands.
type shape struct {
	any     bool              // anything, unseen
	plain   bool              // a string, number or boolean, unseen
	keys    map[string]*shape // an object with these keys
	items   *shape            // a list
	words   map[string]string // a string that is one of these; the value is the feature that it needs
	kind    string            // what an unknown word is, in the policy's allow: "tool" or "part"
	inline  bool              // a URL that holds its data, else feature remote-files
	bare    bool              // with inline: or the data by itself, in base64
	untyped []string          // keys that an object without a type has, else feature stored
	feature string            // what it needs, unless it is false
	mark    func(b *body, v span) error
	weight  int64            // tokens that it may stand for beyond its bytes
	weights map[string]int64 // the same, by the word
}

// span is a value in a body.
type span struct {
	from, to int
	raw      []byte // the value; of an object, "{" alone
}

// body is a request's body that was checked, with what the gateway needs to
// know of it.
type body struct {
	raw   []byte
	allow []string

	model     string
	modelAt   span
	maxOutput int64 // 0: not said
	maxAt     span  // where it is said, be it as null
	answers   int64 // that are asked for at once
	compacts  bool  // the provider may have the model shorten the conversation first
	stream    bool
	storeAt   span
	streamOpt span // stream_options
	usageAt   span // stream_options.include_usage
	genConfig span // generationConfig
	media     int64

	dec   *jsontext.Decoder
	word  []byte
	edit  []edit
	added map[int]bool // places with a new member
}

// edit replaces a part of a body.
type edit struct {
	from, to int
	with     string
}

// bodyError is what is wrong with a body. Rule is empty if it is no JSON of the
// right form, which is the agent's mistake and no matter of policy.
type bodyError struct{ rule, detail string }

func (e *bodyError) Error() string { return e.detail }

func refusedBody(rule, format string, args ...any) error {
	return &bodyError{rule, fmt.Sprintf(format, args...)}
}

// checkBody reads a body against a shape. Names that stand twice in an object,
// and text that is not UTF-8, are refused: two readers could take them in two
// ways.
func checkBody(raw []byte, sh *shape, allow []string) (*body, error) {
	b := &body{raw: raw, allow: allow, answers: 1, added: map[int]bool{}, dec: jsontext.NewDecoder(bytes.NewBuffer(raw))}
	if b.dec.PeekKind() != '{' {
		return nil, refusedBody("", "the body is no JSON object")
	}
	if err := b.value(sh); err != nil {
		var be *bodyError
		if !errors.As(err, &be) {
			err = refusedBody("", "the body is not the JSON that is expected: %v", err)
		}
		return nil, err
	}
	if len(bytes.Trim(raw[b.dec.InputOffset():], " \t\r\n")) > 0 {
		return nil, refusedBody("", "something follows the JSON object of the body")
	}
	return b, nil
}

func (b *body) value(sh *shape) error {
	k := b.dec.PeekKind()
	if k == 'n' {
		v, err := b.read()
		if err != nil || sh.mark == nil {
			return err
		}
		return sh.mark(b, v)
	}
	b.media += sh.weight
	if sh.feature != "" && k != 'f' && !slices.Contains(b.allow, sh.feature) {
		return b.needs(sh.feature, string(b.dec.StackPointer()))
	}
	switch {
	case k == '{' && sh.keys != nil:
		return b.object(sh)
	case k == '[' && sh.items != nil:
		return b.list(sh)
	case sh.any && sh.mark == nil:
		return b.dec.SkipValue()
	case k == '"' && (sh.words != nil || sh.inline):
		return b.text(sh)
	case sh.any, (k == '"' || k == '0' || k == 't' || k == 'f') && (sh.plain || sh.mark != nil):
		v, err := b.read()
		if err != nil || sh.mark == nil {
			return err
		}
		return sh.mark(b, v)
	}
	if err := b.dec.SkipValue(); err != nil { // it is no JSON: that comes first
		return err
	}
	return refusedBody("", "%s has a type that this gateway does not know there", b.dec.StackPointer())
}

func (b *body) read() (span, error) {
	raw, err := b.dec.ReadValue()
	to := int(b.dec.InputOffset())
	return span{from: to - len(raw), to: to, raw: raw}, err
}

func (b *body) object(sh *shape) error {
	if _, err := b.dec.ReadToken(); err != nil {
		return err
	}
	if sh.mark != nil {
		to := int(b.dec.InputOffset())
		if err := sh.mark(b, span{from: to - 1, to: to, raw: []byte("{")}); err != nil {
			return err
		}
	}
	typed, has := len(sh.untyped) == 0, 0
	for b.dec.PeekKind() == '"' {
		raw, err := b.dec.ReadValue()
		if err != nil {
			return err
		}
		if b.word, err = jsontext.AppendUnquote(b.word[:0], raw); err != nil {
			return err
		}
		child, ok := sh.keys[string(b.word)]
		if !ok {
			name := string(b.word)
			if !slices.Contains(b.allow, "field:"+name) {
				return refusedBody("model-unknown-field", "%s is not a field that this gateway knows, so it could do anything at the provider. "+
					"The operator of this sandbox may add \"field:%s\" to `allow` of the model's route.", b.dec.StackPointer(), name)
			}
			if err := b.dec.SkipValue(); err != nil {
				return err
			}
			continue
		}
		if b.dec.PeekKind() != 'n' { // null is as good as absent
			typed = typed || string(b.word) == "type"
			if slices.Contains(sh.untyped, string(b.word)) {
				has++
			}
		}
		if err := b.value(child); err != nil {
			return err
		}
	}
	_, err := b.dec.ReadToken()
	if err == nil && !typed && has < len(sh.untyped) && !slices.Contains(b.allow, "stored") {
		return b.needs("stored", fmt.Sprintf("%s has neither a type nor %s, and", b.dec.StackPointer(), strings.Join(sh.untyped, " and ")))
	}
	return err
}

func (b *body) list(sh *shape) error {
	if _, err := b.dec.ReadToken(); err != nil {
		return err
	}
	for k := b.dec.PeekKind(); k != ']' && k != 0; k = b.dec.PeekKind() {
		if err := b.value(sh.items); err != nil {
			return err
		}
	}
	_, err := b.dec.ReadToken()
	return err
}

// text checks a string by its content.
func (b *body) text(sh *shape) error {
	v, err := b.read()
	if err != nil {
		return err
	}
	if sh.inline {
		if bytes.HasPrefix(v.raw, []byte(`"data:`)) || sh.bare && isBase64(v.raw[1:len(v.raw)-1]) || slices.Contains(b.allow, "remote-files") {
			return nil
		}
		return b.needs("remote-files", string(b.dec.StackPointer()))
	}
	if b.word, err = jsontext.AppendUnquote(b.word[:0], v.raw); err != nil {
		return err
	}
	word := string(b.word)
	b.media += sh.weights[word]
	feature, ok := sh.words[word]
	if !ok { // tools carry the day of their version
		feature, ok = sh.words[strings.TrimRight(word, "_-0123456789")+"*"]
	}
	switch {
	case !ok && slices.Contains(b.allow, sh.kind+":"+word), ok && (feature == "" || slices.Contains(b.allow, feature)):
		return nil
	case ok && feature != "":
		return b.needs(feature, fmt.Sprintf("%s %q", b.dec.StackPointer(), word))
	}
	return refusedBody("model-unknown-"+sh.kind, "%s %q is not a %s that this gateway knows, so it could do anything at the provider. "+
		"The operator of this sandbox may add \"%s:%s\" to `allow` of the model's route.", b.dec.StackPointer(), word, sh.kind, sh.kind, word)
}

// isBase64 tells whether text has no character that base64 has not, and so is no
// URL with a scheme.
func isBase64(text []byte) bool {
	return len(bytes.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-")) == 0
}

func (b *body) needs(feature, what string) error {
	return refusedBody("model-"+feature, "%s asks for what is refused by default: %s. Do without it, or the operator of this sandbox adds %q to `allow` of the model's route.",
		what, modelFeature(feature), feature)
}

// parts returns the body with its edits, one after the other.
func (b *body) parts() [][]byte {
	slices.SortStableFunc(b.edit, func(x, y edit) int { return x.from - y.from })
	var parts [][]byte
	at := 0
	for _, e := range b.edit {
		parts = append(parts, b.raw[at:e.from], []byte(e.with))
		at = e.to
	}
	return append(parts, b.raw[at:])
}

// What follows are the marks: what the gateway takes note of.

func markModel(b *body, v span) error {
	word, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil || !isModelName(string(word)) {
		return refusedBody("", "the model's name is none: use letters, digits and ._:/@-")
	}
	b.model, b.modelAt = string(word), span{from: v.from, to: v.to}
	return nil
}

func isModelName(s string) bool {
	const more = "._:/@-"
	return s != "" && len(s) <= 200 && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(more, r))
	}) < 0
}

func markCount(into func(b *body) *int64) func(b *body, v span) error {
	return func(b *body, v span) error {
		if string(v.raw) == "null" {
			return nil
		}
		n, err := strconv.ParseInt(string(v.raw), 10, 64)
		if err != nil || n < 0 || n > 1<<31 {
			return refusedBody("", "%s is no whole number from 0 to 2147483648", b.dec.StackPointer())
		}
		p := into(b)
		*p = max(*p, n)
		return nil
	}
}

var (
	countMax    = markCount(func(b *body) *int64 { return &b.maxOutput })
	markAnswers = markCount(func(b *body) *int64 { return &b.answers })
)

func markMax(b *body, v span) error {
	b.maxAt = v
	return countMax(b, v)
}

// markType gives what is no image the weight of a document.
func markType(b *body, v span) error {
	if !bytes.HasPrefix(v.raw, []byte(`"image/`)) {
		b.media += documentWeight
	}
	return nil
}

func markCompaction(b *body, v span) error {
	b.compacts = b.compacts || bytes.Contains(v.raw, []byte("compact")) || bytes.ContainsRune(v.raw, '\\')
	return nil
}

func markStream(b *body, v span) error {
	b.stream = string(v.raw) == "true"
	return nil
}

func markStore(b *body, v span) error {
	b.storeAt = v
	return nil
}

func markStreamOptions(b *body, v span) error {
	b.streamOpt = v
	return nil
}

func markIncludeUsage(b *body, v span) error {
	b.usageAt = v
	return nil
}

func markGenConfig(b *body, v span) error {
	b.genConfig = v
	return nil
}

// set gives a member a value: in its place, or new in the object that begins
// at in.
func (b *body) set(at span, in span, name, value string) {
	if at.to > 0 {
		b.edit = append(b.edit, edit{at.from, at.to, value})
		return
	}
	member := strconv.Quote(name) + ":" + value
	if rest := bytes.TrimLeft(b.raw[in.to:], " \t\r\n"); len(rest) > 0 && rest[0] != '}' || b.added[in.to] {
		member += ","
	}
	b.added[in.to] = true
	// At one place, what comes later stands in front.
	b.edit = append([]edit{{in.to, in.to, member}}, b.edit...)
}

// top is where the body's own object begins.
func (b *body) top() span { return span{to: bytes.IndexByte(b.raw, '{') + 1} }

// setIn sets a member of an object that is a member of the body, and may be
// missing or null.
func (b *body) setIn(obj span, objName string, at span, name, value string) {
	if string(obj.raw) == "{" {
		b.set(at, obj, name, value)
		return
	}
	b.set(obj, b.top(), objName, "{"+strconv.Quote(name)+":"+value+"}")
}
