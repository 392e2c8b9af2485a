package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kickhq/kick/internal/smallfile"
)

// TrustName is the name of a file beside the socket, made if the policy ends
// TLS for some host: the certificates that programs in the sandbox are to
// trust, which are the system's and the gateway's own, in PEM.
const TrustName = "ca.pem"

// TrustEnvironment makes the programs of a sandbox trust the certificates in
// the file TrustName, seen there at path.
func TrustEnvironment(path string) map[string]string {
	env := map[string]string{}
	for _, name := range []string{
		"SSL_CERT_FILE",       // OpenSSL, Go, Ruby, rustls-native-certs, uv
		"CURL_CA_BUNDLE",      // curl
		"GIT_SSL_CAINFO",      // git
		"NODE_EXTRA_CA_CERTS", // node, npm
		"REQUESTS_CA_BUNDLE",  // Python requests
		"PIP_CERT",            // pip
		"CARGO_HTTP_CAINFO",   // cargo
		"DENO_CERT",           // deno
	} {
		env[name] = path
	}
	return env
}

// authorityLife is longer than any kick. The key lives in this process alone.
const authorityLife = 30 * 24 * time.Hour

// authority signs certificates for the hosts whose TLS the gateway of one kick
// ends. Its keys are never written anywhere.
type authority struct {
	cert    *x509.Certificate
	trust   []byte // content of TrustName
	key     *ecdsa.PrivateKey
	leafKey *ecdsa.PrivateKey // of all hosts
}

// openAuthority makes an authority and the file TrustName in a directory. The
// system's certificates are in it too, since programs take it in their place.
func openAuthority(kick string, d *os.File) (a *authority, err error) {
	if a, err = newAuthority(kick); err != nil {
		return nil, err
	}
	roots, err := systemRoots()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", d.Fd()))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	a.trust = append(own, roots...)
	if err := root.WriteFile(TrustName, a.trust, 0o644); err != nil {
		return nil, err
	}
	return a, root.Chmod(TrustName, 0o644) // whatever the umask took away
}

func newAuthority(kick string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's authority: %w", err)
	}
	form := certificate("kick egress gateway of " + kick)
	form.KeyUsage = x509.KeyUsageCertSign
	form.IsCA, form.BasicConstraintsValid, form.MaxPathLenZero = true, true, true
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the gateway's authority: %w", err)
	}
	return &authority{cert: cert, key: key, leafKey: leafKey}, nil
}

// certificate is what all certificates here have. CreateCertificate gives a
// random serial number.
func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), // clocks differ
		NotAfter:  now.Add(authorityLife),
	}
}

// leaf makes a certificate for one host. It is cheap (one signature), so none
// is kept.
func (a *authority) leaf(host string) (tls.Certificate, error) {
	form := certificate("")
	form.DNSNames = []string{host}
	form.KeyUsage = x509.KeyUsageDigitalSignature
	form.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	form.NotAfter = a.cert.NotAfter
	der, err := x509.CreateCertificate(rand.Reader, form, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for %s: %w", host, err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}, nil
}

// bundleFiles are where systems keep their roots as one file: those of
// crypto/x509 for Linux.
var bundleFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// maxRoots is far more than the bundles of systems have, about 250 KB.
const maxRoots = 8 << 20

// systemRoots reads the system's roots. A system without any has programs that
// trust none, which is its own matter.
func systemRoots() ([]byte, error) {
	names := bundleFiles
	if name := os.Getenv("SSL_CERT_FILE"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		pem, err := smallfile.Read(name, maxRoots)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the system's certificates: %w", err)
		}
		return pem, nil
	}
	return nil, nil
}
