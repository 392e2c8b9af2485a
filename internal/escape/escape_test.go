package escape

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestString(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "src/main.go", "src/main.go"},
		{"utf-8", "日本語 café", "日本語 café"},
		{"escape", "bad\x1b[31mname", `bad\x1b[31mname`},
		{"title", "\x1b]0;x\x07", `\x1b]0;x\x07`},
		{"line break", "a\nb\r\tc", `a\nb\r\tc`},
		{"c1", "a\u009bb", `a\u009bb`},
		{"bidi", "a\u202eb", `a\u202eb`},
		{"tag", "a\U000E0041b", `a\U000e0041b`},
		{"zero width", "a\u200bb", `a\u200bb`},
		{"invalid", "a\xffb", `a\xffb`},
		{"cut rune", "a\xe2\x82", `a\xe2\x82`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"private use", "\ue000", `\ue000`},
		{"command", "::set-output name=x::y", `:\:set-output name=x::y`},
		{"command after space", "  ::error::x", `  :\:error::x`},
		{"old command", "see ##[error]x", `see ##\[error]x`},
		{"azure", "##vso[task.setvariable]x", `##vso\[task.setvariable]x`},
		{"teamcity", "##teamcity[x]", `##teamcity\[x]`},
		{"heading", "## Title [a]", "## Title [a]"},
		{"scope operator", "std::vector", "std::vector"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := String(tc.in); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWriter(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"lines", "a\n\tb\r\nc", "a\n\tb\nc"},
		{"progress", "10%\r20%\n", "10%\\r20%\n"},
		{"colour", "\x1b[1;31mred\x1b[0m\n", "red\n"},
		{"clear", "a\x1b[2J\x1b[H\x1b[?25lb", "ab"},
		{"title stays visible", "\x1b]0;evil\x07x", `\x1b]0;evil\x07x`},
		{"link", "\x1b]8;;http://x\x1b\\t", `\x1b]8;;http://x\x1b\t`},
		{"8-bit csi", "\u009b31mx", `\u009b31mx`},
		{"endless sequence", "\x1b[" + strings.Repeat("1;", 100), `\x1b[` + strings.Repeat("1;", 100)},
		{"broken sequence", "\x1b[1\nx", "\\x1b[1\nx"},
		{"unfinished", "x\x1b[3", `x\x1b[3`},
		{"lone return at the end", "x\r", `x\r`},
		{"cut rune", "x\xe2\x82", `x\xe2\x82`},
		{"command", "ok\n::set-env name=PATH::x\n", "ok\n:\\:set-env name=PATH::x\n"},
		{"command hidden by colour", "\x1b[0m:\x1b[1m:error::x", `:\:error::x`},
		{"command after return", "x\r\n::error::y", "x\n:\\:error::y"},
		{"old command", "a ##[add-mask]x", `a ##\[add-mask]x`},
		{"old command hidden by colour", "#\x1b[m#\x1b[m[add-mask]x", `##\[add-mask]x`},
		{"three hashes", "###[x]", `###\[x]`},
		{"bidi", "a\u2066b\u2069", `a\u2066b\u2069`},
		{"nul", "a\x00b", `a\x00b`},
		{"backspace", "a\bb", `a\x08b`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for size := 1; size <= len(tc.in); size++ {
				if got := write(t, tc.in, size); got != tc.want {
					t.Fatalf("in chunks of %d: got %q, want %q", size, got, tc.want)
				}
			}
		})
	}
}

func write(t *testing.T, in string, size int) string {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out)
	for i := 0; i < len(in); i += size {
		part := in[i:min(i+size, len(in))]
		n, err := w.Write([]byte(part))
		if n != len(part) || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func check(t *testing.T, out string, lines bool) {
	t.Helper()
	if !utf8.ValidString(out) {
		t.Fatalf("not UTF-8: %q", out)
	}
	for _, r := range out {
		if hidden(r) && !(lines && (r == '\n' || r == '\t')) {
			t.Fatalf("U+%04X came through: %q", r, out)
		}
	}
	for l := range strings.SplitSeq(out, "\n") {
		low := strings.ToLower(l)
		if strings.HasPrefix(strings.TrimSpace(l), "::") || strings.Contains(low, "##[") || strings.Contains(low, "##vso[") || strings.Contains(low, "##teamcity[") {
			t.Fatalf("a log command came through: %q", l)
		}
	}
}

func FuzzWriter(f *testing.F) {
	for _, s := range []string{"::a", "\x1b[1m::x", "##vso[", "a\r\n::b", "\xe2\x80\xae", "\x1b]0;\x07", "\u3000::x", "##teamcity##[x"} {
		f.Add([]byte(s), byte(1))
		f.Add([]byte(s), byte(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, size byte) {
		whole := write(t, string(in), len(in)+1)
		check(t, whole, true)
		if parts := write(t, string(in), int(size)+1); parts != whole {
			t.Fatalf("chunks of %d change the output: %q, %q", size+1, parts, whole)
		}
		check(t, String(string(in)), false)
	})
}
