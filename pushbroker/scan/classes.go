package scan

// blockLen is how many bytes are classified at a time.
const blockLen = 64

// classes has a bit for each byte of a block and each class. Where something may
// begin is then found by shifts, for 64 bytes at once: a loop over words would
// guess wrong at the end of each.
type classes struct {
	letter   uint64 // of base64
	alnum    uint64
	hexDigit uint64
	digit    uint64
	solid    uint64 // neither blank nor zero
	event    uint64 // a reader may begin there, whatever stands around
}

// classOf has a bit for each class, in the order of the fields of classes.
var classOf = func() (t [256]byte) {
	for i := range t {
		c, k := byte(i), kindOf[i]
		for bit, is := range []bool{k <= mark, alphanumeric[c], fourBits[c] != 0xff, c >= '0' && c <= '9', k != blank && k != zero, k > blank} {
			if is {
				t[c] |= 1 << bit
			}
		}
	}
	return t
}()

// classify returns the classes of the first block of text; behind its end are
// blanks.
func classify(text []byte) (c classes) {
	if len(text) < blockLen {
		if len(text) == 0 {
			return classes{}
		}
		var padded [blockLen]byte
		for i := copy(padded[:], text); i < blockLen; i++ {
			padded[i] = ' '
		}
		text = padded[:]
	}
	for i := 0; i < blockLen; i += 8 {
		b := text[i : i+8 : i+8]
		v := uint64(classOf[b[0]]) | uint64(classOf[b[1]])<<8 | uint64(classOf[b[2]])<<16 | uint64(classOf[b[3]])<<24 |
			uint64(classOf[b[4]])<<32 | uint64(classOf[b[5]])<<40 | uint64(classOf[b[6]])<<48 | uint64(classOf[b[7]])<<56
		c.letter |= gather(v) << i
		c.alnum |= gather(v>>1) << i
		c.hexDigit |= gather(v>>2) << i
		c.digit |= gather(v>>3) << i
		c.solid |= gather(v>>4) << i
		c.event |= gather(v>>5) << i
	}
	return c
}

// gather returns the lowest bit of each byte of v, in the order of the bytes.
func gather(v uint64) uint64 {
	return v & 0x0101010101010101 * 0x0102040810204080 >> 56
}

// tokens returns where tokens of a list may begin: a number, or two hexadecimal
// digits alone, with no letter or digit before.
func (c *classes) tokens(before, next classes) uint64 {
	behind1 := c.hexDigit>>1 | next.hexDigit<<63
	behind2 := c.alnum>>2 | next.alnum<<62
	return (c.digit | c.hexDigit&behind1&^behind2) &^ (c.alnum<<1 | before.alnum>>63)
}

// runsOf returns where runs of n bits begin or go on, for an n of 8 or 20; next
// are the bits of the next block.
func runsOf(n int, bits, next uint64) uint64 {
	half := func(shift int) { // both halves of 128 bits
		bits &= bits>>shift | next<<(64-shift)
		next &= next >> shift
	}
	half(1)
	half(2)
	if n == minWrapped {
		half(4)
		return bits
	}
	four, nextFour := bits, next
	half(4)
	half(8)
	return bits & (four>>16 | nextFour<<48)
}
