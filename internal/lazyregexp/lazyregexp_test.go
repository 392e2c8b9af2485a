package lazyregexp

import (
	"reflect"
	"testing"
)

func TestRegexp(t *testing.T) {
	t.Parallel()
	r := New(`(a+)(b)`)
	const text = "ab aab b"
	if !r.MatchString(text) || r.MatchString("ba") {
		t.Error("MatchString")
	}
	for name, pair := range map[string][2]any{
		"String":                {r.String(), `(a+)(b)`},
		"FindString":            {r.FindString(text), "ab"},
		"FindStringSubmatch":    {r.FindStringSubmatch(text), []string{"ab", "a", "b"}},
		"FindAllStringSubmatch": {r.FindAllStringSubmatch(text, -1), [][]string{{"ab", "a", "b"}, {"aab", "aa", "b"}}},
		"ReplaceAllString":      {r.ReplaceAllString(text, "$2$1"), "ba baa b"},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: got %v, want %v", name, pair[0], pair[1])
		}
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	r := New("(")
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression did not panic when it was used")
		}
	}()
	r.MatchString("")
}
