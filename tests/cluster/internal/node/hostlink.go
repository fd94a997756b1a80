package node

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"subagents.dev/localcluster/internal/slot"
)

// Connect makes the veth pair between the host and the network namespace of process pid, and the host's routes to the
// pods and Services behind it. All of it goes with that namespace.
func Connect(s slot.Slot, pid int) error {
	pair := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: s.Link()},
		PeerName:      Link,
		PeerNamespace: netlink.NsPid(pid),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("link %s: %w", s.Link(), err)
	}
	link, err := netlink.LinkByName(s.Link())
	if err != nil {
		return err
	}
	if err := addAddress(link, s.HostIP().String()+"/30"); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s up: %w", s.Link(), err)
	}
	for _, to := range []string{s.PodCIDR().String(), s.ServiceCIDR().String()} {
		if err := addRoute(link, to, s.NodeIP().String()); err != nil {
			return err
		}
	}
	return nil
}

// Disconnect removes the host's end at once; by itself it would go a moment after the namespace.
func Disconnect(s slot.Slot) error {
	link, err := netlink.LinkByName(s.Link())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	err = netlink.LinkDel(link)
	if _, gone := netlink.LinkByName(s.Link()); errors.As(gone, &netlink.LinkNotFoundError{}) {
		return nil // the kernel was quicker
	}
	return err
}

func addAddress(link netlink.Link, cidr string) error {
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address %s on %s: %w", cidr, link.Attrs().Name, err)
	}
	return nil
}

func addRoute(link netlink.Link, to, via string) error {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("route to %s by %s: %w", to, via, err)
	}
	return nil
}
