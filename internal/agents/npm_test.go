package agents

import "testing"

func TestNPM(t *testing.T) {
	t.Parallel()
	codex := kind(t, "codex").NPM
	spec, program, err := codex.For("1.2.3", "arm64")
	if err != nil || spec != "@openai/codex@1.2.3-linux-arm64" || program != "vendor/aarch64-unknown-linux-musl/bin/codex" {
		t.Errorf("%q %q: %v", spec, program, err)
	}
	if _, _, err := codex.For("1.2.3", "riscv64"); err == nil {
		t.Error("there is a package for riscv64")
	}
	for version, want := range map[string]bool{
		"1.2.3": true, "0.171.0-alpha.4": true, "1": true,
		"": false, "latest": false, "../1": false, "1 2": false, "-g": false, "1@2": false,
	} {
		if IsVersion(version) != want {
			t.Errorf("%q: want %v", version, want)
		}
	}
}

// TestTestedKindsAreOnNPM: what tests run is what an image can have.
func TestTestedKindsAreOnNPM(t *testing.T) {
	t.Parallel()
	for _, k := range Kinds() {
		if (k.Tested == "") != (k.NPM.Spec == "") {
			t.Errorf("%s: tested %q, on npm %q", k.Name, k.Tested, k.NPM.Spec)
		}
	}
}
