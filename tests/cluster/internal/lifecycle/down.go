package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"subagents.dev/localcluster/internal/apiclient"
	"subagents.dev/localcluster/internal/cgroup"
	"subagents.dev/localcluster/internal/node"
	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

// killDeadline is for the kernel to end every process of a PID namespace; it takes a second or two with many pods.
const killDeadline = 30 * time.Second

// releaseDeadline is for the last thread of an ended process to close its files; milliseconds, more on a busy machine.
const releaseDeadline = 2 * time.Second

// Down ends the cluster in dir and removes all that it left. Without a cluster it does nothing.
func Down(dir state.Dir) error {
	began := time.Now()
	unlock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := dir.LoadCluster()
	if err != nil {
		return err
	}
	if c == nil {
		fmt.Printf("there is no cluster in %s\n", dir)
		return dir.Remove()
	}
	if err := remove(dir, c); err != nil {
		return err
	}
	fmt.Printf("the cluster in %s is down, %.2f s\n", dir, time.Since(began).Seconds())
	return nil
}

// remove ends c and removes its traces. The kernel does most of it: with the last process of the namespaces go their
// mounts, links, routes and rules.
func remove(dir state.Dir, c *state.Cluster) error {
	if err := kill(c); err != nil {
		return err
	}
	slot.AwaitRelease(c.Slot, releaseDeadline)
	if c.Mode == state.WithNode {
		if err := errors.Join(node.Disconnect(c.Slot), cgroup.Remove(c.Slot.Cgroup())); err != nil {
			return err
		}
	}
	return dir.Remove()
}

func kill(c *state.Cluster) error {
	if !c.Root.Alive() {
		return nil
	}
	if err := syscall.Kill(c.Root.PID, stopSignal(c.Mode)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end process %d: %w", c.Root.PID, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killDeadline)
	defer cancel()
	return apiclient.Wait(ctx, func(context.Context) error {
		if c.Root.Alive() {
			return fmt.Errorf("process %d has not ended", c.Root.PID)
		}
		return nil
	})
}

// stopSignal: the end of process 1 takes all others along. Without a PID namespace the root process has to do it, by
// its own hand or, if it is killed, by the death signal of its children.
func stopSignal(mode state.Mode) syscall.Signal {
	if mode == state.APIServerOnly {
		return syscall.SIGTERM
	}
	return syscall.SIGKILL
}
