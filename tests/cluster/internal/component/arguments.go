package component

import (
	"fmt"
	"path/filepath"

	"subagents.dev/localcluster/internal/config"
	"subagents.dev/localcluster/internal/state"
)

// Start is one process of a cluster and how it is started.
type Start struct {
	Name string
	// Program is a path, or empty for the one of that name in this binary.
	Program string
	Args    []string
}

// auditLogMegabytes: far more than any test writes. A log that is rotated away in the middle of a test cannot be read
// from its start.
const auditLogMegabytes = 1 << 20

// First are the processes that can start at once.
func First(dir state.Dir, c *state.Cluster) []Start {
	if c.Mode == state.APIServerOnly {
		return []Start{etcd(dir, c.Slot.EtcdClientPort(), c.Slot.EtcdPeerPort()), apiServer(dir, c)}
	}
	return []Start{
		etcd(dir, 2379, 2380),
		{Name: "containerd", Program: "/usr/bin/containerd", Args: []string{"--config", dir.Config("containerd.toml")}},
		apiServer(dir, c),
	}
}

// Second are the processes that need an API server.
func Second(dir state.Dir, c *state.Cluster) []Start {
	if c.Mode == state.APIServerOnly {
		if c.Controllers == "" {
			return nil
		}
		return []Start{controllerManager(dir, c, "--controllers="+c.Controllers, "--secure-port=0")}
	}
	return []Start{
		{Name: "kubelet", Args: []string{
			"--config=" + dir.Config("kubelet.yaml"),
			"--kubeconfig=" + dir.PKI("kubelet.kubeconfig"),
			"--root-dir=" + dir.Kubelet(),
			"--cert-dir=" + dir.PKI(""),
			"--hostname-override=" + config.NodeName,
			"--node-ip=" + c.Slot.NodeIP().String(),
			"--v=2", // pod life cycle: what one wants to read after a test failed
		}},
		controllerManager(dir, c,
			"--allocate-node-cidrs=true", "--cluster-cidr="+c.Slot.PodCIDR().String(),
			fmt.Sprintf("--node-cidr-mask-size=%d", c.Slot.PodCIDR().Bits()),
			"--flex-volume-plugin-dir="+filepath.Join(dir.Kubelet(), "volume-plugins"),
			"--bind-address=127.0.0.1",
		),
		{Name: "kube-scheduler", Args: []string{
			"--config=" + dir.Config("kube-scheduler.yaml"),
			"--authentication-kubeconfig=" + dir.PKI("kube-scheduler.kubeconfig"),
			"--authorization-kubeconfig=" + dir.PKI("kube-scheduler.kubeconfig"),
			"--bind-address=127.0.0.1",
		}},
		{Name: "kube-proxy", Args: []string{"--config=" + dir.Config("kube-proxy.yaml")}},
		{Name: "coredns", Args: []string{"-conf", dir.Config("Corefile")}},
	}
}

func etcd(dir state.Dir, client, peer int) Start {
	return Start{Name: "etcd", Args: []string{
		"--data-dir=" + dir.Etcd(), fmt.Sprintf("--client-port=%d", client), fmt.Sprintf("--peer-port=%d", peer)}}
}

func apiServer(dir state.Dir, c *state.Cluster) Start {
	args := []string{
		"--client-ca-file=" + dir.PKI("ca.crt"),
		"--tls-cert-file=" + dir.PKI("apiserver.crt"),
		"--tls-private-key-file=" + dir.PKI("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + dir.PKI("service-account.pub"),
		"--service-account-signing-key-file=" + dir.PKI("service-account.key"),
		"--service-cluster-ip-range=" + c.Slot.ServiceCIDR().String(),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", // beside those that are on by default
		"--allow-privileged=true",
		"--requestheader-client-ca-file=" + dir.PKI("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + dir.PKI("front-proxy-client.crt"),
		"--proxy-client-key-file=" + dir.PKI("front-proxy-client.key"),
		"--audit-policy-file=" + dir.Config("audit-policy.yaml"),
		"--audit-log-path=" + dir.AuditLog(),
		"--audit-log-mode=blocking-strict", // a line is in the file before the client has its answer
		fmt.Sprintf("--audit-log-maxsize=%d", auditLogMegabytes),
		"--profiling=false",
		"--v=1",
	}
	if c.Mode == state.APIServerOnly {
		args = append(args,
			fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.Slot.EtcdClientPort()),
			"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", c.Slot.APIPort()),
			// An Endpoints object may not name a loopback address, and no pod is there to use it.
			"--endpoint-reconciler-type=none",
		)
	} else {
		args = append(args,
			"--etcd-servers=http://127.0.0.1:2379",
			"--bind-address=0.0.0.0", "--advertise-address="+c.Slot.NodeIP().String(), "--secure-port=6443",
			"--kubelet-client-certificate="+dir.PKI("apiserver-kubelet-client.crt"),
			"--kubelet-client-key="+dir.PKI("apiserver-kubelet-client.key"),
			"--kubelet-certificate-authority="+dir.PKI("ca.crt"),
			"--kubelet-preferred-address-types=InternalIP",
		)
	}
	return Start{Name: "kube-apiserver", Args: args}
}

func controllerManager(dir state.Dir, c *state.Cluster, more ...string) Start {
	own := dir.PKI("kube-controller-manager.kubeconfig")
	return Start{Name: "kube-controller-manager", Args: append([]string{
		"--kubeconfig=" + own, "--authentication-kubeconfig=" + own, "--authorization-kubeconfig=" + own,
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + dir.PKI("service-account.key"),
		"--root-ca-file=" + dir.PKI("ca.crt"),
		"--cluster-signing-cert-file=" + dir.PKI("ca.crt"), "--cluster-signing-key-file=" + dir.PKI("ca.key"),
		"--service-cluster-ip-range=" + c.Slot.ServiceCIDR().String(),
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--profiling=false",
	}, more...)}
}
