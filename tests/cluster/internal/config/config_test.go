package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"subagents.dev/localcluster/internal/slot"
	"subagents.dev/localcluster/internal/state"
)

func written(t *testing.T, s slot.Slot) (state.Dir, map[string]string) {
	t.Helper()
	dir, err := state.OpenDir(filepath.Join(t.TempDir(), "with space"))
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, s); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, folder := range []string{dir.Config(""), dir.CNI()} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
	}
	return dir, out
}

func TestEveryTemplateIsWrittenAndWellFormed(t *testing.T) {
	_, files := written(t, 7)
	entries, err := templates.ReadDir("templates")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(entries) {
		t.Errorf("%d templates, %d files written", len(entries), len(files))
	}
	for name, text := range files {
		var v any
		switch filepath.Ext(name) {
		case ".yaml":
			err = yaml.UnmarshalStrict([]byte(text), &v)
		case ".conflist":
			err = json.Unmarshal([]byte(text), &v)
		default:
			err = nil
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(text, "<no value>") {
			t.Errorf("%s has a hole:\n%s", name, text)
		}
	}
}

// Two clusters share no file, address or cgroup: whatever the files of one name, those of the other do not.
func TestFilesOfTwoSlotsNameNothingInCommon(t *testing.T) {
	own := regexp.MustCompile(`10\.(201|244|96)\.\d+\.\d+|subagents-cluster-\d+|/[^\s":,}]*with space[^\s":,}]*`)
	seen := map[string]bool{}
	_, a := written(t, 3)
	for _, text := range a {
		for _, m := range own.FindAllString(text, -1) {
			seen[m] = true
		}
	}
	if len(seen) < 6 {
		t.Fatalf("found only %v: the test looks at the wrong things", seen)
	}
	_, b := written(t, 4)
	for name, text := range b {
		for _, m := range own.FindAllString(text, -1) {
			if seen[m] {
				t.Errorf("%s names %s, which belongs to another slot", name, m)
			}
		}
	}
}

func TestIdentitiesDependOnTheMode(t *testing.T) {
	for mode, want := range map[state.Mode]struct {
		server  string
		kubelet bool
	}{
		state.WithNode:      {"https://10.201.5.2:6443", true},
		state.APIServerOnly: {"https://127.0.0.1:21015", false},
	} {
		dir, err := state.OpenDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Make(); err != nil {
			t.Fatal(err)
		}
		if err := WriteIdentities(dir, mode, 5); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(dir.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "server: "+want.server+"\n") {
			t.Errorf("%s: kubeconfig without %s:\n%s", mode, want.server, b)
		}
		_, err = os.Stat(dir.PKI("kubelet.kubeconfig"))
		if got := err == nil; got != want.kubelet {
			t.Errorf("%s: kubelet has an identity: %v", mode, got)
		}
	}
}
