//go:build acceptance

package acceptance

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"subagents.dev/localcluster/internal/slot"
)

func TestTwoClustersSideBySideWorkAndLeaveNothingBehind(t *testing.T) {
	before := traces(t)
	archive := probeArchive(t)
	a, b := newCluster(t), newCluster(t)
	both := []*cluster{a, b}
	var wg sync.WaitGroup
	var outs [2]string
	var errs [2]error
	for i, c := range both { // at the same time: they must not take the same slot
		wg.Go(func() { outs[i], errs[i] = c.try("up") })
	}
	wg.Wait()
	for i := range both {
		if errs[i] != nil {
			t.Fatalf("up: %v\n%s", errs[i], outs[i])
		}
	}
	slots := []slot.Slot{a.slot(), b.slot()}
	if slots[0] == slots[1] {
		t.Fatalf("both have slot %d", slots[0])
	}

	for _, c := range both {
		if out := c.run("up"); !strings.Contains(out, "up already") {
			t.Errorf("a second up said %q", out)
		}
		if out := c.run("status"); !strings.Contains(out, "health:      ok") {
			t.Errorf("status said %q", out)
		}
		if out := c.run("load-image", archive); !strings.Contains(out, "loaded "+probeImage) {
			t.Errorf("load-image said %q", out)
		}
		if out := c.run("load-image", archive); !strings.Contains(out, "loaded already") {
			t.Errorf("the second load-image said %q", out)
		}
		t.Run(fmt.Sprintf("slot %d", c.slot()), func(t *testing.T) {
			tryPods(&cluster{t: t, dir: c.dir})
			tryVolumes(&cluster{t: t, dir: c.dir})
		})
	}

	for _, c := range both {
		c.run("down")
	}
	requireNoTraces(t, before, slots, a.dir, b.dir)
	if out, err := a.try("status"); err == nil || !strings.Contains(out, "no cluster") {
		t.Errorf("status of a removed cluster: %v, %q", err, out)
	}
}

func tryPods(c *cluster) {
	t := c.t
	s := c.slot()
	ip := c.runningIP("server", "serve", ":8080")
	if !s.PodCIDR().Contains(netip.MustParseAddr(ip)) {
		t.Errorf("pod address %s is not in %s", ip, s.PodCIDR())
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "server"}, Ports: []corev1.ServicePort{{Port: 8080}}},
	}
	if _, err := c.client().CoreV1().Services("default").Create(context.Background(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	label := []byte(`{"metadata":{"labels":{"app":"server"}}}`)
	if _, err := c.client().CoreV1().Pods("default").Patch(context.Background(), "server", "application/merge-patch+json", label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	host, err := net.Listen("tcp", s.HostIP().String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	eventually(t, "host to Service", func(context.Context) error {
		got, err := c.client().CoreV1().Services("default").Get(context.Background(), "server", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", got.Spec.ClusterIP+":8080", time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	elsewhere := s.HostIP().String() // an address of the host that is not on the link
	if links, err := net.InterfaceAddrs(); err == nil {
		for _, l := range links {
			if p := netip.MustParsePrefix(l.String()); p.Addr().Is4() && !p.Addr().IsLoopback() && p.Addr().As4()[0] != 10 {
				elsewhere = p.Addr().String()
			}
		}
	}
	for name, tc := range map[string]struct {
		args  []string
		phase corev1.PodPhase
		says  string
	}{
		"pod-to-service-by-name": {[]string{"dial", "server.default.svc.cluster.local:8080"}, corev1.PodSucceeded, "connected"},
		"pod-to-api-server":      {[]string{"dial", "kubernetes.default:443"}, corev1.PodSucceeded, "connected"},
		"pod-to-host":            {[]string{"dial", host.Addr().String()}, corev1.PodSucceeded, "connected"},
		"pod-to-outside":         {[]string{"dial", "1.1.1.1:443"}, corev1.PodFailed, "unreachable"},
		"pod-to-host-elsewhere":  {[]string{"dial", elsewhere + ":22"}, corev1.PodFailed, "unreachable"},
		"name-outside":           {[]string{"resolve", "example.com"}, corev1.PodFailed, "no such host"},
	} {
		if phase, log := c.outcome(name, tc.args...); phase != tc.phase || !strings.Contains(log, tc.says) {
			t.Errorf("%s: %s, want %s; it said %q, want %q", name, phase, tc.phase, log, tc.says)
		}
	}
	for name, image := range map[string]string{"absent": "localhost/absent:1", "no-registry": "registry.invalid/x:1"} {
		c.createPod(name, image)
		began := time.Now()
		eventually(t, "refusal of "+image, func(ctx context.Context) error {
			p, err := c.client().CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, st := range p.Status.ContainerStatuses {
				if w := st.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
					return nil
				}
			}
			return fmt.Errorf("%+v", p.Status)
		})
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s was refused after %s: something was waited for", image, took)
		}
	}
}

func TestAClusterKilledInTheForegroundIsGoneAndItsRemainsAreReplaced(t *testing.T) {
	before := traces(t)
	c := newCluster(t)
	fg := exec.Command(tool(t, "LOCALCLUSTER"), "--dir", c.dir, "up", "--foreground")
	out := startAndWait(t, fg, "ready;")
	root, first := c.root(), c.slot()
	if err := fg.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = fg.Wait()
	eventually(t, "end of the cluster's root process", func(context.Context) error {
		if err := syscall.Kill(root, 0); err == nil {
			return fmt.Errorf("process %d is there; output:\n%s", root, out())
		}
		return nil
	})
	if said, err := c.try("status"); err == nil {
		t.Errorf("the status of a killed cluster is good: %s", said)
	}
	if said := c.run("up"); !strings.Contains(said, "removing what is left") {
		t.Errorf("up over a killed cluster said %q", said)
	}
	second := c.slot()
	c.run("status")
	c.run("down")
	requireNoTraces(t, before, []slot.Slot{first, second}, c.dir)
}

func TestDownKeepsWhatItDidNotMake(t *testing.T) {
	c := newCluster(t)
	tools := filepath.Join(c.dir, "bin")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(c.dir) }()
	c.run("up", "--apiserver-only")
	c.run("down")
	left, err := os.ReadDir(c.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "bin" {
		t.Errorf("left: %v %v, want bin alone", left, err)
	}
	if out := c.run("down"); !strings.Contains(out, "no cluster") {
		t.Errorf("a second down said %q", out)
	}
}
