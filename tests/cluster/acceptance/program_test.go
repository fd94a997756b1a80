//go:build acceptance

package acceptance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"subagents.dev/localcluster/internal/slot"
)

// patience is for anything that takes seconds, on a machine that is busy with something else as well.
const patience = 90 * time.Second

func tool(t *testing.T, env string) string {
	t.Helper()
	p := os.Getenv(env)
	if p == "" {
		t.Fatalf("%s is not set; run `make test-cluster`", env)
	}
	return p
}

// cluster is one state directory.
type cluster struct {
	t   *testing.T
	dir string
}

func newCluster(t *testing.T) *cluster {
	// Not below the test's own folder, so that a cluster that is left behind is found by the next test as such.
	dir, err := os.MkdirTemp("", "localcluster-test-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, dir: dir}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			c.run("down")
		}
	})
	return c
}

// try runs a command of the program.
func (c *cluster) try(args ...string) (string, error) {
	out, err := exec.Command(tool(c.t, "LOCALCLUSTER"), append([]string{"--dir", c.dir}, args...)...).CombinedOutput()
	return string(out), err
}

func (c *cluster) run(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatalf("localcluster %v: %v\n%s", args, err, out)
	}
	return out
}

// slot is the number the cluster runs under.
func (c *cluster) slot() slot.Slot {
	c.t.Helper()
	var r struct{ Slot slot.Slot }
	c.read("cluster.json", &r)
	return r.Slot
}

// root is the PID of the process with which the cluster ends.
func (c *cluster) root() int {
	c.t.Helper()
	var r struct{ Root struct{ PID int } }
	c.read("cluster.json", &r)
	return r.Root.PID
}

func (c *cluster) read(name string, v any) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) client() *kubernetes.Clientset {
	c.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.t.Fatal(err)
	}
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return cs
}

// eventually waits until look returns nil, or fails the test with what it returned last.
func eventually(t *testing.T, what string, look func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s; last seen: %v", what, patience, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
