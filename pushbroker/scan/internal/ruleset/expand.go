package ruleset

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

var alphabets = map[string]string{
	"an":  "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
	"u":   "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-",
	"AN":  "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
	"hex": "0123456789abcdef",
	"HEX": "0123456789ABCDEF",
	"b64": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
	"d":   "0123456789",
	"az":  "abcdefghijklmnopqrstuvwxyz",
	"x":   "x",
}

// Expand replaces each {alphabet:n} of a template by n letters of that
// alphabet (an, u, AN, hex, HEX, b64, d, az, x), drawn from seed, and {} by
// nothing. It panics on a template that is none: templates are constants.
func Expand(template string, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 20260501))
	var b strings.Builder
	for {
		open := strings.IndexByte(template, '{')
		if open < 0 || !strings.Contains(template[open:], "}") {
			return b.String() + template
		}
		end := open + strings.IndexByte(template[open:], '}')
		b.WriteString(template[:open])
		field := template[open+1 : end]
		template = template[end+1:]
		name, count, ok := strings.Cut(field, ":")
		letters := alphabets[name]
		switch n, err := strconv.Atoi(count); {
		case field == "":
		case !ok || err != nil || letters == "":
			if open > 0 && strings.HasSuffix(b.String(), "$") {
				b.WriteString("{" + field + "}") // ${NAME}
				continue
			}
			panic(fmt.Sprintf("template field {%s}", field))
		default:
			for range n {
				b.WriteByte(letters[r.IntN(len(letters))])
			}
		}
	}
}
