// Package pki makes the certificates and kubeconfigs of a cluster.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is far longer than any test cluster lives.
const validity = 365 * 24 * time.Hour

// skew lets a certificate be used at once by a process whose clock is a little behind.
const skew = time.Hour

// Authority signs certificates and writes them into one folder.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// Subject is who a certificate speaks for: to the API server, user and groups.
type Subject struct {
	User   string
	Groups []string
}

// NewAuthority makes a certificate authority and writes dir/name.crt and dir/name.key.
func NewAuthority(dir, name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template(name, nil)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, cert: cert, key: key, pem: encode("CERTIFICATE", der)}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return a, a.write(name, a.pem, keyPEM)
}

// Server writes name.crt and name.key for a server known by the given DNS names and IP addresses.
func (a *Authority) Server(name string, s Subject, hosts ...string) error {
	t := template(s.User, s.Groups)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	cert, key, err := a.sign(t)
	if err != nil {
		return fmt.Errorf("server certificate %s: %w", name, err)
	}
	return a.write(name, cert, key)
}

// Client writes name.crt and name.key for a client.
func (a *Authority) Client(name string, s Subject) error {
	cert, key, err := a.client(s)
	if err != nil {
		return fmt.Errorf("client certificate %s: %w", name, err)
	}
	return a.write(name, cert, key)
}

// Kubeconfig writes a kubeconfig with an embedded client certificate to path, readable by the owner only.
func (a *Authority) Kubeconfig(path, server string, s Subject) error {
	cert, key, err := a.client(s)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	b64 := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: local
clusters:
- name: local
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %q
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: local
  context:
    cluster: local
    user: %q
`, server, b64(a.pem), s.User, b64(cert), b64(key), s.User)
	return os.WriteFile(path, []byte(text), 0o600)
}

// ServiceAccountKey writes dir/service-account.key, with which the API server signs tokens, and its public half
// dir/service-account.pub.
func ServiceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "service-account.key"), encode("EC PRIVATE KEY", private), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "service-account.pub"), encode("PUBLIC KEY", public), 0o644)
}

func (a *Authority) client(s Subject) (cert, key []byte, err error) {
	t := template(s.User, s.Groups)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(t)
}

func (a *Authority) sign(t *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encode("CERTIFICATE", der), keyPEM, err
}

func (a *Authority) write(name string, cert, key []byte) error {
	if err := os.WriteFile(filepath.Join(a.dir, name+".crt"), cert, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.dir, name+".key"), key, 0o600)
}

func template(name string, groups []string) *x509.Certificate {
	// 128 random bits: two certificates of one authority never get the same number.
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		panic(err) // the kernel's random source does not fail
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: n,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
