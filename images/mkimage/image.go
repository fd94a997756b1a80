package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// defaultPath is what every base image sets, and programs that start others expect.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// build is one image to be made.
type build struct {
	ref          string
	config       v1.Config
	architecture string
	layers       [][]source
}

// archive writes the image to a file that names it.
func (b build) archive(out string) error {
	tag, err := name.NewTag(b.ref)
	if err != nil {
		return err
	}
	return b.withLayers(filepath.Dir(out), func(layers []*plainLayer) error {
		img, err := b.image(layers, func(l *plainLayer) (v1.Layer, error) { return l, nil })
		if err != nil {
			return err
		}
		// In one step, so that nobody reads half an archive.
		f, err := os.CreateTemp(filepath.Dir(out), ".mkimage-*.tar")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(f.Name()) }()
		if err := tarball.Write(tag, img, f); err != nil {
			return err
		}
		if err := f.Chmod(0o644); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		return os.Rename(f.Name(), out)
	})
}

// push sends the image to its registry; there the layers are compressed.
func (b build) push(ctx context.Context, insecure bool) error {
	var opts []name.Option
	if insecure {
		opts = append(opts, name.Insecure)
	}
	tag, err := name.NewTag(b.ref, opts...)
	if err != nil {
		return err
	}
	return b.withLayers(os.TempDir(), func(layers []*plainLayer) error {
		img, err := b.image(layers, func(l *plainLayer) (v1.Layer, error) { return tarball.LayerFromFile(l.path) })
		if err != nil {
			return err
		}
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag, img, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
		fmt.Printf("%s@%s\n", tag, digest)
		return nil
	})
}

// withLayers lends the layers, as files in a temporary folder below dir.
func (b build) withLayers(dir string, use func([]*plainLayer) error) error {
	tmp, err := os.MkdirTemp(dir, ".mkimage-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	var layers []*plainLayer
	for i, sources := range b.layers {
		l, err := writeLayer(filepath.Join(tmp, fmt.Sprint(i)), sources)
		if err != nil {
			return err
		}
		layers = append(layers, l)
	}
	return use(layers)
}

func (b build) image(layers []*plainLayer, form func(*plainLayer) (v1.Layer, error)) (v1.Image, error) {
	cfg := b.config
	if !slices.ContainsFunc(cfg.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		cfg.Env = append([]string{defaultPath}, cfg.Env...)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: b.architecture,
		OS:           "linux",
		Created:      v1.Time{Time: epoch},
		Config:       cfg,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		layer, err := form(l)
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "mkimage"},
		})
		if err != nil {
			return nil, err
		}
	}
	return img, nil
}
