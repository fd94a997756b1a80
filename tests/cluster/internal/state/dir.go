// Package state is what a cluster keeps in its state directory.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Dir is a state directory, as an absolute path.
type Dir string

// OpenDir makes path absolute and, if it is not there, makes the directory.
func OpenDir(path string) (Dir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return Dir(abs), os.MkdirAll(abs, 0o755)
}

// Kubeconfig is the administrator's.
func (d Dir) Kubeconfig() string { return d.join("kubeconfig") }

// AuditLog is the API server's record of every answered request.
func (d Dir) AuditLog() string { return d.join("audit.log") }

// PKI is a file among the certificates, keys and kubeconfigs.
func (d Dir) PKI(name string) string { return filepath.Join(string(d), "pki", name) }

// Config is a configuration file of a component.
func (d Dir) Config(name string) string { return d.join("config", name) }

// Log is the output of a component.
func (d Dir) Log(component string) string { return d.join("log", component+".log") }

// ResolvConf names the cluster's DNS server.
func (d Dir) ResolvConf() string { return d.join("config", "resolv.conf") }

// CNI is the folder of network configurations.
func (d Dir) CNI() string { return d.join("cni") }

// Containerd is where containerd keeps images and containers.
func (d Dir) Containerd() string { return d.join("containerd") }

// Kubelet is the kubelet's root directory.
func (d Dir) Kubelet() string { return d.join("kubelet") }

// Etcd is etcd's data directory.
func (d Dir) Etcd() string { return d.join("etcd") }

// Node holds what the node has in place of the host's folders of the same name.
func (d Dir) Node(name string) string { return d.join("node", name) }

// Volumes holds the volumes that pods may claim.
func (d Dir) Volumes() string { return d.join("volumes") }

// Images remembers which archives are loaded.
func (d Dir) Images() string { return d.join("images.json") }

func (d Dir) join(e ...string) string { return filepath.Join(append([]string{string(d)}, e...)...) }

// folders and files are all that a cluster makes in its directory.
var (
	folders = []string{"pki", "config", "log", "cni", "containerd", "kubelet", "etcd", "node", "tmp", "volumes"}
	files   = []string{"kubeconfig", "audit.log", "images.json", clusterFile, componentsFile, lockFile}
)

// Make makes the folders of a cluster.
func (d Dir) Make() error {
	for _, f := range append([]string{"node/run", "node/var-lib", "node/var-log"}, folders...) {
		if err := os.MkdirAll(d.join(f), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes all that a cluster made in its directory and, unless something else is there, the directory.
func (d Dir) Remove() error {
	var errs []error
	for _, f := range append(append([]string{}, folders...), files...) {
		errs = append(errs, os.RemoveAll(d.join(f)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	rest, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && len(rest) == 0 {
		return os.Remove(string(d))
	}
	return nil
}
