package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func authority(t *testing.T) (*Authority, string) {
	t.Helper()
	dir := t.TempDir()
	a, err := NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

// handshake says what each side makes of the other.
func handshake(t *testing.T, dir, serverName string, client, clientCA string) (tls.ConnectionState, error) {
	t.Helper()
	pool := func(name string) *x509.CertPool {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		p := x509.NewCertPool()
		p.AppendCertsFromPEM(b)
		return p
	}
	pair := func(name string) tls.Certificate {
		c, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// Over a real connection: an in-memory pipe without a buffer would let two failing sides wait for each other.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{
			Certificates: []tls.Certificate{pair(client)}, RootCAs: pool("ca.crt"), ServerName: serverName})
		if err == nil {
			_ = c.Close()
		}
		done <- err
	}()
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	srv := tls.Server(a, &tls.Config{Certificates: []tls.Certificate{pair("server")}, ClientCAs: pool(clientCA), ClientAuth: tls.RequireAndVerifyClientCert})
	err = srv.Handshake()
	_ = a.Close()
	if cerr := <-done; err == nil {
		err = cerr
	}
	return srv.ConnectionState(), err
}

func TestServerAndClientAcceptEachOther(t *testing.T) {
	a, dir := authority(t)
	if err := a.Server("server", Subject{User: "kube-apiserver"}, "kubernetes.default", "10.1.2.3"); err != nil {
		t.Fatal(err)
	}
	if err := a.Client("client", Subject{User: "jane", Groups: []string{"g1", "g2"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubernetes.default", "10.1.2.3"} {
		st, err := handshake(t, dir, name, "client", "ca.crt")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := st.PeerCertificates[0].Subject
		if got.CommonName != "jane" || strings.Join(got.Organization, ",") != "g1,g2" {
			t.Errorf("the server saw %v", got)
		}
	}
	if _, err := handshake(t, dir, "elsewhere", "client", "ca.crt"); err == nil {
		t.Error("a name that is not in the certificate was accepted")
	}
}

func TestAClientCertificateIsNoServerCertificateAndForeignersAreRefused(t *testing.T) {
	a, dir := authority(t)
	if _, err := NewAuthority(dir, "other"); err != nil {
		t.Fatal(err)
	}
	if err := a.Client("client", Subject{User: "jane"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Client("server", Subject{User: "not-a-server"}); err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, dir, "not-a-server", "client", "ca.crt"); err == nil {
		t.Error("a client certificate served")
	}
	if err := a.Server("server", Subject{User: "s"}, "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := handshake(t, dir, "s", "client", "other.crt"); err == nil {
		t.Error("a client of another authority was accepted")
	}
}

func TestPrivateFilesAreReadableByTheOwnerOnly(t *testing.T) {
	a, dir := authority(t)
	if err := a.Kubeconfig(filepath.Join(dir, "kubeconfig"), "https://10.1.2.3:6443", Subject{User: "admin"}); err != nil {
		t.Fatal(err)
	}
	if err := ServiceAccountKey(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "kubeconfig", "service-account.key"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != fs.FileMode(0o600) {
			t.Errorf("%s has mode %v", name, fi.Mode())
		}
	}
}
