package escape

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	hostile := map[string]string{
		"c0":       "a\x1b[31m\n::error::x",
		"delete":   "a\x7fb",
		"c1":       "a\u009b31mred",
		"override": "a\u202egpj.exe",
		"tag":      "a\U000E0041b",
		"plain":    "größer → \U0001F600 <&>",
	}
	var out strings.Builder
	if err := JSON(&out, hostile); err != nil {
		t.Fatal(err)
	}
	for _, r := range out.String() {
		if r != '\n' && hidden(r) {
			t.Errorf("%U is printed as it is in %q", r, out.String())
		}
	}
	for _, shown := range []string{"größer → \U0001F600", `\u009b31m`, `\u202e`, `\udb40\udc41`} {
		if !strings.Contains(out.String(), shown) {
			t.Errorf("%s is not in %s", shown, out.String())
		}
	}
	var back map[string]string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil {
		t.Fatal(err)
	}
	for name, want := range hostile {
		if back[name] != want {
			t.Errorf("%s comes back as %q, want %q", name, back[name], want)
		}
	}
}
