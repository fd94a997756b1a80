package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"subagents.dev/localcluster/internal/slot"
)

const (
	clusterFile    = "cluster.json"
	componentsFile = "components.json"
	lockFile       = "lock"
)

// Mode is which components run.
type Mode string

const (
	// WithNode is a whole cluster of one node.
	WithNode Mode = "node"
	// APIServerOnly is etcd and the API server.
	APIServerOnly Mode = "apiserver-only"
)

// Cluster is what `up` records before it starts the first process.
type Cluster struct {
	Mode Mode      `json:"mode"`
	Slot slot.Slot `json:"slot"`
	// Controllers to run beside an API server without a node, as kube-controller-manager's flag takes them.
	Controllers string `json:"controllers,omitempty"`
	// Root is the process with which the whole cluster ends; zero before it was started.
	Root Process `json:"root"`
	// Since is when `up` began.
	Since time.Time `json:"since"`
}

// Process names one process for good: a PID alone may come to mean another one.
type Process struct {
	PID int `json:"pid"`
	// Ticks is the process's start in clock ticks since boot (proc(5), field 22 of stat).
	Ticks uint64 `json:"ticks"`
}

// Component is one process of a cluster as its supervisor sees it.
type Component struct {
	Name string `json:"name"`
	// PID as seen from inside the cluster's PID namespace.
	PID int `json:"pid"`
	// Ended says how the process ended; empty while it runs.
	Ended string `json:"ended,omitempty"`
}

// Running is the process pid as it is now.
func Running(pid int) (Process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, err
	}
	ticks, err := startTicks(b)
	return Process{PID: pid, Ticks: ticks}, err
}

// Alive says whether this very process still runs; a zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return false
	}
	ticks, err := startTicks(b)
	return err == nil && ticks == p.Ticks && !bytes.Contains(b, []byte(") Z "))
}

// startTicks reads field 22; field 2, the name in parentheses, may itself hold spaces and parentheses.
func startTicks(stat []byte) (uint64, error) {
	end := bytes.LastIndexByte(stat, ')')
	f := bytes.Fields(stat[end+1:])
	if end < 0 || len(f) < 20 {
		return 0, fmt.Errorf("unexpected form of /proc/PID/stat: %q", stat)
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// LoadCluster reads what `up` recorded; nil if there is no record.
func (d Dir) LoadCluster() (*Cluster, error) {
	var c Cluster
	if err := d.load(clusterFile, &c); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	return &c, nil
}

// SaveCluster records c.
func (d Dir) SaveCluster(c *Cluster) error { return d.save(clusterFile, c) }

// LoadComponents reads what the supervisor last wrote.
func (d Dir) LoadComponents() ([]Component, error) {
	var c []Component
	err := d.load(componentsFile, &c)
	return c, err
}

// SaveComponents is the supervisor's.
func (d Dir) SaveComponents(c []Component) error { return d.save(componentsFile, c) }

// LoadImages reads which archive (by digest) each image name was loaded from.
func (d Dir) LoadImages() map[string]string {
	m := map[string]string{}
	if err := d.load(filepath.Base(d.Images()), &m); err != nil {
		return map[string]string{} // a memory of what need not be done again: losing it costs time only
	}
	return m
}

// SaveImages is the counterpart of LoadImages.
func (d Dir) SaveImages(m map[string]string) error { return d.save(filepath.Base(d.Images()), m) }

func (d Dir) load(name string, v any) error {
	b, err := os.ReadFile(d.join(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", d.join(name), err)
	}
	return nil
}

// save replaces the file in one step, so that a reader never sees half of it.
func (d Dir) save(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	tmp := d.join("." + name + ".new")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, d.join(name))
}

// Lock lets one command at a time change the cluster in d. It waits for its turn.
func (d Dir) Lock() (unlock func(), err error) {
	path := d.join(lockFile)
	for {
		if err := os.MkdirAll(string(d), 0o755); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			continue // `down` removed the directory in between
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		held, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, there) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close() // `down` removed the file while this waited for it
	}
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
