// Command localcluster runs real Kubernetes clusters from upstream's Go modules on one Linux machine, side by side,
// without a registry or a container engine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"subagents.dev/localcluster/internal/component"
	"subagents.dev/localcluster/internal/lifecycle"
	"subagents.dev/localcluster/internal/node"
	"subagents.dev/localcluster/internal/state"
)

func main() {
	// The supervisor starts this binary under a component's name.
	if name := filepath.Base(os.Args[0]); component.Is(name) {
		os.Exit(component.Run(name, os.Args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		if !errors.Is(err, lifecycle.ErrUnhealthy) { // that was printed in full
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		stop()
		os.Exit(1)
	}
}

func root() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:           "localcluster",
		Short:         "A real Kubernetes on this machine, in a directory",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.PersistentFlags().StringVar(&path, "dir", ".cluster", "state directory; one cluster lives in each")
	dir := func() (state.Dir, error) { return state.OpenDir(path) }
	c.AddCommand(upCommand(dir), downCommand(dir), statusCommand(dir), loadImageCommand(dir), nodeCommand(dir))
	return c
}

func upCommand(dir func() (state.Dir, error)) *cobra.Command {
	var apiServerOnly, foreground bool
	o := lifecycle.Options{Mode: state.WithNode}
	c := &cobra.Command{Use: "up", Short: "Start the cluster, or find it running, and wait until it is ready", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := dir()
			if err != nil {
				return err
			}
			if apiServerOnly {
				o.Mode = state.APIServerOnly
			} else if o.Controllers != "" {
				return errors.New("--controllers needs --apiserver-only: a cluster with a node runs all of them")
			}
			if foreground {
				return lifecycle.Foreground(c.Context(), d, o)
			}
			return lifecycle.Up(c.Context(), d, o)
		}}
	c.Flags().BoolVar(&apiServerOnly, "apiserver-only", false,
		"etcd and API server on 127.0.0.1 only: no node, no controllers, no root needed")
	c.Flags().StringVar(&o.Controllers, "controllers", "",
		"with --apiserver-only: controllers of kube-controller-manager to run as well, such as namespace-controller,serviceaccount-controller")
	c.Flags().BoolVar(&foreground, "foreground", false,
		"stay, and end the cluster when the parent process or (if it is a pipe) standard input ends")
	return c
}

func downCommand(dir func() (state.Dir, error)) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "End the cluster and remove all that it left", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d, err := dir()
			if err != nil {
				return err
			}
			return lifecycle.Down(d)
		}}
}

func statusCommand(dir func() (state.Dir, error)) *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Print the cluster's state; exit code 0 only if it is healthy", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := dir()
			if err != nil {
				return err
			}
			return lifecycle.Status(c.Context(), d)
		}}
}

func loadImageCommand(dir func() (state.Dir, error)) *cobra.Command {
	return &cobra.Command{Use: "load-image ARCHIVE...", Short: "Import image archives (OCI or docker) into the node", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, archives []string) error {
			d, err := dir()
			if err != nil {
				return err
			}
			return lifecycle.LoadImages(c.Context(), d, archives)
		}}
}

// nodeCommand is what `up` starts: the process with which the cluster ends.
func nodeCommand(dir func() (state.Dir, error)) *cobra.Command {
	return &cobra.Command{Use: "node", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d, err := dir()
			if err != nil {
				return err
			}
			return node.Main(d)
		}}
}
