package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"subagents.dev/localcluster/internal/cgroup"
	"subagents.dev/localcluster/internal/config"
	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

// Link is the node's end of the veth pair.
const Link = "eth0"

// enter makes a node of the fresh namespaces this process is in. Nothing it does is seen outside of them, except the
// pods' cgroup.
func enter(dir state.Dir, s slot.Slot) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"host name", func() error { return unix.Sethostname([]byte(config.NodeName)) }},
		{"mounts", func() error { return mounts(dir) }},
		{"network", func() error { return network(s) }},
		{"cgroup", func() error { return cgroup.Make(s.Cgroup()) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s of the node: %w", step.what, err)
		}
	}
	return nil
}

func mounts(dir state.Dir) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cut off from the host's mounts: %w", err)
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", quiet, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	// A new /sys shows this network namespace's devices. It comes without the cgroup file systems: carry them over.
	const cgroups = "/sys/fs/cgroup"
	fd, err := unix.OpenTree(unix.AT_FDCWD, cgroups, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("%s: %w", cgroups, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Mount("sysfs", "/sys", "sysfs", quiet, ""); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, cgroups, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("%s: %w", cgroups, err)
	}
	for path, name := range map[string]string{"/run": "run", "/var/log": "var-log", "/var/lib": "var-lib"} {
		if err := replace(path, dir.Node(name), string(dir)); err != nil {
			return err
		}
	}
	if err := bindResolvConf(dir); err != nil {
		return err
	}
	// Volumes with mount propagation, and containerd, need shared mounts. Shared only among the pods of this node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	for _, d := range []string{"/run/lock", "/run/netns"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// replace puts with in the place of path. The state directory stays where it is, also when it lies below path.
func replace(path, with, keep string) error {
	kept, err := unix.Open(keep, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(kept) }()
	if err := unix.Mount(with, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	if !strings.HasPrefix(keep+"/", path+"/") {
		return nil
	}
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", kept), keep, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep %s: %w", keep, err)
	}
	return nil
}

// bindResolvConf lets containerd ask the cluster's DNS server, which knows no name outside: a pull then fails at once
// where the host's server, out of reach, would be waited for.
func bindResolvConf(dir state.Dir) error {
	target, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // without the file a resolver asks 127.0.0.1, where nobody listens
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(dir.ResolvConf(), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	return nil
}

// network brings up the node's links. There is no default route: what is neither in the node nor the host's own
// address on the link is unreachable, for pods as for the node.
func network(s slot.Slot) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	eth, err := netlink.LinkByName(Link)
	if err != nil {
		return err
	}
	if err := addAddress(eth, s.NodeIP().String()+"/30"); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(eth); err != nil {
		return err
	}
	// A local process that calls a Service needs a route before kube-proxy's rules rewrite the destination. What they
	// do not rewrite is no Service: the host, which is asked last, does not forward it.
	if err := addRoute(eth, s.ServiceCIDR().String(), s.HostIP().String()); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}
