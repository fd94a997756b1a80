package config

import (
	"fmt"

	"subagents.dev/localcluster/internal/pki"
	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

// masters is the group that the API server lets do everything, whatever the roles say.
const masters = "system:masters"

// Server is the URL of the API server as everyone, on the host and in the node, sees it.
func Server(mode state.Mode, s slot.Slot) string {
	if mode == state.APIServerOnly {
		return fmt.Sprintf("https://127.0.0.1:%d", s.APIPort())
	}
	return fmt.Sprintf("https://%s:6443", s.NodeIP())
}

// WriteIdentities makes the certificate authorities, certificates, keys and kubeconfigs of the cluster in dir.
func WriteIdentities(dir state.Dir, mode state.Mode, s slot.Slot) error {
	root, err := pki.NewAuthority(dir.PKI(""), "ca")
	if err != nil {
		return err
	}
	frontProxy, err := pki.NewAuthority(dir.PKI(""), "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := pki.ServiceAccountKey(dir.PKI("")); err != nil {
		return err
	}
	err = root.Server("apiserver", pki.Subject{User: "kube-apiserver"},
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost", "127.0.0.1", s.NodeIP().String(), s.ServiceIP().String())
	if err != nil {
		return err
	}
	if err := frontProxy.Client("front-proxy-client", pki.Subject{User: "front-proxy-client"}); err != nil {
		return err
	}
	server := Server(mode, s)
	if err := root.Kubeconfig(dir.Kubeconfig(), server, pki.Subject{User: "admin", Groups: []string{masters}}); err != nil {
		return err
	}
	controllers := pki.Subject{User: "system:kube-controller-manager"}
	if err := root.Kubeconfig(dir.PKI("kube-controller-manager.kubeconfig"), server, controllers); err != nil {
		return err
	}
	if mode == state.APIServerOnly {
		return nil
	}
	node := pki.Subject{User: "system:node:" + NodeName, Groups: []string{"system:nodes"}}
	if err := root.Server("kubelet", node, NodeName, s.NodeIP().String(), "127.0.0.1"); err != nil {
		return err
	}
	if err := root.Client("apiserver-kubelet-client", pki.Subject{User: "kube-apiserver", Groups: []string{masters}}); err != nil {
		return err
	}
	for file, who := range map[string]pki.Subject{
		"kube-scheduler.kubeconfig": {User: "system:kube-scheduler"},
		"kube-proxy.kubeconfig":     {User: "system:kube-proxy"},
		"kubelet.kubeconfig":        node,
		// Its usual role comes with its usual manifests, which are not used here.
		"coredns.kubeconfig": {User: "system:coredns", Groups: []string{masters}},
	} {
		if err := root.Kubeconfig(dir.PKI(file), server, who); err != nil {
			return err
		}
	}
	return nil
}
