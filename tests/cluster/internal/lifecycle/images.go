package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"

	"subagents.dev/localcluster/internal/apiclient"
	"subagents.dev/localcluster/internal/state"
)

// seenDeadline is for the part of containerd that serves the kubelet to notice an image; it takes milliseconds.
const seenDeadline = 10 * time.Second

// LoadImages imports image archives into the node. An archive that is there already is left out.
func LoadImages(ctx context.Context, dir state.Dir, archives []string) error {
	unlock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := dir.LoadCluster()
	if err != nil {
		return err
	}
	if c == nil || !c.Root.Alive() {
		return fmt.Errorf("no cluster runs in %s", dir)
	}
	if c.Mode != state.WithNode {
		return errors.New("the cluster has no node to load images into")
	}
	loaded := dir.LoadImages()
	for _, path := range archives {
		if err := loadOne(ctx, c, path, loaded); err != nil {
			return fmt.Errorf("load %s: %w", path, err)
		}
		if err := dir.SaveImages(loaded); err != nil {
			return err
		}
	}
	return nil
}

func loadOne(ctx context.Context, c *state.Cluster, path string, loaded map[string]string) error {
	began := time.Now()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	digest := hex.EncodeToString(h.Sum(nil))
	if refs := refsFrom(loaded, digest); len(refs) > 0 {
		fmt.Printf("%s is loaded already\n", strings.Join(refs, ", "))
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	refs, err := importImages(ctx, c, f)
	if err != nil {
		return err
	}
	if err := waitSeen(ctx, c, refs); err != nil {
		return err
	}
	// A name that moved here leaves the archive it was loaded from incomplete: that one has to be loaded again, whole.
	for _, ref := range refs {
		if was := loaded[ref]; was != "" {
			for other, d := range loaded {
				if d == was {
					delete(loaded, other)
				}
			}
		}
	}
	for _, ref := range refs {
		loaded[ref] = digest
	}
	fmt.Printf("loaded %s, %.1f s\n", strings.Join(refs, ", "), time.Since(began).Seconds())
	return nil
}

func refsFrom(loaded map[string]string, digest string) []string {
	var out []string
	for ref, d := range loaded {
		if d == digest {
			out = append(out, ref)
		}
	}
	return out
}

// importImages hands an archive to containerd and returns the names of the images in it.
func importImages(ctx context.Context, c *state.Cluster, archive io.Reader) ([]string, error) {
	cmd := exec.CommandContext(ctx, "/usr/bin/ctr", "--address", socket(c), "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = archive
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ctr images import: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	refs := importedRefs(out.String())
	if len(refs) == 0 {
		return nil, fmt.Errorf("the archive names no image; ctr said %q", out.String())
	}
	return refs, nil
}

// ctr says `unpacking NAME (DIGEST)...done` for each image.
var unpacking = regexp.MustCompile(`(?m)^unpacking (\S+) \(sha256:`)

func importedRefs(out string) []string {
	var refs []string
	for _, m := range unpacking.FindAllStringSubmatch(out, -1) {
		refs = append(refs, m[1])
	}
	return refs
}

// waitSeen waits until the kubelet would find the images.
func waitSeen(ctx context.Context, c *state.Cluster, refs []string) error {
	images, err := cri.NewRemoteImageService("unix://"+socket(c), seenDeadline, nil, quiet())
	if err != nil {
		return err
	}
	defer func() { _ = images.Close() }()
	ctx, cancel := context.WithTimeout(ctx, seenDeadline)
	defer cancel()
	for _, ref := range refs {
		err := apiclient.Wait(ctx, func(ctx context.Context) error {
			st, err := images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false)
			if err != nil {
				return err
			}
			if st.GetImage() == nil {
				return fmt.Errorf("%s is not seen by the node", ref)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// socket is containerd's. By way of the root process the path is short, wherever the state directory is: the name of a
// socket may have 107 characters only.
func socket(c *state.Cluster) string {
	return fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", c.Root.PID)
}

// quiet drops what the client of containerd would log: its errors come back as such.
func quiet() *klog.Logger {
	l := klog.NewKlogr().V(10)
	return &l
}
