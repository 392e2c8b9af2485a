package sandbox_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kickhq/kick/internal/openshelltest"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/sandbox/sandboxtest"
)

// With these the contract is held against a real gateway, and not against the
// conformance gateway of package openshelltest.
var (
	openShell      sandbox.OpenShellConnection
	openShellImage = flag.String("openshell.image", openshelltest.Image, "image by digest, with bash, git, coreutils and the writable directories /workspace and /home/agent")
)

func init() {
	flag.StringVar(&openShell.Endpoint, "openshell.endpoint", "", "https://HOST:PORT of a real OpenShell gateway")
	flag.StringVar(&openShell.Workspace, "openshell.workspace", "", "its workspace")
	flag.StringVar(&openShell.CA, "openshell.ca", "", "file with its authority")
	flag.StringVar(&openShell.Cert, "openshell.cert", "", "file with a certificate for it")
	flag.StringVar(&openShell.Key, "openshell.key", "", "file with the certificate's key")
	flag.StringVar(&openShell.Token, "openshell.token", "", "file with a token for it")
}

// openShellChildEnv holds the connection for the suite's child processes, as JSON.
const openShellChildEnv = "KICK_TEST_OPENSHELL"

// openShellCannot is what a sandbox of OpenShell cannot do, whichever gateway.
var openShellCannot = map[string]string{
	"Egress":      "no socket of this host is in the sandbox: the gateway's own policy is the way out, see TestOpenShellPolicy",
	"BaseObjects": "the base's objects are a copy in the sandbox, which is its user's",
	"WorkOnly":    "the workspace is sent, so that the directory on this host never has the work",
}

// TestOpenShellContract holds the OpenShell runtime to the launcher contract, with
// mTLS and with tokens.
func TestOpenShellContract(t *testing.T) {
	shim := filepath.Join(t.TempDir(), "shim")
	if err := os.WriteFile(shim, sandbox.Shim(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KICK_TEST_SHIM", shim)
	options := map[string]openshelltest.Options{
		"mtls":   {MTLS: true},
		"tokens": {Tokens: map[string]openshelltest.User{"secret": {}}},
	}
	if openShell.Endpoint != "" {
		options = map[string]openshelltest.Options{"real": {}}
	}
	for name, o := range options {
		t.Run(name, func(t *testing.T) { openShellContract(t, o) })
	}
}

func openShellContract(t *testing.T, o openshelltest.Options) {
	to, remains := openShell, func() ([]string, error) { return nil, nil }
	if child := os.Getenv(openShellChildEnv); child != "" {
		if err := json.Unmarshal([]byte(child), &to); err != nil {
			t.Fatal(err)
		}
	} else {
		if to.Endpoint == "" {
			g := openshelltest.Start(t, o)
			to, remains = g.Connection, func() ([]string, error) { return g.Sandboxes(), nil }
		}
		raw, err := json.Marshal(to)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(openShellChildEnv, string(raw))
	}
	sandboxtest.TestLauncher(t, sandboxtest.Harness{
		New:   func() (sandbox.Launcher, error) { return newOpenShell(to) },
		Image: *openShellImage,
		Sent:  true,
		// The supervisor, the main process, and what carries the line.
		Beside:       3,
		OneMountPath: true,
		Remains:      remains,
		Cannot:       openShellCannot,
	})
}

func newOpenShell(to sandbox.OpenShellConnection) (*sandbox.OpenShell, error) {
	return sandbox.NewOpenShell(sandbox.OpenShellConfig{
		Shim:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(sandbox.Shim())), nil },
		Connection: to, Image: *openShellImage, TelemetryOff: true, Alone: 15 * time.Second,
	})
}
