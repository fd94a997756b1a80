// Package config renders the configuration files of a cluster's components.
package config

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

// NodeName is the name of the one node, and its host name.
const NodeName = "node1"

// PauseImage is the image of each pod's first container, built by `up`.
const PauseImage = "localhost/pause:1"

//go:embed templates
var templates embed.FS

type values struct {
	Dir        state.Dir
	Slot       slot.Slot
	NodeName   string
	PauseImage string
}

// Write renders every configuration file of the cluster in dir.
func Write(dir state.Dir, s slot.Slot) error {
	for name, path := range map[string]string{
		"audit-policy.yaml":   dir.Config("audit-policy.yaml"),
		"kubelet.yaml":        dir.Config("kubelet.yaml"),
		"containerd.toml":     dir.Config("containerd.toml"),
		"cni.conflist":        filepath.Join(dir.CNI(), "10-pods.conflist"),
		"kube-proxy.yaml":     dir.Config("kube-proxy.yaml"),
		"kube-scheduler.yaml": dir.Config("kube-scheduler.yaml"),
		"Corefile":            dir.Config("Corefile"),
		"resolv.conf":         dir.ResolvConf(),
	} {
		text, err := render(name, dir, s)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func render(name string, dir state.Dir, s slot.Slot) (string, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(templates, "templates/"+name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, values{Dir: dir, Slot: s, NodeName: NodeName, PauseImage: PauseImage}); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return b.String(), nil
}
