//go:build acceptance

package acceptance

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"subagents.dev/localcluster/internal/slot"
)

// traces lists what a cluster could leave on the machine: links, routes, mounts, packet filter rules, cgroups, held
// slots, and processes of the program.
func traces(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	note := func(kind, what string) {
		for _, line := range strings.Split(strings.TrimSpace(what), "\n") {
			out[kind+": "+strings.Join(strings.Fields(line), " ")] = true
		}
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		note("link", l.Name)
	}
	note("route", read("/proc/net/route"))
	note("mount", regexp.MustCompile(`(?m)^\d+ \d+ `).ReplaceAllString(read("/proc/self/mountinfo"), ""))
	rules, err := exec.Command("iptables-save").CombinedOutput()
	if err != nil {
		t.Fatalf("iptables-save: %v: %s", err, rules)
	}
	for _, r := range strings.Split(string(rules), "\n") {
		if strings.HasPrefix(r, "-") {
			note("rule", r)
		}
	}
	for _, l := range strings.Split(read("/proc/net/unix"), "\n") {
		if f := strings.Fields(l); len(f) == 8 && strings.HasPrefix(f[7], "@subagents-cluster") {
			note("slot", f[7])
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			note("cgroup", p)
		}
		return nil // those of other programs come and go
	})
	for _, dir := range []string{"/var/lib", "/var/log", "/run", "/etc"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			note("file", filepath.Join(dir, e.Name()))
		}
	}
	return out
}

// ofOthers: clusters of other people on this machine come and go, too.
func ofOthers(trace string, own []slot.Slot) bool {
	mine := map[string]bool{}
	for _, s := range own {
		mine[fmt.Sprint(int(s))] = true
	}
	for _, form := range []*regexp.Regexp{
		regexp.MustCompile(`subcl(\d+)`),
		regexp.MustCompile(`subagents-cluster-(\d+)`),
		regexp.MustCompile(`subagents-cluster/slot/(\d+)`),
	} {
		if m := form.FindStringSubmatch(trace); m != nil && !mine[m[1]] {
			return true
		}
	}
	return false
}

// requireNoTraces fails the test for whatever is there now and was not there before.
func requireNoTraces(t *testing.T, before map[string]bool, own []slot.Slot, dirs ...string) {
	t.Helper()
	var left []string
	for trace := range traces(t) {
		if !before[trace] && !ofOthers(trace, own) {
			left = append(left, trace)
		}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			left = append(left, "state directory: "+dir)
		}
		left = append(left, processesOf(t, dir)...)
	}
	sort.Strings(left)
	if len(left) > 0 {
		t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
	}
}

// processesOf are those that name the state directory in their arguments or have their output in it.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pids {
		args, _ := os.ReadFile(filepath.Join(p, "cmdline"))
		output, _ := os.Readlink(filepath.Join(p, "fd/1"))
		if strings.Contains(string(args), dir) || strings.Contains(output, dir) {
			out = append(out, fmt.Sprintf("process: %s %s", p, strings.ReplaceAll(string(args), "\x00", " ")))
		}
	}
	return out
}
