package openshellapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kickhq/kick/policy"
)

var update = flag.Bool("update", false, "write the golden file anew")

// What goes over the wire of a policy with fetches, a read-only API, two further
// hosts and a model, whose calls go to inference.local and are not in it.
func TestPolicyGolden(t *testing.T) {
	t.Parallel()
	p, err := policy.Load("testdata/kick.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := p.Egress.OpenShell([]string{"/usr/bin/git", "/usr/lib/git-core/git-remote-http", "/usr/bin/curl"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := compiled.YAML()
	if err != nil {
		t.Fatal(err)
	}
	own, err := ParsePolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := protojson.Marshal(policyToWire(own))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Indent(&got, raw, "", "  "); err != nil { // protojson's own spaces differ from build to build
		t.Fatal(err)
	}
	got.WriteByte('\n')
	const golden = "testdata/kick.golden.json"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs, run with -update and look at the difference:\n%s", golden, got.Bytes())
	}
}
