//go:build acceptance

package acceptance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const probeImage = "localhost/probe:1"

// probeArchive builds the image of ./probe with the image builder of this repository.
func probeArchive(t *testing.T) string {
	t.Helper()
	tmp := t.TempDir()
	compile := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(tmp, "probe"), "./probe")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	archive := filepath.Join(tmp, "probe.tar")
	pack := exec.Command(tool(t, "MKIMAGE"), "--ref", probeImage, "-o", archive, "--user", "1000:1000", "--entrypoint", "/probe",
		filepath.Join(tmp, "probe"))
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return archive
}

func (c *cluster) createPod(name, image string, args ...string) {
	c.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "c", Image: image, Args: args}},
		},
	}
	if _, err := c.client().CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// outcome runs the probe in a pod to its end; it returns the pod's phase and what the probe said.
func (c *cluster) outcome(name string, args ...string) (corev1.PodPhase, string) {
	c.t.Helper()
	c.createPod(name, probeImage, args...)
	return c.end(name)
}

// end waits for the end of a pod with the probe.
func (c *cluster) end(name string) (corev1.PodPhase, string) {
	c.t.Helper()
	pods := c.client().CoreV1().Pods("default")
	var phase corev1.PodPhase
	eventually(c.t, "end of pod "+name, func(ctx context.Context) error {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		phase = p.Status.Phase
		if phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Errorf("phase %s, %+v", phase, p.Status.ContainerStatuses)
		}
		return nil
	})
	log, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	return phase, string(log)
}

// runningIP runs a pod that stays, and returns its address.
func (c *cluster) runningIP(name string, args ...string) string {
	c.t.Helper()
	c.createPod(name, probeImage, args...)
	var ip string
	eventually(c.t, "pod "+name+" running", func(ctx context.Context) error {
		p, err := c.client().CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ip = p.Status.PodIP; p.Status.Phase != corev1.PodRunning || ip == "" {
			return fmt.Errorf("phase %s, address %q", p.Status.Phase, ip)
		}
		return nil
	})
	return ip
}
