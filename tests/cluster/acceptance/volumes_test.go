//go:build acceptance

package acceptance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tryVolumes claims a volume of the default class, writes there as nobody special, and gives it back.
func tryVolumes(c *cluster) {
	t := c.t
	ctx := context.Background()
	claims := c.client().CoreV1().PersistentVolumeClaims("default")
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Gi")},
			},
		},
	}
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	group := int64(1000) // the image's user is in none that may write there
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"},
		Spec: corev1.PodSpec{
			RestartPolicy:   corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{FSGroup: &group},
			Containers: []corev1.Container{{
				Name: "c", Image: probeImage, Args: []string{"write", "/data/file"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
			}}},
		},
	}
	pods := c.client().CoreV1().Pods("default")
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if phase, log := c.end("writer"); phase != corev1.PodSucceeded {
		t.Errorf("writing to a claimed volume: %s, %q", phase, log)
	}
	bound, err := claims.Get(ctx, "claim", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume := bound.Spec.VolumeName
	written := filepath.Join(c.dir, "volumes", volume, "file")
	if _, err := os.Stat(written); err != nil {
		t.Error(err)
	}

	if err := pods.Delete(ctx, "writer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := claims.Delete(ctx, "claim", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	phase := func(ctx context.Context) (corev1.PersistentVolumePhase, error) {
		v, err := c.client().CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return v.Status.Phase, nil
	}
	is := func(want corev1.PersistentVolumePhase) func(context.Context) error {
		return func(ctx context.Context) error {
			got, err := phase(ctx)
			if err == nil && got != want {
				err = fmt.Errorf("volume %s is %s", volume, got)
			}
			return err
		}
	}
	eventually(t, "volume without its claim", is(corev1.VolumeReleased))
	c.run("up")
	eventually(t, "volume that can be claimed again", is(corev1.VolumeAvailable))
	if _, err := os.Stat(written); !os.IsNotExist(err) {
		t.Errorf("a volume that can be claimed again is not empty: %v", err)
	}
}
