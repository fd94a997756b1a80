package state

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func dir(t *testing.T) Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAProcessIsAliveUntilItEndsAndNotWhenItsPIDIsAnothers(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Running(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Error("a running process is not alive")
	}
	if (Process{PID: p.PID, Ticks: p.Ticks - 1}).Alive() {
		t.Error("an earlier process of the same PID is alive")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); p.Alive(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a killed process that nobody waited for is alive")
		}
	}
	_ = cmd.Wait()
	if (Process{}).Alive() {
		t.Error("no process is alive")
	}
}

func TestStartTicksWithAnOddName(t *testing.T) {
	got, err := startTicks([]byte("7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n"))
	if err != nil || got != 4242 {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := startTicks([]byte("7 (x")); err == nil {
		t.Error("half a line was read")
	}
}

func TestTheRecordOfAClusterComesBack(t *testing.T) {
	d := dir(t)
	if c, err := d.LoadCluster(); c != nil || err != nil {
		t.Fatalf("an empty directory holds %v, %v", c, err)
	}
	want := Cluster{Mode: APIServerOnly, Slot: 3, Controllers: "x", Root: Process{PID: 1, Ticks: 2}, Since: time.Now().UTC()}
	if err := d.SaveCluster(&want); err != nil {
		t.Fatal(err)
	}
	got, err := d.LoadCluster()
	if err != nil || *got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestRemoveTakesWhatTheClusterMadeAndNothingElse(t *testing.T) {
	d := dir(t)
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveCluster(&Cluster{}); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(string(d), "bin")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(string(d))
	if err != nil || len(left) != 1 || left[0].Name() != "bin" {
		t.Fatalf("left %v, %v", left, err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(string(d)); !os.IsNotExist(err) {
		t.Errorf("the empty directory is left: %v", err)
	}
}

func TestTheLockIsHeldByOneAlsoWhenItsFileIsRemoved(t *testing.T) {
	d := dir(t)
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan func())
	go func() {
		second, err := d.Lock()
		if err != nil {
			t.Error(err)
		}
		got <- second
	}()
	select {
	case <-got:
		t.Fatal("two hold the lock")
	case <-time.After(100 * time.Millisecond):
	}
	if err := d.Remove(); err != nil { // as `down` does, holding it
		t.Fatal(err)
	}
	unlock()
	second := <-got
	if _, err := os.Stat(filepath.Join(string(d), lockFile)); err != nil {
		t.Errorf("the second holds a lock whose file is gone: %v", err)
	}
	second()
}
