// Package cgroup makes and removes the cgroup of a cluster's pods, in version 1, version 2 and the mix of both.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const mountPoint = "/sys/fs/cgroup"

// patience is for processes that were killed and have not ended yet.
const patience = 10 * time.Second

// Make makes the cgroup in every hierarchy. It may be there already.
func Make(name string) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		dir := filepath.Join(h, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// In version 1 a new cpuset is empty and takes no process.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(h, f))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, f), all, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove removes the cgroup and all below it from every hierarchy. Processes in it must have been killed.
func Remove(name string) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hs {
		errs = append(errs, removeTree(filepath.Join(h, name)))
	}
	return errors.Join(errs...)
}

func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(mountPoint, "cgroup.controllers")); err == nil {
		return []string{mountPoint}, nil
	}
	entries, err := os.ReadDir(mountPoint)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() { // the others are links to joint hierarchies, such as cpu,cpuacct
			out = append(out, filepath.Join(mountPoint, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s holds no cgroup hierarchy", mountPoint)
	}
	return out, nil
}

func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, p)
		}
		return nil // what is not there any more is what is wanted
	})
	if err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for i := len(dirs) - 1; i >= 0; i-- { // parents come before children in a walk
		for {
			err := syscall.Rmdir(dirs[i])
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup %s: %w (processes: %s)", dirs[i], err, members(dirs[i]))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

func members(dir string) string {
	b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return strings.Join(strings.Fields(string(b)), " ")
}
