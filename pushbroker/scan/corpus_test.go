package scan

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/zricethezav/gitleaks/v8/detect"

	"github.com/kickhq/kick/pushbroker"
	"github.com/kickhq/kick/pushbroker/scan/internal/corpus"
)

// TestRecall plants a sample of the corpus in a real repository, and wants
// nearly all of it found by way of the broker, and all that gitleaks finds when
// it is given the same items.
func TestRecall(t *testing.T) {
	t.Parallel()
	every := 150
	switch {
	case testing.Short():
		every = 600
	case os.Getenv("KICK_SOAK") == "1":
		every = 1
	}
	shapes, err := corpus.Shapes()
	if err != nil {
		t.Fatal(err)
	}
	for plants := range slices.Chunk(corpus.Plants(shapes, every), 4000) {
		checkRecall(t, plants)
	}
}

func checkRecall(t *testing.T, plants []corpus.Plant) {
	t.Helper()
	repo, err := corpus.Build(t.TempDir(), plants)
	if err != nil {
		t.Fatal(err)
	}
	d := gitleaksDetector(t, 2)
	theirs, seen := map[int]string{}, map[int]bool{}
	ours, err := repo.Find(context.Background(), newScanner(t, nil), t.TempDir(), func(i int, it pushbroker.Item) {
		seen[i] = true
		for _, g := range d.Detect(detect.Fragment{Raw: string(it.Data)}) { //nolint:staticcheck // Detect takes no other type
			theirs[i] = g.RuleID
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for i, p := range plants {
		if !seen[i] {
			t.Errorf("the scanner did not see plant %d: %s in %s", i, p.Encoding.Name, p.Place)
		}
		if ours[i] != "" {
			found++
			continue
		}
		t.Logf("missed: %s, %s, %s: %.200q", p.Shape.Rule, p.Encoding.Name, p.Place, p.Text)
		if theirs[i] != "" {
			t.Errorf("gitleaks finds by %s what we do not: %s, %s, %s: %q", theirs[i], p.Shape.Rule, p.Encoding.Name, p.Place, p.Text)
		}
	}
	t.Logf("of %d plants we find %d, gitleaks %d", len(plants), found, len(theirs))
	if len(plants) < 100 || len(theirs) < len(plants)/10 {
		t.Errorf("%d plants, of which gitleaks finds %d: the test lost its grip", len(plants), len(theirs))
	}
	if float64(found) < 0.98*float64(len(plants)) {
		t.Errorf("of %d plants we find only %d", len(plants), found)
	}
}
