package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerated fails when a description was changed and its code was not, or the
// other way round: make openshell-proto writes both and their sums.
func TestGenerated(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(b)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	var files []string
	for _, pattern := range []string{"*.proto", "*.pb.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) != len(want) || len(files) < 7 {
		t.Errorf("%d files %q, and sums of %d", len(files), files, len(want))
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want[name] {
			t.Errorf("%s is not what was generated: run make openshell-proto", name)
		}
	}
}
