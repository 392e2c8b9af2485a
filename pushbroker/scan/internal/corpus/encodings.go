package corpus

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/ascii85"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"mime/quotedprintable"
	"os/exec"
	"strings"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"
)

// Encoding is a way to write a secret. All of them are undone by common tools,
// or by who reads the text.
type Encoding struct {
	Name, Group string
	Encode      func(s string) string
}

// Encodings are all that the scanner is to see through. Secrets are at least 12
// bytes long.
var Encodings = []Encoding{
	{"plain", "plain", func(s string) string { return s }},
	{"base64", "base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
	{"base64 raw", "base64", func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }},
	{"base64 url", "base64", func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }},
	{"base64 twice", "chains", func(s string) string { return Base64(Base64(s)) }},
	{"base64 at 20", "base64, wrapped", func(s string) string { return Wrap(Base64("note: "+s), 20, "\n") }},
	{"base64 at 76", "base64, wrapped", func(s string) string { return Wrap(Base64(strings.Repeat("text ", 30)+s), 76, "\r\n") }},
	{"base64 indented", "base64, wrapped", func(s string) string { return Wrap(Base64(s), 24, "\n    ") }},
	{"base64 shifted 1", "base64", func(s string) string { return "x" + Base64(s) }},
	{"base64 shifted 2", "base64", func(s string) string { return "xy" + Base64(s) }},
	{"base64 shifted 3", "base64", func(s string) string { return "xyz" + Base64(s) }},
	{"base64 in binary", "base64", func(s string) string { return Base64("\x00\x01\xfe\xff\x80" + s + "\x00\x9a\xbc") }},
	{"base64 of gzip", "chains", func(s string) string { return Base64(Gzip(s)) }},
	{"base64 of utf16", "chains", func(s string) string { return Base64(UTF16(s, false)) }},
	{"hex", "hexadecimal", func(s string) string { return hex.EncodeToString([]byte(s)) }},
	{"HEX", "hexadecimal", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
	{"hex of base64", "chains", func(s string) string { return hex.EncodeToString([]byte(Base64(s))) }},
	{"percent", "percent", func(s string) string { return Each(s, "%%%02X") }},
	{"percent one", "percent", func(s string) string { return strings.Replace(s, s[2:3], fmt.Sprintf("%%%02x", s[2]), 1) }},
	{"\\u", "escapes", func(s string) string { return Each(s, `\u%04x`) }},
	{"\\u{}", "escapes", func(s string) string { return Each(s, `\u{%x}`) }},
	{"\\U", "escapes", func(s string) string { return Each(s, `\U%08x`) }},
	{"\\x", "escapes", func(s string) string { return Each(s, `\x%02x`) }},
	{"octal", "escapes", func(s string) string { return Each(s, `\%03o`) }},
	{"html", "escapes", func(s string) string { return Each(s, "&#%d;") }},
	{"html hex", "escapes", func(s string) string { return Each(s, "&#x%X;") }},
	{"utf16 le", "UTF-16", func(s string) string { return "\xff\xfe" + UTF16(s, false) }},
	{"utf16 be", "UTF-16", func(s string) string { return "\xfe\xff" + UTF16(s, true) }},
	{"utf16 no mark", "UTF-16", func(s string) string { return UTF16("a line\n"+s+"\n", false) }},
	{"utf16 in binary", "UTF-16", func(s string) string { return "\x00\x00\x01\x7f\x00\xff" + UTF16(s, true) + "\x01\x02" }},
	{"gzip", "gzip", Gzip},
	{"gzip behind", "gzip", func(s string) string { return "some bytes before" + Gzip(s) }},
	{"gzip of gzip", "gzip", func(s string) string { return Gzip(Gzip(s)) }},
	{"gzip of base64", "chains", func(s string) string { return Gzip(Base64(s)) }},
	{"zip", "zip", func(s string) string { return Zip("s.txt", s, zip.Deflate) }},
	{"zip stored", "zip", func(s string) string { return Zip("s.txt", s, zip.Store) }},
	{"zip in zip", "zip", func(s string) string { return Zip("inner.jar", Zip("s.txt", s, zip.Deflate), zip.Deflate) }},
	{"zip behind image", "zip", func(s string) string { return "\x89PNG\r\n\x1a\nimage" + Zip("s.txt", s, zip.Deflate) }},
	{"zip no directory", "zip", func(s string) string {
		z := Zip("s.txt", s, zip.Deflate)
		return z[:strings.Index(z, "PK\x01\x02")]
	}},
	{"zip unlisted", "zip", func(s string) string { // a member that the directory does not name
		z := Zip("s.txt", s, zip.Deflate)
		return z[:strings.Index(z, "PK\x01\x02")] + Zip("other.txt", "nothing", zip.Deflate)
	}},
	{"zip, then gzip", "zip", func(s string) string { return Zip("other.txt", "nothing", zip.Deflate) + Gzip(s) }},
	{"zip, base64 inside", "chains", func(s string) string { return Zip("s.txt", "data: "+Base64(s), zip.Deflate) }},
	{"xz", "xz", XZ},
	{"xz -9", "xz", func(s string) string { return Filter("xz", s, "-9") }},
	{"xz with a filter", "xz", func(s string) string { return Filter("xz", s, "--x86", "--lzma2") }},
	{"xz behind", "xz", func(s string) string { return "some bytes before" + XZ(s) }},
	{"zstd", "zstd", Zstd},
	{"zstd twice", "zstd", func(s string) string { return Zstd(Zstd(s)) }},
	{"zstd in two frames", "zstd", func(s string) string { return Zstd("nothing") + Zstd(s) }},
	{"zstd split", "zstd", func(s string) string { return Zstd(s[:7]) + Zstd(s[7:]) }},
	{"gzip split", "gzip", func(s string) string { return Gzip(s[:7]) + Gzip(s[7:]) }},
	{"gzip cut", "gzip", func(s string) string { z := Gzip(s); return z[:len(z)-4] }},
	{"gzip four times", "chains", func(s string) string { return Gzip(Gzip(Gzip(Gzip(Base64(s))))) }},
	{"tar", "tar", Tar},
	{"tar.gz", "chains", func(s string) string { return Gzip(Tar(s)) }},
	{"tar.xz", "chains", func(s string) string { return XZ(Tar(s)) }},
	{"tar.zst", "chains", func(s string) string { return Zstd(Tar(s)) }},
	{"zip in tar.gz", "chains", func(s string) string { return Gzip(Tar(Zip("s.txt", s, zip.Deflate))) }},
	{"docx", "zip", func(s string) string {
		return Zip("[Content_Types].xml", "<Types/>", zip.Deflate) + Zip("word/document.xml", "<w:t>"+s+"</w:t>", zip.Deflate)
	}},
	{"base64 of zip", "chains", func(s string) string { return Base64(Zip("s.txt", s, zip.Deflate)) }},
	{"base64 of xz", "chains", func(s string) string { return Base64(XZ(s)) }},
	{"base64 of zstd", "chains", func(s string) string { return Base64(Zstd(s)) }},
	{"base64 of bytes, gzip", "chains", func(s string) string { return Base64("\x01\x02\x03\x04" + Gzip(s)) }},
	{"base64 of utf16 be", "chains", func(s string) string { return Base64(UTF16(s, true)) }},
	{"hex of gzip", "chains", func(s string) string { return hex.EncodeToString([]byte(Gzip(s))) }},
	{"percent of base64", "chains", func(s string) string { return Each(Base64(s), "%%%02x") }},
	{"gzip of utf16", "chains", func(s string) string { return Gzip("\xff\xfe" + UTF16(s, false)) }},
	{"utf16 of base64", "chains", func(s string) string { return UTF16("k = "+Base64(s), false) }},
	{"zero width", "invisible characters", func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") }},
	{"soft hyphen", "invisible characters", func(s string) string { return s[:6] + "\u00ad" + s[6:] }},
	{"word joiner", "invisible characters", func(s string) string { return s[:9] + "\u2060\ufeff" + s[9:] }},
	{"full width", "invisible characters", fullWidth},
	{"bold", "invisible characters", bold},
	{"base32", "base32", func(s string) string { return base32.StdEncoding.EncodeToString([]byte(s)) }},
	{"base32 lower case", "base32", func(s string) string { return strings.ToLower(base32.StdEncoding.EncodeToString([]byte(s))) }},
	{"base32 hex", "base32", func(s string) string { return base32.HexEncoding.EncodeToString([]byte("a text: " + s)) }},
	{"base32 at 24", "base32", func(s string) string { return Wrap(base32.StdEncoding.EncodeToString([]byte(s)), 24, "\n") }},
	{"ascii85", "base85", func(s string) string { return "<~" + ASCII85(s) + "~>" }},
	{"ascii85 bare", "base85", ASCII85},
	{"base85 of git", "base85", func(s string) string {
		return base85(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~")
	}},
	{"z85", "base85", func(s string) string {
		return base85(s, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
	}},
	{"hex, colons", "lists of bytes", func(s string) string { return Bytes(s, "%02x", ":") }},
	{"hex, blanks", "lists of bytes", func(s string) string { return Bytes(s, "%02X", " ") }},
	{"hex, dashes", "lists of bytes", func(s string) string { return Bytes(s, "%02x", "-") }},
	{"c array", "lists of bytes", func(s string) string { return "{" + Bytes(s, "0x%02x", ", ") + "}" }},
	{"c array of lines", "lists of bytes", func(s string) string { return "{\n\t" + Wrap(Bytes(s, "0x%02X", ","), 60, "\n\t") + "\n}" }},
	{"c array mixed", "lists of bytes", mixed},
	{"decimals", "lists of bytes", func(s string) string { return "[" + Bytes(s, "%d", ", ") + "]" }},
	{"letters", "lists of bytes", letters},
	{"chr()", "lists of bytes", func(s string) string { return Bytes(s, "chr(%d)", ".") }},
	{"binary digits", "lists of bytes", func(s string) string { return Bytes(s, "%08b", " ") }},
	{"binary run", "lists of bytes", func(s string) string { return Bytes(s, "%08b", "") }},
	{"hexdump", "dumps", func(s string) string { return hex.Dump([]byte(s)) }},
	{"xxd", "dumps", func(s string) string { return dump(s, "%08x: ", false) }},
	{"od", "dumps", func(s string) string { return dump(s, "%07o ", true) }},
	{"utf32 le", "UTF-32", func(s string) string { return "\xff\xfe\x00\x00" + UTF32(s, binary.LittleEndian) }},
	{"utf32 be", "UTF-32", func(s string) string { return UTF32(s, binary.BigEndian) }},
	{"quoted-printable", "quoted-printable", func(s string) string { return Quoted(strings.Repeat("text ", 11) + s) }},
	{"quoted-printable, every byte", "quoted-printable", func(s string) string { return Wrap(Each(s, "=%02X"), 75, "=\n") }},
	{"quoted-printable, split", "quoted-printable", func(s string) string { return s[:7] + "=\r\n" + s[7:] }},
	{"percent twice", "percent", func(s string) string { return Each(s, "%%25%02x") }},
	{"html by name", "escapes", func(s string) string {
		return strings.NewReplacer("_", "&lowbar;", "-", "&#45;", ":", "&colon;", "/", "&sol;", "=", "&equals;", "\"", "&quot;", "&", "&amp;").Replace(s)
	}},
	{"backslash at a line's end", "split over lines", func(s string) string { return s[:7] + "\\\n" + s[7:] }},
	{"zlib", "zlib", Zlib},
	{"base64 of zlib", "chains", func(s string) string { return Base64(Zlib(s)) }},
	{"hex list of gzip", "chains", func(s string) string { return Bytes(Gzip(s), "0x%02x", ",") }},
	{"base32 of gzip", "chains", func(s string) string { return base32.StdEncoding.EncodeToString([]byte(Gzip(s))) }},
	{"joined go", "joined literals", func(s string) string { return `v := "` + s[:7] + `" + "` + s[7:] + `"` }},
	{"joined three", "joined literals", func(s string) string { return `v := "` + s[:5] + `" + "` + s[5:11] + "\" +\n\t\"" + s[11:] + `"` }},
	{"joined c", "joined literals", func(s string) string { return `char *v = "` + s[:7] + `" "` + s[7:] + `";` }},
	{"joined php", "joined literals", func(s string) string { return `$v = '` + s[:7] + `' . '` + s[7:] + `';` }},
	{"joined lines", "joined literals", func(s string) string { return "v = (\"" + s[:7] + "\"\n     \"" + s[7:] + "\")" }},
	{"joined lua", "joined literals", func(s string) string { return `v = "` + s[:7] + `" .. "` + s[7:] + `"` }},
	{"joined backslash", "joined literals", func(s string) string { return "v = \"" + s[:7] + "\" \\\n  \"" + s[7:] + "\"" }},
	{"joined base64", "joined literals", func(s string) string { e := Base64(s); return `v := "` + e[:13] + `" + "` + e[13:] + `"` }},
}

// Base64 encodes s with padding.
func Base64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// Wrap breaks s into lines of at letters, with sep between them.
func Wrap(s string, at int, sep string) string {
	var lines []string
	for len(s) > at {
		lines, s = append(lines, s[:at]), s[at:]
	}
	return strings.Join(append(lines, s), sep)
}

// Each writes every byte of s by a format.
func Each(s, format string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

// Bytes writes the bytes of s by a format, with sep between them.
func Bytes(s, format, sep string) string {
	var out []string
	for _, c := range []byte(s) {
		out = append(out, fmt.Sprintf(format, c))
	}
	return strings.Join(out, sep)
}

// mixed writes an array of C in which each byte is written in another way.
func mixed(s string) string {
	var out []string
	for i, c := range []byte(s) {
		format := []string{"'%c'", "0x%x", "%d", "%04o"}[i%4]
		if format == "'%c'" && (c < ' ' || c > '~' || c == '\'' || c == '\\') {
			format = "%d"
		}
		out = append(out, fmt.Sprintf(format, c))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// letters writes an array of literals of one letter each.
func letters(s string) string {
	var out []string
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '\'' || c == '\\' {
			out = append(out, fmt.Sprint(c))
			continue
		}
		out = append(out, "'"+string(rune(c))+"'")
	}
	return "[" + strings.Join(out, ",") + "]"
}

// dump writes s as xxd does, or as od does with -x.
func dump(s, offset string, swap bool) string {
	var b strings.Builder
	for at := 0; at < len(s); at += 16 {
		fmt.Fprintf(&b, offset, at)
		line := s[at:min(at+16, len(s))]
		for i := 0; i < len(line); i += 2 {
			switch {
			case i+1 == len(line):
				fmt.Fprintf(&b, "%02x ", line[i])
			case swap:
				fmt.Fprintf(&b, "%02x%02x ", line[i+1], line[i])
			default:
				fmt.Fprintf(&b, "%02x%02x ", line[i], line[i+1])
			}
		}
		if !swap {
			b.WriteString(" " + line)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// ASCII85 encodes s as Adobe does, without marks.
func ASCII85(s string) string {
	out := make([]byte, ascii85.MaxEncodedLen(len(s)))
	return string(out[:ascii85.Encode(out, []byte(s))])
}

// base85 encodes s in another alphabet.
func base85(s, alphabet string) string {
	padded := s + strings.Repeat("\x00", (4-len(s)%4)%4)
	var b strings.Builder
	for i := 0; i < len(padded); i += 4 {
		v, group := binary.BigEndian.Uint32([]byte(padded[i:])), [5]byte{}
		for d := 4; d >= 0; d-- {
			group[d], v = alphabet[v%85], v/85
		}
		b.Write(group[:])
	}
	return b.String()[:b.Len()-(len(padded)-len(s))]
}

// UTF32 encodes s without a mark.
func UTF32(s string, order binary.AppendByteOrder) string {
	var b []byte
	for _, r := range s {
		b = order.AppendUint32(b, uint32(r))
	}
	return string(b)
}

// fullWidth and bold write letters and digits in forms that Unicode has besides.
func fullWidth(s string) string {
	return strings.Map(func(r rune) rune {
		if alphanumeric(r) || r == '_' {
			return r - ' ' + 0xff00
		}
		return r
	}, s)
}

func bold(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 0x1d400
		case r >= 'a' && r <= 'z':
			return r - 'a' + 0x1d41a
		case r >= '0' && r <= '9':
			return r - '0' + 0x1d7ce
		}
		return r
	}, s)
}

func alphanumeric(r rune) bool {
	return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
}

// Quoted encodes s as quoted-printable.
func Quoted(s string) string {
	var b bytes.Buffer
	w := quotedprintable.NewWriter(&b)
	_, err := w.Write([]byte(s))
	must(err, w.Close())
	return b.String()
}

// Zlib compresses s.
func Zlib(s string) string {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, err := w.Write([]byte(s))
	must(err, w.Close())
	return b.String()
}

// UTF16 encodes s without a mark.
func UTF16(s string, big bool) string {
	var b []byte
	for _, u := range utf16.Encode([]rune(s)) {
		if big {
			b = append(b, byte(u>>8), byte(u))
		} else {
			b = append(b, byte(u), byte(u>>8))
		}
	}
	return string(b)
}

// Gzip compresses s.
func Gzip(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(s))
	must(err, w.Close())
	return b.String()
}

// Zstd compresses s.
func Zstd(s string) string {
	w, err := zstd.NewWriter(nil)
	must(err)
	return string(w.EncodeAll([]byte(s), nil))
}

// XZ compresses s.
func XZ(s string) string { return Filter("xz", s) }

// Filter gives s to a program of the system.
func Filter(program, s string, args ...string) string {
	cmd := exec.Command(program, append([]string{"--stdout"}, args...)...)
	cmd.Stdin = strings.NewReader(s)
	out, err := cmd.Output()
	if err != nil {
		panic(fmt.Sprintf("%s: %v", program, err))
	}
	return string(out)
}

// Tar makes an archive of s in one file.
func Tar(s string) string {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	header := w.WriteHeader(&tar.Header{Name: "dir/s.txt", Mode: 0o644, Size: int64(len(s))})
	_, err := w.Write([]byte(s))
	must(header, err, w.Close())
	return b.String()
}

// Zip makes an archive of content in one file, stored or deflated.
func Zip(name, content string, method uint16) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, header := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
	must(header)
	_, err := f.Write([]byte(content))
	must(err, w.Close())
	return b.String()
}

// must panics on an error that writing to memory cannot give.
func must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		panic(err)
	}
}
