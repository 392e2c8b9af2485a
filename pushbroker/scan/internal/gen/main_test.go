package main

import (
	"bytes"
	"os"
	"testing"
)

// TestTableIsFresh generates the table again and compares it with the one that
// is committed.
func TestTableIsFresh(t *testing.T) {
	t.Parallel()
	got, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../zz_rules.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("zz_rules.go is not what the generator makes; run go generate ./pushbroker/scan")
	}
}
