package kickid

import (
	"sort"
	"testing"
	"time"
)

func TestNew(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	var ids []string
	for i := range 1000 {
		at := time.Date(2026, 1, 1, 0, 0, i, 0, time.UTC)
		id := checked(t, at)
		if seen[id] {
			t.Fatalf("id %s came twice", id)
		}
		seen[id] = true
		ids = append(ids, id)
	}
	if !sort.StringsAreSorted(ids) {
		t.Error("ids are not ordered by time")
	}
	if !Valid(New()) {
		t.Error("a new id is not valid")
	}
}

func checked(t *testing.T, when time.Time) string {
	t.Helper()
	id := at(when)
	got, err := Time(id)
	if err != nil || !got.Equal(when) {
		t.Fatalf("Time(%s) = %v, %v; want %v", id, got, err, when)
	}
	return id
}

func TestValidRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "k", "K0000000000000", "k000000000000", "k00000000000000", "k0000000000w00", "../0000000000a", "x0000000000000", "k0000000000\n00"} {
		if Valid(s) {
			t.Errorf("Valid(%q) = true", s)
		}
	}
}
