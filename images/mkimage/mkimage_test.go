package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// files makes a tree; a name that ends with / is a folder.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for n, c := range content {
		p := filepath.Join(dir, n)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(n, "/") {
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(p, []byte(c), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mkimage(t *testing.T, args ...string) v1.Image {
	t.Helper()
	out := filepath.Join(t.TempDir(), "x.tar")
	if err := run(context.Background(), append([]string{"--ref", "localhost/x:1", "-o", out}, args...)); err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	return img
}

// entries lists a layer as "mode uid:gid time name -> target".
func entries(t *testing.T, img v1.Image, layer int) []string {
	t.Helper()
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := ls[layer].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var out []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		e := fmt.Sprintf("%04o %d:%d %d %s", h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Name)
		if h.Linkname != "" {
			e += " -> " + h.Linkname
		}
		out = append(out, e)
	}
}

func TestATreeKeepsModesAndLinksAndLosesOwnersAndTimes(t *testing.T) {
	dir := files(t, map[string]string{"usr/bin/tool": "x", "etc/conf": "y", "tmp/": ""})
	for path, mode := range map[string]os.FileMode{"usr/bin/tool": 0o755, "etc/conf": 0o640, "tmp": 0o777 | os.ModeSticky} {
		if err := os.Chmod(filepath.Join(dir, path), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	got := entries(t, mkimage(t, dir), 0)
	want := []string{
		"0777 0:0 0 bin -> usr/bin",
		"0755 0:0 0 etc/", "0640 0:0 0 etc/conf",
		"1777 0:0 0 tmp/",
		"0755 0:0 0 usr/", "0755 0:0 0 usr/bin/", "0755 0:0 0 usr/bin/tool",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestWhereSourcesGo(t *testing.T) {
	dir := files(t, map[string]string{"tool": "x", "tree/a": "y"})
	for _, tc := range []struct{ arg, want string }{
		{"tool", "tool"},
		{"tool:/usr/bin/", "usr/bin/tool"},
		{"tool:/usr/bin/other", "usr/bin/other"},
		{"tree", "a"},
		{"tree:/opt/app", "opt/app/a"},
	} {
		es := entries(t, mkimage(t, dir+"/"+tc.arg), 0)
		if last := es[len(es)-1]; !strings.HasSuffix(last, " "+tc.want) {
			t.Errorf("%s: got %q, want %s last", tc.arg, es, tc.want)
		}
	}
}

func TestEachPlusBeginsALayer(t *testing.T) {
	dir := files(t, map[string]string{"a": "1", "b": "2", "c": "3"})
	img := mkimage(t, dir+"/a", dir+"/b", "+", dir+"/c:/c")
	if ls, _ := img.Layers(); len(ls) != 2 {
		t.Fatalf("%d layers", len(ls))
	}
	if first, second := entries(t, img, 0), entries(t, img, 1); len(first) != 2 || len(second) != 1 {
		t.Errorf("layers hold %q and %q", first, second)
	}
}

func TestTheConfigurationIsTaken(t *testing.T) {
	dir := files(t, map[string]string{"a": "1"})
	img := mkimage(t, "--entrypoint", "/a", "--entrypoint", "x,y", "--cmd", "serve", "--user", "65532:65532",
		"--env", "A=1,2", "--workdir", "/w", "--architecture", "arm64", dir+"/a")
	f, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if !slices.Equal(c.Entrypoint, []string{"/a", "x,y"}) || !slices.Equal(c.Cmd, []string{"serve"}) || c.User != "65532:65532" ||
		!slices.Equal(c.Env, []string{defaultPath, "A=1,2"}) || c.WorkingDir != "/w" || f.Architecture != "arm64" || f.OS != "linux" {
		t.Errorf("got %+v on %s/%s", c, f.OS, f.Architecture)
	}
	own := mkimage(t, "--env", "PATH=/opt", dir+"/a")
	if f, err = own.ConfigFile(); err != nil || !slices.Equal(f.Config.Env, []string{"PATH=/opt"}) {
		t.Errorf("a PATH of one's own: %v %v", f.Config.Env, err)
	}
}

func TestTheSameInputGivesTheSameArchive(t *testing.T) {
	content := map[string]string{"bin/a": "1", "lib/b": "2", "lib/c/d": "3"}
	var sums []string
	for i := range 2 {
		dir := files(t, content)
		when := time.Unix(int64(1e9*(i+1)), 0)
		if err := os.Chtimes(filepath.Join(dir, "bin/a"), when, when); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "x.tar")
		if err := run(context.Background(), []string{"--ref", "localhost/x:1", "-o", out, dir}); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, fmt.Sprintf("%x", sha256.Sum256(b)))
	}
	if sums[0] != sums[1] {
		t.Error("two builds of the same files differ")
	}
	content["bin/a"] = "changed"
	before, _ := mkimage(t, files(t, map[string]string{"a": "1"})).Digest()
	after, _ := mkimage(t, files(t, map[string]string{"a": "2"})).Digest()
	if before == after {
		t.Error("other content gave the same image")
	}
}

func TestWhatCannotBeAnImageIsRefused(t *testing.T) {
	dir := files(t, map[string]string{"a": "1", "b": "2", "sub/x": "3"})
	fifo := filepath.Join(dir, "sub/fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	for what, args := range map[string][]string{
		"two files in one place":    {dir + "/a:/x", dir + "/b:/x"},
		"a file below a file":       {dir + "/a:/x", dir + "/b:/x/y"},
		"a pipe":                    {dir + "/sub"},
		"a missing source":          {dir + "/none"},
		"a relative place":          {dir + "/a:x"},
		"an empty layer":            {dir + "/a", "+"},
		"a name that is not a name": {"--ref", "NO SPACES", dir + "/a"},
	} {
		out := filepath.Join(t.TempDir(), "x.tar")
		if err := run(context.Background(), append([]string{"--ref", "localhost/x:1", "-o", out}, args...)); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); len(left) > 0 {
			t.Errorf("%s: left %v behind", what, left)
		}
	}
}

func TestAPushedImageIsInTheRegistryAndSmaller(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	dir := files(t, map[string]string{"a": strings.Repeat("the same again ", 10_000)})
	ref := strings.TrimPrefix(srv.URL, "http://") + "/team/x:7"
	if err := run(context.Background(), []string{"--ref", ref, "--push", "--entrypoint", "/a", dir}); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	ls, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if size, _ := ls[0].Size(); size > 10_000 {
		t.Errorf("the layer has %d bytes: not compressed", size)
	}
}
