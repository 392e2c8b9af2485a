package scan

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/kickhq/kick/policy"
)

// verifiers are checks that an expression cannot make. One may lower the hit's
// level and move its end.
var verifiers = map[string]func(text []byte, h *hit) bool{
	"authorization": verifyAuthorization,
	"basicauth":     verifyBasicAuth,
	"generic":       verifyGeneric,
	"jwt":           verifyJWT,
	"mixed":         verifyMixed,
	"password":      verifyPassword,
	"pem":           verifyPEM,
	"square":        verifySquare,
	"userinfo":      verifyUserinfo,
}

// letters counts what a value is made of.
type letters struct{ upper, lower, digit, other int }

func count(b []byte) (n letters) {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z':
			n.lower++
		case c >= 'A' && c <= 'Z':
			n.upper++
		case c >= '0' && c <= '9':
			n.digit++
		default:
			n.other++
		}
	}
	return n
}

func verifyMixed(text []byte, h *hit) bool {
	n := count(text[h.start:h.end])
	return n.upper > 0 && n.lower > 0 && n.digit > 0
}

func verifyDigits(text []byte, h *hit) bool {
	n := count(text[h.start:h.end])
	return n.digit > 1 && n.upper+n.lower > 1
}

func verifyBasicAuth(text []byte, h *hit) bool {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(string(text[h.start:h.end]), "="))
	colon := bytes.IndexByte(b, ':')
	return err == nil && colon > 0 && colon < len(b)-1 && printableRun(b) == len(b)
}

// verifyJWT knows the token of every tutorial, whose subject is 1234567890.
func verifyJWT(text []byte, h *hit) bool {
	if bytes.Contains(text[h.start:h.end], []byte(".eyJzdWIiOiIxMjM0NTY3ODkwIi")) {
		h.level = policy.Report
	}
	return true
}

// variable reports whether b is written as a reference to a value, such as
// $TOKEN, ${{ secrets.X }}, %s, <token> or {token}.
func variable(b []byte) bool {
	if len(b) == 0 || b[0] == '$' || b[0] == '<' || b[0] == '{' || b[0] == '[' {
		return true
	}
	for _, mark := range []string{"${", "{{", "$(", "***", "...", "%s", "%v", "%d", "%q"} {
		if bytes.Contains(b, []byte(mark)) {
			return true
		}
	}
	return false
}

func verifyPassword(text []byte, h *hit) bool {
	b := text[h.start:h.end]
	n := count(b)
	return !variable(b) && (n.digit > 0 && n.upper+n.lower > 0 || len(b) >= 12 && entropy(b) > 3.3)
}

// userinfoFollows reports whether "user:password@" can follow "://".
func userinfoFollows(rest []byte) bool {
	colon := false
	for _, c := range rest[:min(len(rest), 700)] {
		switch {
		case c == '@':
			return colon
		case c == ':':
			colon = true
		case c == '/' || c == '"' || c == '\'' || c == '<' || c == '>' || c == '`' || isSpace(c):
			return false
		}
	}
	return false
}

// verifyUserinfo tells a password from what documentation writes there. Words
// are not reported; what is short, or for a host that is reserved for
// examples, is possible.
func verifyUserinfo(text []byte, h *hit) bool {
	b := unescapeAll(nil, text[h.start:h.end])
	n := count(b)
	if variable(b) || n.digit == 0 && (len(b) < 16 || entropy(b) < 3.8) || n.upper+n.lower == 0 {
		return false
	}
	host := text[h.end+1 : min(h.end+257, len(text))]
	if end := bytes.IndexAny(host, "/:?#\"'` \t\r\n<>\\"); end >= 0 {
		host = host[:end]
	}
	switch {
	case len(b) < 6:
		return false
	case len(b) < 8 || entropy(b) < 2.75 || reservedHost(strings.ToLower(string(host))):
		h.level = policy.Review
	}
	return true
}

// reservedHost reports whether a name is reserved for examples or for this
// machine (RFC 2606, RFC 6761).
func reservedHost(host string) bool {
	for _, domain := range []string{"example", "example.com", "example.org", "example.net", "test", "invalid", "localhost"} {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return strings.HasPrefix(host, "127.") || host == "[" || host == "0.0.0.0"
}

// verifyPEM wants a body after the header: 64 letters of base64 of upper and
// lower case and digits, whatever separates them in the language around
// (quotes, escapes, operators, indentation), and after header lines such as
// Proc-Type. The hit ends where the body does, at most 16 KiB on (an RSA key
// of 16,384 bits has 13 KB).
func verifyPEM(text []byte, h *hit) bool {
	rest := text[h.end:min(h.end+16<<10, len(text))]
	var body []byte
	i, other := 0, 0
loop:
	for i < len(rest) {
		switch c := rest[i]; {
		case c == '-' && bytes.HasPrefix(rest[i:], []byte("-----")):
			break loop
		case c == '\\' && i+1 < len(rest) && strings.IndexByte("nrt", rest[i+1]) >= 0:
			i++
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/':
			if n := headerLine(rest[i:]); n > 0 {
				i += n
				continue
			}
			body = append(body, c)
		case !isSpace(c) && strings.IndexByte(`"'`+"`"+`\,;.|>#*()[]&=`, c) < 0:
			if other++; other > 8 {
				break loop
			}
		}
		i++
	}
	n := count(body)
	if len(body) >= 64 && n.upper >= 4 && n.lower >= 4 && n.digit >= 2 && entropy(body) >= 3.5 {
		h.end += i
		return true
	}
	// A body that is none of these, between a header and an end: let a person look.
	h.level = policy.Review
	for _, end := range []string{"KEY-----", "KEY BLOCK-----"} {
		if i := bytes.Index(rest, []byte(end)); i >= 64 {
			h.end += i + len(end)
			return true
		}
	}
	return false
}

// headerLine returns the length of a PEM header ("Proc-Type: 4,ENCRYPTED") at
// the start of b, or 0.
func headerLine(b []byte) int {
	colon := bytes.IndexByte(b[:min(len(b), 40)], ':')
	if colon < 3 || colon+1 >= len(b) || b[colon+1] != ' ' || count(b[:colon]).other > bytes.Count(b[:colon], []byte("-")) {
		return 0
	}
	end := len(b)
	for _, stop := range []string{"\n", `\n`} {
		if i := bytes.Index(b[:min(end, 300)], []byte(stop)); i >= 0 {
			end = i
		}
	}
	if end == len(b) {
		return 0
	}
	return end
}

// verifyGeneric thins out the generic rule's strikes: names beside names are
// what code consists of, and hexadecimal in numbers is test data.
func verifyGeneric(text []byte, h *hit) bool {
	b := text[h.start:h.end]
	n := count(b)
	if n.upper+n.lower < 2 || identifier(b) || ascending(b) || n.digit < 2 && words(b) && changes(b, -1)*20 < len(b)*9 {
		return false
	}
	if sibling(text, h) || moduleSum(text, h) || verifierKey(b) {
		return false
	}
	return !hexadecimal(b) || !hexData(text, h)
}

// identifier reports whether b is made as names are: of words, with at most one
// number, and few changes of case.
func identifier(b []byte) bool {
	return changes(b, 2) <= 2 && float64(changes(b, -1)) < 0.35*float64(len(b)) && words(b)
}

// words reports whether the letters of b follow each other as they do in words:
// five pairs of six are among the usual ones, as they hardly are in random values.
func words(b []byte) bool {
	pairs, usual := 0, 0
	for i := 1; i < len(b); i++ {
		first, second := lower(b[i-1])-'a', lower(b[i])-'a'
		if first < 26 && second < 26 {
			pairs++
			usual += int(usualPairs[first] >> second & 1)
		}
	}
	return pairs > 0 && 6*usual >= 5*pairs
}

// usualPairs are the pairs of letters that make up 93 % of those in the 22,272
// words of the comments of Go's standard library: for each first letter, a bit
// for each second one.
var usualPairs = [26]uint32{
	0x1bebd6f, 0x0164917, 0x3edd9d, 0x16c93d, 0x1fff97f, 0x1e493d, 0x166995, 0x1a4111, 0x2aef87f, 0x0000000, 0x0040111, 0x11c4919, 0x014d113,
	0x3cfd7d, 0x7efd6f, 0x1ec995, 0x100000, 0x13efd7d, 0x15edd95, 0x15ed9bd, 0x0eb97f, 0x041115, 0x024111, 0xac8110, 0x04b000, 0x000011,
}

// sibling reports whether the "name" of a value is the line before it in a list
// of values alike, which by chance holds "API" or "KEY".
func sibling(text []byte, h *hit) bool {
	name, gap, ok := bytes.Cut(text[h.match:h.start], []byte(","))
	return ok && len(bytes.Trim(name, "\"'` ")) == h.end-h.start && bytes.IndexByte(gap, '\n') >= 0
}

// moduleSum reports whether a value is the checksum of a line of go.sum.
func moduleSum(text []byte, h *hit) bool {
	before := text[max(h.start-200, 0):h.start]
	return len(bytes.TrimSuffix(text[h.start:h.end], []byte("="))) == 43 && bytes.HasSuffix(before, []byte(" h1:")) &&
		bytes.Contains(before[bytes.LastIndexByte(before, '\n')+1:], []byte(" v"))
}

// verifierKey reports whether b is a public key of signed notes, as Go's checksum
// database has it: name, hash and key, with plus signs between.
func verifierKey(b []byte) bool {
	name, rest, _ := bytes.Cut(b, []byte("+"))
	hash, key, ok := bytes.Cut(rest, []byte("+A"))
	return ok && string(name) != "PRIVATE" && len(hash) == 8 && hexadecimal(hash) && len(key) == 43
}

// changes counts where b changes from one kind of letter (lower case, upper
// case, digit, other) to another; with kind, only from and to that kind.
func changes(b []byte, only int) (n int) {
	kind := func(c byte) int {
		switch {
		case c >= 'a' && c <= 'z':
			return 0
		case c >= 'A' && c <= 'Z':
			return 1
		case c >= '0' && c <= '9':
			return 2
		}
		return 3
	}
	for i := 1; i < len(b); i++ {
		from, to := kind(b[i-1]), kind(b[i])
		if from != to && (only < 0 || from == only || to == only) {
			n++
		}
	}
	return n
}

// ascending reports whether most letters follow the one before: 0123456789.
func ascending(b []byte) bool {
	n := 0
	for i := 1; i < len(b); i++ {
		if b[i] == b[i-1]+1 || b[i] == b[i-1] {
			n++
		}
	}
	return 2*n > len(b)
}

// hexData reports whether the text around holds four more times 32 hexadecimal
// digits: test vectors, checksums.
func hexData(text []byte, h *hit) bool {
	from, to := max(h.start-16<<10, 0), min(h.end+16<<10, len(text))
	others, run := 0, 0
	for i := from; i < to; i++ {
		if i >= h.start && i < h.end {
			run = 0
		} else if fourBits[text[i]] == 0xff {
			run = 0
		} else if run++; run%32 == 0 {
			others++
		}
	}
	return others >= 4
}

// verifySquare leaves out zeros in base64, which begin as Square's tokens do.
func verifySquare(text []byte, h *hit) bool {
	return !bytes.Contains(text[h.start:h.end], []byte("AAAAA"))
}

// verifyAuthorization tells a credential from the header of every tutorial.
func verifyAuthorization(text []byte, h *hit) bool {
	if h.start >= 6 && strings.EqualFold(string(text[h.start-6:h.start-1]), "basic") {
		b, _ := base64.RawStdEncoding.DecodeString(strings.TrimRight(string(text[h.start:h.end]), "="))
		_, password, ok := strings.Cut(string(b), ":")
		n := count([]byte(password))
		return ok && printableRun(b) == len(b) && n.digit > 0 && n.upper+n.lower > 0
	}
	return verifyDigits(text, h) && !identifier(text[h.start:h.end])
}

// placeholder reports whether a value is one that documentation shows.
func placeholder(b []byte) bool {
	s := strings.ToLower(string(b))
	for _, word := range []string{"example", "placeholder", "changeme", "redacted", "your-", "your_", "abcdefghijklmnopqrstuvwxyz"} {
		if strings.Contains(s, word) {
			return true
		}
	}
	run := 0
	for i := 1; i < len(s); i++ {
		if s[i] != s[i-1] || strings.IndexByte("x0*#.", s[i]) < 0 {
			run = 0
		} else if run++; run >= 7 {
			return true
		}
	}
	return false
}

// printableRun returns the longest stretch of printable ASCII and white space.
func printableRun(b []byte) int {
	best, run := 0, 0
	for _, c := range b {
		if c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' {
			run++
			best = max(best, run)
		} else {
			run = 0
		}
	}
	return best
}
