// Package lifecycle is what the commands do to a cluster from outside: start, end, look, load images.
package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"subagents.dev/localcluster/internal/apiclient"
	"subagents.dev/localcluster/internal/cgroup"
	"subagents.dev/localcluster/internal/config"
	"subagents.dev/localcluster/internal/node"
	"subagents.dev/localcluster/internal/ociarchive"
	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

// startDeadline is more than ten times what a start takes on two idle cores; the cores may be busy.
const startDeadline = 90 * time.Second

// Options of Up.
type Options struct {
	Mode        state.Mode
	Controllers string
	// DieWithParent kills the cluster when the calling thread ends.
	DieWithParent bool
}

// Up starts the cluster in dir and waits until it is ready. One that runs and is well is left as it is; what is left of
// one that is not is removed first.
func Up(ctx context.Context, dir state.Dir, o Options) error {
	unlock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	old, err := dir.LoadCluster()
	if err != nil {
		return err
	}
	if old != nil {
		keep, err := keepable(ctx, dir, old, o)
		if err != nil {
			return err
		}
		if keep {
			fmt.Printf("the cluster in %s is up already\n", dir)
			if o.Mode == state.WithNode {
				api, err := apiclient.Open(dir)
				if err != nil {
					return err
				}
				if err := api.EnsureVolumes(ctx, dir.Volumes()); err != nil {
					return err
				}
			}
			return printAccess(dir, old)
		}
		fmt.Printf("removing what is left of an earlier cluster in %s\n", dir)
		if err := remove(dir, old); err != nil {
			return err
		}
		// The lock file went with the rest.
		unlock()
		if unlock, err = dir.Lock(); err != nil {
			return err
		}
		defer unlock()
	}
	if err := requirements(o.Mode); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not ready within %s", startDeadline))
	defer cancel()
	c, err := start(ctx, dir, o)
	if err != nil {
		if c != nil {
			_ = kill(c)
		}
		return fmt.Errorf("%w\n%s\nlogs: %s", err, deadComponents(dir), filepath.Dir(dir.Log("x")))
	}
	return printAccess(dir, c)
}

// keepable says whether the cluster that is there is the one that is wanted. All of its processes running, it gets the
// time of a start to become healthy: a machine that is busy is no reason to throw a cluster away.
func keepable(ctx context.Context, dir state.Dir, old *state.Cluster, o Options) (bool, error) {
	if !old.Root.Alive() || deadComponents(dir) != "" {
		return false, nil
	}
	if old.Mode != o.Mode || old.Controllers != o.Controllers {
		return false, fmt.Errorf("another kind of cluster (%s) runs in %s: end it first, with `down`", old.Mode, dir)
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := apiclient.Wait(ctx, func(ctx context.Context) error { return Healthy(ctx, dir, old) }); err != nil {
		fmt.Printf("the cluster in %s runs but is not healthy: %v\n", dir, err)
		return false, nil
	}
	return true, nil
}

// requirements names what is missing before anything is changed.
func requirements(mode state.Mode) error {
	if mode == state.APIServerOnly {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster with a node needs root, for namespaces and mounts")
	}
	for _, p := range []string{"/usr/bin/containerd", "/usr/bin/ctr", "/usr/sbin/runc", "/usr/sbin/iptables", "/usr/lib/cni/ptp"} {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("%w; install the packages containerd, runc, containernetworking-plugins and iptables", err)
		}
	}
	return nil
}

func start(ctx context.Context, dir state.Dir, o Options) (*state.Cluster, error) {
	began := time.Now()
	say := func(format string, a ...any) {
		fmt.Printf("%6.2f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, a...))
	}
	claim, err := slot.Take()
	if err != nil {
		return nil, err
	}
	defer claim.Release()
	c := &state.Cluster{Mode: o.Mode, Slot: claim.Slot, Controllers: o.Controllers, Since: began}
	if err := dir.Make(); err != nil {
		return nil, err
	}
	if err := config.WriteIdentities(dir, o.Mode, c.Slot); err != nil {
		return nil, err
	}
	if err := config.Write(dir, c.Slot); err != nil {
		return nil, err
	}
	if o.Mode == state.WithNode {
		// The slot is held, so a cgroup of its name is what a killed cluster left.
		if err := cgroup.Remove(c.Slot.Cgroup()); err != nil {
			return nil, err
		}
	}
	if err := launch(dir, c, claim, o.DieWithParent); err != nil {
		return c, err
	}
	say("slot %d: processes started", c.Slot)

	api, err := apiclient.Open(dir)
	if err != nil {
		return c, err
	}
	watched, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go failWhenDead(watched, stop, dir, c)
	if o.Mode == state.WithNode {
		if err := loadPause(watched, dir, c); err != nil {
			return c, err
		}
		say("pause image loaded")
	}
	if err := api.WaitReady(watched); err != nil {
		return c, err
	}
	say("API server ready")
	if o.Mode == state.WithNode {
		if err := api.WaitNodeReady(watched); err != nil {
			return c, err
		}
		say("node ready")
		if err := api.EnsureVolumes(watched, dir.Volumes()); err != nil {
			return c, err
		}
	}
	return c, nil
}

// launch starts the cluster's root process, in namespaces of its own if there is to be a node.
func launch(dir state.Dir, c *state.Cluster, claim *slot.Claim, dieWithParent bool) error {
	log, err := os.Create(dir.Log("node"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = open.Close() }()
	cmd := exec.Command("/proc/self/exe", "node", "--dir", string(dir))
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{gate, claim.File} // descriptors 3 (node.GateFD) and 4; holding the latter holds the slot
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.Mode == state.WithNode {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	}
	if dieWithParent {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	// The record comes first: a cluster that is killed from here on is found by the next command.
	if err := dir.SaveCluster(c); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	_ = gate.Close()
	go func() { _ = cmd.Wait() }() // no zombie, which would look alive to others
	if c.Root, err = state.Running(cmd.Process.Pid); err != nil {
		return err
	}
	if err := dir.SaveCluster(c); err != nil {
		return err
	}
	if c.Mode == state.WithNode {
		if err := node.Connect(c.Slot, c.Root.PID); err != nil {
			return err
		}
	}
	_, err = open.Write([]byte{1})
	return err
}

// failWhenDead ends the wait for a cluster that can no longer become ready.
func failWhenDead(ctx context.Context, fail context.CancelCauseFunc, dir state.Dir, c *state.Cluster) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !c.Root.Alive() {
			fail(fmt.Errorf("the cluster's root process ended: %s", tail(dir.Log("node"))))
			return
		}
		if text := deadComponents(dir); text != "" {
			fail(errors.New("a component ended"))
			return
		}
	}
}

// loadPause builds the pause image from the program beside this one and loads it as soon as containerd answers.
func loadPause(ctx context.Context, dir state.Dir, c *state.Cluster) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(filepath.Dir(self), "pause"))
	if err != nil {
		return fmt.Errorf("the program of the pause image: %w", err)
	}
	var archive bytes.Buffer
	if err := ociarchive.Write(&archive, config.PauseImage, "pause", program); err != nil {
		return err
	}
	return apiclient.Wait(ctx, func(ctx context.Context) error {
		_, err := importImages(ctx, c, bytes.NewReader(archive.Bytes()))
		return err
	})
}

func printAccess(dir state.Dir, c *state.Cluster) error {
	fmt.Printf("API server:  %s\nkubeconfig:  %s\naudit log:   %s\n", config.Server(c.Mode, c.Slot), dir.Kubeconfig(), dir.AuditLog())
	if c.Mode == state.WithNode {
		fmt.Printf("this host as pods see it: %s\n", c.Slot.HostIP())
	}
	return nil
}
