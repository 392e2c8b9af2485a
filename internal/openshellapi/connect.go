package openshellapi

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/internal/smallfile"
)

// Connection says where a gateway is and how to prove who asks.
type Connection struct {
	// Endpoint is https://host:port, or http://host:port of this host's loopback.
	Endpoint string
	// Workspace is the gateway's workspace: access, policies and names are of it
	// alone. Empty: "default".
	Workspace string
	// CA, Cert and Key are PEM files: whom to trust as a gateway instead of the
	// system's authorities, and kick's own certificate.
	CA, Cert, Key string
	// Token is a file with a bearer token, as plain text or as the OpenShell
	// command's oidc_token.json. It is read again for every call.
	Token string
	// AcceptVersion is a version outside of the tested range that is accepted.
	AcceptVersion string
}

// DefaultWorkspace exists on every gateway.
const DefaultWorkspace = "default"

var labelForm = lazyregexp.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// Find returns the connection of the OpenShell command's own configuration: the
// gateway of that name, or of OPENSHELL_GATEWAY, or the active one, in
// $XDG_CONFIG_HOME/openshell (~/.config/openshell); gateways of the whole system
// are in /etc/openshell. An error that wraps fs.ErrNotExist says that there is no
// such gateway.
func Find(name string) (Connection, error) {
	return find(configDirs(), firstOf(name, os.Getenv("OPENSHELL_GATEWAY")))
}

func configDirs() []string {
	dirs := []string{firstOf(os.Getenv("OPENSHELL_SYSTEM_GATEWAY_DIR"), "/etc/openshell")}
	user := os.Getenv("XDG_CONFIG_HOME")
	if user == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return dirs
		}
		user = filepath.Join(home, ".config")
	}
	return append([]string{filepath.Join(user, "openshell")}, dirs...)
}

func firstOf(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

// metadata is what kick needs of a gateway's metadata.json.
type metadata struct {
	Endpoint string `json:"gateway_endpoint"`
	AuthMode string `json:"auth_mode"`
}

func find(dirs []string, name string) (Connection, error) {
	for _, dir := range dirs {
		if name != "" {
			break
		}
		b, err := smallfile.Read(filepath.Join(dir, "active_gateway"), maxFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Connection{}, err
		}
		name = strings.TrimSpace(string(b))
	}
	if name == "" {
		return Connection{}, fmt.Errorf("no gateway is active in %s: %w", strings.Join(dirs, " or "), fs.ErrNotExist)
	}
	if strings.ContainsAny(name, `/\.`) {
		return Connection{}, fmt.Errorf("%q is no name of a gateway", name)
	}
	for _, dir := range dirs {
		own := filepath.Join(dir, "gateways", name)
		b, err := smallfile.Read(filepath.Join(own, "metadata.json"), maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var m metadata
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err == nil && m.Endpoint == "" {
			err = errors.New("it has no gateway_endpoint")
		}
		if err != nil {
			return Connection{}, fmt.Errorf("gateway %s: %s: %w", name, filepath.Join(own, "metadata.json"), err)
		}
		if m.AuthMode == "cloudflare_jwt" || m.AuthMode == "edge" {
			return Connection{}, fmt.Errorf("gateway %s is reached through an edge tunnel, which kick does not speak: give its own address as openshell.endpoint", name)
		}
		c := Connection{Endpoint: m.Endpoint, Workspace: os.Getenv("OPENSHELL_WORKSPACE")}
		c.CA, c.Cert, c.Key = present(own, "mtls/ca.crt"), present(own, "mtls/tls.crt"), present(own, "mtls/tls.key")
		c.Token = present(own, "oidc_token.json")
		return c, nil
	}
	return Connection{}, fmt.Errorf("there is no gateway %s in %s: %w", name, strings.Join(dirs, " or "), fs.ErrNotExist)
}

func present(dir, name string) string {
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// maxFile bounds every file that is read for a connection.
const maxFile = 256 << 10

// address is the connection, checked.
type address struct {
	target string // host:port
	tls    *tls.Config
}

// Check says what is wrong with the connection before anything is asked.
func (c Connection) Check() error {
	_, err := c.address()
	return err
}

func (c Connection) address() (address, error) {
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return address{}, fmt.Errorf("%q is no address of a gateway: write https://HOST:PORT", c.Endpoint)
	}
	if w := c.workspace(); len(w) > MaxName || !labelForm.MatchString(w) {
		return address{}, fmt.Errorf("%q is no name of a workspace: write a DNS label of at most %d characters", w, MaxName)
	}
	switch u.Scheme {
	case "http":
		if !loopback(u.Hostname()) {
			return address{}, fmt.Errorf("%s is not encrypted and not on this host: use https, or a tunnel that ends on this host's loopback", c.Endpoint)
		}
		if c.CA != "" || c.Cert != "" || c.Key != "" {
			return address{}, fmt.Errorf("%s is not encrypted, and there are certificates for it: use https", c.Endpoint)
		}
		return address{target: withPort(u, "80")}, nil
	case "https":
		t, err := c.certificates()
		return address{target: withPort(u, "443"), tls: t}, err
	}
	return address{}, fmt.Errorf("%q is no address of a gateway: write https://HOST:PORT", c.Endpoint)
}

func (c Connection) workspace() string { return firstOf(c.Workspace, DefaultWorkspace) }

func withPort(u *url.URL, port string) string {
	return net.JoinHostPort(u.Hostname(), firstOf(u.Port(), port))
}

// loopback wants an address, or the one name that never leaves the host.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

func (c Connection) certificates() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := smallfile.Read(c.CA, maxFile)
		if err != nil {
			return nil, fmt.Errorf("the gateway's authority: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the gateway's authority: %s holds no certificate", c.CA)
		}
	}
	if c.Cert == "" && c.Key == "" {
		return t, nil
	}
	cert, err := c.certificate()
	if err != nil {
		return nil, fmt.Errorf("kick's certificate for the gateway: %w", err)
	}
	t.Certificates = []tls.Certificate{cert}
	return t, nil
}

// certificate is kick's own.
func (c Connection) certificate() (tls.Certificate, error) {
	switch {
	case c.Key == "":
		return tls.Certificate{}, fmt.Errorf("there is no key for %s", c.Cert)
	case c.Cert == "":
		return tls.Certificate{}, fmt.Errorf("there is none for the key %s", c.Key)
	}
	own, err := smallfile.Read(c.Cert, maxFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := smallfile.Read(c.Key, maxFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := tls.X509KeyPair(own, key)
	if err == nil && time.Now().After(cert.Leaf.NotAfter) {
		err = fmt.Errorf("%s ended at %s", c.Cert, cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	return cert, err
}

// readToken reads a bearer token: the file's text, or access_token of a JSON
// object.
func readToken(path string) (string, error) {
	b, err := smallfile.Read(path, maxFile)
	if err != nil {
		return "", fmt.Errorf("the token for the gateway: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if strings.HasPrefix(token, "{") {
		var t struct {
			Access string `json:"access_token"`
		}
		if json.Unmarshal(b, &t) != nil { // its error would show the text
			return "", fmt.Errorf("the token for the gateway: %s is neither a token nor JSON with access_token", path)
		}
		token = t.Access
	}
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the token for the gateway: %s holds none", path)
	}
	return token, nil
}
