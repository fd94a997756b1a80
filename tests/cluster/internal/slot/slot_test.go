package slot

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestSlotsShareNothing(t *testing.T) {
	seen := map[string]Slot{}
	for s := Slot(0); s < Max; s++ {
		if len(s.Link()) > 15 {
			t.Errorf("link name %q is longer than Linux allows", s.Link())
		}
		for _, name := range []string{s.Link(), s.Cgroup(), s.LinkNet().String(), s.PodCIDR().String(), s.ServiceCIDR().String()} {
			if other, ok := seen[name]; ok {
				t.Errorf("slots %d and %d share %q", other, s, name)
			}
			seen[name] = s
		}
		if !s.LinkNet().Contains(s.HostIP()) || !s.LinkNet().Contains(s.NodeIP()) || s.HostIP() == s.NodeIP() {
			t.Errorf("slot %d: host %s and node %s are not two addresses of %s", s, s.HostIP(), s.NodeIP(), s.LinkNet())
		}
		if !s.ServiceCIDR().Contains(s.ServiceIP()) {
			t.Errorf("slot %d: %s is not in %s", s, s.ServiceIP(), s.ServiceCIDR())
		}
	}
	if last := Slot(Max - 1).EtcdPeerPort(); last >= 32768 {
		t.Errorf("port %d lies among those of outgoing connections", last)
	}
	if Slot(1).APIPort() <= Slot(0).EtcdPeerPort() {
		t.Error("the ports of neighbouring slots overlap")
	}
}

func TestEachClaimIsAnotherSlotUntilReleased(t *testing.T) {
	any := func(Slot) bool { return true }
	a, err := take(any)
	if err != nil {
		t.Fatal(err)
	}
	b, err := take(any)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if a.Slot == b.Slot {
		t.Fatalf("slot %d was given out twice", a.Slot)
	}
	a.Release()
	c, err := take(any)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if c.Slot != a.Slot {
		t.Errorf("released slot %d was not given out again, got %d", a.Slot, c.Slot)
	}
}

func TestAnUnusableSlotIsPassedOverAndNotKept(t *testing.T) {
	first, err := take(func(Slot) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	free := first.Slot
	first.Release()
	next, err := take(func(s Slot) bool { return s != free })
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if next.Slot == free {
		t.Fatal("took the slot that was not usable")
	}
	again, err := take(func(Slot) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if again.Slot != free {
		t.Errorf("the slot passed over stayed locked: got %d, want %d", again.Slot, free)
	}
}

func TestRoutesOfTheMachineAreRespected(t *testing.T) {
	const table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" + // default
		"vpn\t0000F40A\t00000000\t0001\t0\t0\t0\t00FEFFFF\t0\t0\t0\n" // 10.244.0.0/23
	routes, err := parseRoutes(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	if len(routes) != 1 || routes[0] != netip.MustParsePrefix("10.244.0.0/23") {
		t.Fatalf("parsed %v", routes)
	}
	for s, want := range map[Slot]bool{0: true, 1: true, 2: false} {
		if got := clashes(s, routes); got != want {
			t.Errorf("slot %d clashes with %v: %v, want %v", s, routes, got, want)
		}
	}
}

func TestAwaitReleaseReturnsWithTheLastCopyAndGivesUpInTime(t *testing.T) {
	c, err := take(func(Slot) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	AwaitRelease(c.Slot, 50*time.Millisecond)
	if waited := time.Since(began); waited < 50*time.Millisecond {
		t.Errorf("a held slot was waited for only %v", waited)
	}
	time.AfterFunc(50*time.Millisecond, c.Release)
	began = time.Now()
	AwaitRelease(c.Slot, time.Minute)
	if waited := time.Since(began); waited > 30*time.Second {
		t.Errorf("a freed slot was waited for %v", waited)
	}
}
