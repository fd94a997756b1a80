package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"subagents.dev/localcluster/internal/apiclient"
	"subagents.dev/localcluster/internal/state"
)

// ErrUnhealthy is returned when there is no cluster or something about it is not as it should be.
var ErrUnhealthy = errors.New("the cluster is not healthy")

// statusDeadline is for all questions together.
const statusDeadline = 10 * time.Second

// Healthy returns nil if every component of c runs, the API server is ready and so is the node, if there is one.
func Healthy(ctx context.Context, dir state.Dir, c *state.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, statusDeadline)
	defer cancel()
	if !c.Root.Alive() {
		return errors.New("its root process does not run")
	}
	if text := deadComponents(dir); text != "" {
		return errors.New(text)
	}
	api, err := apiclient.Open(dir)
	if err != nil {
		return err
	}
	if err := api.Ready(ctx); err != nil {
		return err
	}
	if c.Mode == state.WithNode {
		return api.NodeReady(ctx)
	}
	return nil
}

// Status prints the state of the cluster in dir.
func Status(ctx context.Context, dir state.Dir) error {
	c, err := dir.LoadCluster()
	if err != nil {
		return err
	}
	if c == nil {
		fmt.Printf("there is no cluster in %s\n", dir)
		return ErrUnhealthy
	}
	fmt.Printf("cluster:     %s, %s, slot %d\n", dir, c.Mode, c.Slot)
	fmt.Printf("up since:    %s (%s)\n", c.Since.Format(time.DateTime), time.Since(c.Since).Round(time.Second))
	if err := printAccess(dir, c); err != nil {
		return err
	}
	if c.Mode == state.WithNode {
		fmt.Printf("node:        %s\npods:        %s\nservices:    %s\n", c.Slot.NodeIP(), c.Slot.PodCIDR(), c.Slot.ServiceCIDR())
	}
	components, err := dir.LoadComponents()
	if err != nil {
		return err
	}
	fmt.Println("components:")
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, p := range components {
		how := "running"
		if p.Ended != "" {
			how = "ended: " + p.Ended
		}
		_, _ = fmt.Fprintf(t, "  %s\tpid %d\t%s\n", p.Name, p.PID, how)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := Healthy(ctx, dir, c); err != nil {
		fmt.Printf("health:      %v\n", err)
		return ErrUnhealthy
	}
	fmt.Println("health:      ok")
	return nil
}

// deadComponents says which components ended and what they said last; empty if all run.
func deadComponents(dir state.Dir) string {
	components, err := dir.LoadComponents()
	if err != nil {
		return "" // none was started yet
	}
	var b strings.Builder
	for _, p := range components {
		if p.Ended != "" {
			fmt.Fprintf(&b, "%s ended: %s\n%s", p.Name, p.Ended, tail(dir.Log(p.Name)))
		}
	}
	return b.String()
}

// tail is the end of a file, indented.
func tail(path string) string {
	const lines = 15
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "    " + strings.Join(all, "\n    ") + "\n"
}
