package openshellapi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pair writes a certificate that ends then, and its key.
func pair(t *testing.T, end time.Time) (cert, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &own.PublicKey, own)
	der2, err2 := x509.MarshalECPrivateKey(own)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return write(t, dir+"/tls.crt", text("CERTIFICATE", der)), write(t, dir+"/tls.key", text("EC PRIVATE KEY", der2))
}

func TestConnectionCheck(t *testing.T) {
	t.Parallel()
	cert, key := pair(t, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	for _, tt := range []struct {
		c    Connection
		want string // part of the error; "" is fine
	}{
		{Connection{Endpoint: "http://127.0.0.1:17670"}, ""},
		{Connection{Endpoint: "http://[::1]:17670"}, ""},
		{Connection{Endpoint: "http://localhost"}, ""},
		{Connection{Endpoint: "https://gateway.test:8080", Workspace: "team-a"}, ""},
		{Connection{Endpoint: "http://gateway.test:8080"}, "not encrypted and not on this host"},
		{Connection{Endpoint: "http://127.0.0.1.gateway.test"}, "not encrypted"},
		{Connection{Endpoint: "http://0.0.0.0:1"}, "not encrypted"},
		{Connection{Endpoint: "http://127.0.0.1:1", Cert: "c"}, "there are certificates"},
		{Connection{Endpoint: "https://u:p@gateway.test"}, "no address"},
		{Connection{Endpoint: "https://gateway.test/path"}, "no address"},
		{Connection{Endpoint: "https://gateway.test#part"}, "no address"},
		{Connection{Endpoint: "gateway.test:8080"}, "no address"},
		{Connection{Endpoint: "ftp://gateway.test"}, "no address"},
		{Connection{Endpoint: "https://gateway.test", Workspace: "Team"}, "write a DNS label"},
		{Connection{Endpoint: "https://gateway.test", Workspace: strings.Repeat("a", 20)}, "at most 19"},
		{Connection{Endpoint: "https://gateway.test", CA: "/nowhere/ca.crt"}, "authority"},
		{Connection{Endpoint: "https://gateway.test", Cert: "/nowhere/tls.crt", Key: "/nowhere/tls.key"}, "kick's certificate"},
		{Connection{Endpoint: "https://gateway.test", Cert: "/nowhere/tls.crt"}, "there is no key for /nowhere/tls.crt"},
		{Connection{Endpoint: "https://gateway.test", Key: "/nowhere/tls.key"}, "there is none for the key /nowhere/tls.key"},
		{Connection{Endpoint: "https://gateway.test", Cert: cert, Key: key}, cert + " ended at 2020-01-01T00:00:00Z"},
	} {
		err := tt.c.Check()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	user, system := t.TempDir(), t.TempDir()
	write(t, user+"/active_gateway", "local\n")
	own := user + "/gateways/local"
	write(t, own+"/metadata.json", `{"name":"local","gateway_endpoint":"https://127.0.0.1:17670","auth_mode":"mtls"}`)
	for _, f := range []string{"ca.crt", "tls.crt", "tls.key"} {
		write(t, own+"/mtls/"+f, "")
	}
	write(t, own+"/oidc_token.json", "{}")
	write(t, system+"/gateways/shared/metadata.json", `{"gateway_endpoint":"https://shared.test"}`)
	write(t, system+"/gateways/edge/metadata.json", `{"gateway_endpoint":"https://edge.test","auth_mode":"cloudflare_jwt"}`)
	write(t, system+"/gateways/broken/metadata.json", `{`)
	write(t, system+"/gateways/empty/metadata.json", `{}`)
	dirs := []string{user, system}

	c, err := find(dirs, "")
	want := Connection{Endpoint: "https://127.0.0.1:17670", CA: own + "/mtls/ca.crt", Cert: own + "/mtls/tls.crt", Key: own + "/mtls/tls.key", Token: own + "/oidc_token.json"}
	if err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err := find(dirs, "shared"); err != nil || c.Endpoint != "https://shared.test" || c.Token != "" {
		t.Errorf("%+v, %v", c, err)
	}
	for name, want := range map[string]string{"edge": "edge tunnel", "broken": "unexpected end", "empty": "no gateway_endpoint", "../x": "no name", "nobody": "there is no gateway nobody"} {
		if _, err := find(dirs, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := find([]string{system}, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no active gateway: %v", err)
	}
}

func TestReadToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := dir + "/pipe"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(pipe); err == nil || !strings.Contains(err.Error(), pipe+" is a pipe") {
		t.Errorf("of a pipe: %v", err)
	}
	for content, want := range map[string]string{
		"abc.def\n": "abc.def", `{"access_token":"abc","refresh_token":"x"}`: "abc",
		"": "", "{}": "", `{"access_token`: "", "two words": "", strings.Repeat("x", maxFile+1): "",
	} {
		got, err := readToken(write(t, dir+"/token", content))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.40q: %q, %v", content, got, err)
		}
		if err != nil && len(content) > 3 && strings.Contains(err.Error(), content[:4]) {
			t.Errorf("the error shows the file: %v", err)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, accept, want string
	}{
		{"0.1.0", "", ""}, {"0.1.10", "", ""}, {"v0.1.5", "", ""}, {"0.1.5-rc.1", "", ""},
		{"0.0.111", "", "first generation"}, {"0.0.90", "0.0.90", "first generation"},
		{"0.2.0", "", "tested with"}, {"1.0.0", "", `openshell.accept_version to "1.0.0"`}, {"0.2.0", "0.2.0", ""}, {"0.2.1", "0.2.0", "tested with"},
		{"", "", "none"}, {"latest", "latest", "none"}, {"0.1", "", "none"}, {"0.1.5\n", "", "none"},
	} {
		err := CheckVersion(tt.version, tt.accept)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, accepting %q: %v, want %q", tt.version, tt.accept, err, tt.want)
		}
	}
}
