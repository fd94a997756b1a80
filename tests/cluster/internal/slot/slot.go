// Package slot numbers the clusters of one machine. Every name, address range, port and cgroup of a cluster follows
// from its number alone, so clusters with different numbers have nothing in common.
package slot

import (
	"fmt"
	"net/netip"
)

// Max is the number of slots. A slot is one octet of an address, and the highest octets are left to others.
const Max = 200

// Ports of a cluster without a node start here. They lie below the range from which Linux takes the ports of
// outgoing connections (32768 and up), so nothing but another listener can hold one.
const firstPort = 21000

// portsPerSlot: API server, etcd for clients, etcd for peers.
const portsPerSlot = 3

// Slot is the number of a cluster, 0 to Max-1.
type Slot int

// Link is the host's end of the veth pair to the node. Linux allows 15 characters.
func (s Slot) Link() string { return fmt.Sprintf("subcl%d", int(s)) }

// Cgroup is the folder under which the kubelet puts every pod.
func (s Slot) Cgroup() string { return fmt.Sprintf("subagents-cluster-%d", int(s)) }

// LinkNet is the network of the veth pair.
func (s Slot) LinkNet() netip.Prefix { return netip.PrefixFrom(s.ip(201, 0), 30) }

// HostIP is the host's address on the veth pair: what pods call to reach a process on the host.
func (s Slot) HostIP() netip.Addr { return s.ip(201, 1) }

// NodeIP is the address of the node, of its API server and of its DNS server.
func (s Slot) NodeIP() netip.Addr { return s.ip(201, 2) }

// PodCIDR is where pods get their addresses from.
func (s Slot) PodCIDR() netip.Prefix { return netip.PrefixFrom(s.ip(244, 0), 24) }

// ServiceCIDR is where Services get their cluster addresses from.
func (s Slot) ServiceCIDR() netip.Prefix { return netip.PrefixFrom(s.ip(96, 0), 24) }

// ServiceIP is the address of the Service default/kubernetes: always the first of the range.
func (s Slot) ServiceIP() netip.Addr { return s.ip(96, 1) }

// APIPort is the API server's port on 127.0.0.1 when the cluster has no node.
func (s Slot) APIPort() int { return firstPort + portsPerSlot*int(s) }

// EtcdClientPort is etcd's port for the API server when the cluster has no node.
func (s Slot) EtcdClientPort() int { return s.APIPort() + 1 }

// EtcdPeerPort is etcd's port for other members, of which there are none, when the cluster has no node.
func (s Slot) EtcdPeerPort() int { return s.APIPort() + 2 }

func (s Slot) ip(second, fourth byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, second, byte(s), fourth})
}
