package scan

// minWord is the shortest stretch without white space that is taken for base85:
// 16 bytes.
const minWord = 20

// maxLetters is how many letters of base64 base85 has for each other byte; it
// has three as a rule.
const maxLetters = 16

// digits85 are the three alphabets in use: Adobe's Ascii85, that of git and
// Python (RFC 1924), and ZeroMQ's Z85.
var digits85 = [3]*[256]byte{
	digitsOf("!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu"),
	digitsOf("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"),
	digitsOf("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"),
}

// lead85 has a bit for each alphabet in which a digit can begin the five of four
// printable bytes.
var lead85 = func() (t [256]byte) {
	for a, digit := range digits85 {
		for c := range t {
			if d := digit[c]; d >= ' '<<24/(85*85*85*85) && d <= 0x7f<<24/(85*85*85*85) {
				t[c] |= 1 << a
			}
		}
	}
	return t
}()

// Nearly all base85 of 20 digits has letters of both cases, and others.
const (
	letterOrDigit = iota
	upperCase
	lowerCase
	noLetter
)

type counts [4]int

var caseOf = func() (t [256]byte) {
	for c := range t {
		if sixBits[c] == 0xff {
			t[c] = noLetter
		}
	}
	for i := range 26 {
		t['A'+i], t['a'+i] = upperCase, lowerCase
	}
	return t
}()

// base85 decodes what of a word decodes to twelve printable bytes and more, from
// there on.
func (w *rewriter) base85(from, to int) {
	text := w.parent.text
	n := counts{}
	for _, c := range text[from:to] {
		n[caseOf[c]]++
	}
	if n[upperCase] == 0 || n[lowerCase] == 0 || n[noLetter]*maxLetters < to-from {
		return
	}
	for p := from; p+15 <= to; p++ {
		alphabets := lead85[text[p]] & lead85[text[p+5]] & lead85[text[p+10]]
		for a := 0; alphabets>>a != 0; a++ {
			if alphabets>>a&1 == 0 || !readable85(text[p:p+15], digits85[a]) {
				continue
			}
			out, n := decode85(w.scratch[:0], text[p:to], digits85[a])
			w.scratch = out
			w.addWith(0, span{p, p + n}, out, "base85")
			p += n - 1
			break
		}
	}
}

func readable85(b []byte, digit *[256]byte) bool {
	for ; len(b) >= 5; b = b[5:] {
		v, ok := group85(b, digit)
		if !ok {
			return false
		}
		for shift := 0; shift < 32; shift += 8 {
			if !asciiText(byte(v >> shift)) {
				return false
			}
		}
	}
	return true
}

// decode85 appends what b decodes to, and returns how much of b that was.
func decode85(out, b []byte, digit *[256]byte) (decoded []byte, n int) {
	for n < len(b) {
		if b[n] == 'z' && digit == digits85[0] {
			out, n = append(out, 0, 0, 0, 0), n+1
			continue
		}
		v, size := uint64(0), 0
		for i := range 5 { // the last group may be shorter
			d := byte(84)
			if size == i && n+i < len(b) && digit[b[n+i]] != 0xff {
				d, size = digit[b[n+i]], i+1
			}
			v = v*85 + uint64(d)
		}
		if size < 2 || v >= 1<<32 {
			return out, n
		}
		bytes := [4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
		out, n = append(out, bytes[:size-1]...), n+size
		if size < 5 {
			return out, n
		}
	}
	return out, n
}

// group85 returns the four bytes that five digits write.
func group85(b []byte, digit *[256]byte) (v uint32, ok bool) {
	n := uint64(0)
	for _, c := range b[:5] {
		d := digit[c]
		if d == 0xff {
			return 0, false
		}
		n = n*85 + uint64(d)
	}
	return uint32(n), n < 1<<32
}
