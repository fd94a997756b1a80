package slot

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"
)

// Claim is a slot that is held. File is the open socket that holds it: whoever has a copy of that descriptor holds
// the slot, and the kernel frees it with the last copy.
type Claim struct {
	Slot Slot
	File *os.File
}

// Release gives up this process's copy of the claim.
func (c *Claim) Release() { _ = c.File.Close() }

// Take claims the first slot that no other cluster holds and whose addresses, link and ports nothing else uses.
func Take() (*Claim, error) {
	f, err := os.Open("/proc/net/route")
	if err != nil {
		return nil, fmt.Errorf("read the machine's routes: %w", err)
	}
	defer func() { _ = f.Close() }()
	routes, err := parseRoutes(f)
	if err != nil {
		return nil, err
	}
	return take(func(s Slot) bool { return !clashes(s, routes) && linkIsFree(s) && portsAreFree(s) })
}

func take(usable func(Slot) bool) (*Claim, error) {
	for s := Slot(0); s < Max; s++ {
		c, err := lock(s)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if usable(s) {
			return c, nil
		}
		c.Release()
	}
	return nil, fmt.Errorf("all %d cluster slots of this machine are taken", Max)
}

// lock binds an abstract socket. Unlike a lock file it leaves nothing behind, and like links and routes it belongs to
// the network namespace in which it was made.
func lock(s Slot) (*Claim, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@subagents-cluster/slot/%d", s), Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // File below is a copy
	f, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("claim slot %d: %w", s, err)
	}
	return &Claim{Slot: s, File: f}, nil
}

// AwaitRelease waits until nobody holds s, at most for limit. A process that counts as ended may still have a thread that
// closes its files, and with them the claim. If another cluster takes the slot at once, only limit is lost.
func AwaitRelease(s Slot, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(releasePoll) {
		if c, err := lock(s); err == nil {
			c.Release()
			return
		}
	}
}

// releasePoll: closing files takes a few milliseconds.
const releasePoll = 5 * time.Millisecond

func linkIsFree(s Slot) bool {
	_, err := net.InterfaceByName(s.Link())
	return err != nil
}

func portsAreFree(s Slot) bool {
	for _, p := range []int{s.APIPort(), s.EtcdClientPort(), s.EtcdPeerPort()} {
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}

func clashes(s Slot, routes []netip.Prefix) bool {
	for _, r := range routes {
		for _, own := range []netip.Prefix{s.LinkNet(), s.PodCIDR(), s.ServiceCIDR()} {
			if r.Overlaps(own) {
				return true
			}
		}
	}
	return false
}

// parseRoutes reads the format of /proc/net/route: addresses are hexadecimal, in the byte order of the machine. The
// default route covers everything and is left out.
func parseRoutes(r io.Reader) ([]netip.Prefix, error) {
	var out []netip.Prefix
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 8 || f[0] == "Iface" {
			continue
		}
		dst, err := nativeWord(f[1])
		if err != nil {
			return nil, fmt.Errorf("route %q: %w", sc.Text(), err)
		}
		mask, err := nativeWord(f[7])
		if err != nil {
			return nil, fmt.Errorf("route %q: %w", sc.Text(), err)
		}
		if mask == 0 {
			continue
		}
		var ip [4]byte
		binary.BigEndian.PutUint32(ip[:], dst)
		out = append(out, netip.PrefixFrom(netip.AddrFrom4(ip), bits.OnesCount32(mask)))
	}
	return out, sc.Err()
}

func nativeWord(s string) (uint32, error) {
	b, err := hex.DecodeString(s)
	if err != nil {
		return 0, err
	}
	if len(b) != 4 {
		return 0, fmt.Errorf("%q is not four bytes", s)
	}
	// %08X printed the word as a number of this machine; its bytes in memory are the address.
	var mem [4]byte
	binary.NativeEndian.PutUint32(mem[:], binary.BigEndian.Uint32(b))
	return binary.BigEndian.Uint32(mem[:]), nil
}
