package apiclient

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"subagents.dev/localcluster/internal/config"
)

const (
	// storageClass is the cluster's default.
	storageClass = "local"
	// volumes there are. Nothing makes more when they are used up: claims then stay Pending until the next `up` gives back
	// those that nobody claims any more.
	volumes = 16
	// volumeSize is what they say; they share the disk of this machine.
	volumeSize = "100Gi"
)

// EnsureVolumes makes a default StorageClass and its volumes, folders of the node below folder. Volumes whose claim is gone
// are emptied and given back.
func (c *Client) EnsureVolumes(ctx context.Context, folder string) error {
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        storageClass,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:       "kubernetes.io/no-provisioner",
		VolumeBindingMode: &binding,
	}
	_, err := c.clientset.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for n := range volumes {
		if err := c.ensureVolume(ctx, fmt.Sprintf("volume-%02d", n+1), folder); err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) ensureVolume(ctx context.Context, name, folder string) error {
	all := c.clientset.CoreV1().PersistentVolumes()
	found, err := all.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && found.Status.Phase != corev1.VolumeReleased && found.Status.Phase != corev1.VolumeFailed:
		return nil
	case err == nil:
		if err := all.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		gone := func(ctx context.Context) error {
			if _, err := all.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("volume %s is there still", name)
			}
			return nil
		}
		if err := Wait(ctx, gone); err != nil {
			return err
		}
	case !apierrors.IsNotFound(err):
		return err
	}
	path := filepath.Join(folder, name)
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	_, err = all.Create(ctx, volume(name, path), metav1.CreateOptions{})
	return err
}

// volume is of the kind "local", not "hostPath": the kubelet gives only the former to a pod's fsGroup.
func volume(name, path string) *corev1.PersistentVolume {
	onNode := corev1.NodeSelectorRequirement{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{config.NodeName},
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(volumeSize)},
			// There is one node, so whoever mounts it is on the same.
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              storageClass,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{onNode}}},
			}},
		},
	}
}
