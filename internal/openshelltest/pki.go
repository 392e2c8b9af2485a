package openshelltest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki is an authority with a server's and a client's certificate.
type pki struct {
	ca, clientCert, clientKey string // files
	server                    tls.Certificate
	pool                      *x509.CertPool
}

func newPKI(t testing.TB, dir string) pki {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	issue := func(number int64, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: "openshelltest"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			KeyUsage: x509.KeyUsageDigitalSignature,
		}
		if parent == nil {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
			parent, signer = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
		must(err)
		c, err = x509.ParseCertificate(der)
		must(err)
		return c, key
	}
	write := func(name, kind string, der []byte) string {
		p := filepath.Join(dir, name)
		must(os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return p
	}
	authority, signer := issue(1, nil, nil)
	server, serverKey := issue(2, authority, signer)
	client, clientKey := issue(3, authority, signer)
	der, err := x509.MarshalECPrivateKey(clientKey)
	must(err)
	p := pki{
		ca: write("ca.crt", "CERTIFICATE", authority.Raw), clientCert: write("tls.crt", "CERTIFICATE", client.Raw), clientKey: write("tls.key", "EC PRIVATE KEY", der),
		server: tls.Certificate{Certificate: [][]byte{server.Raw}, PrivateKey: serverKey}, pool: x509.NewCertPool(),
	}
	p.pool.AddCert(authority)
	return p
}
