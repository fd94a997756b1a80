// Package ociarchive writes the smallest image archive: one program in an otherwise empty root.
package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// nameAnnotation is where containerd looks for the name under which it shall keep an imported image.
const nameAnnotation = "io.containerd.image.name"

// Write writes an archive of an image named ref, which runs program as /NAME.
func Write(w io.Writer, ref, name string, program []byte) error {
	var layer bytes.Buffer
	if err := writeTar(&layer, file{path.Base(name), 0o755, program}); err != nil {
		return err
	}
	diff := describe(v1.MediaTypeImageLayer, layer.Bytes())
	config, err := blob(v1.MediaTypeImageConfig, v1.Image{
		Platform: v1.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		Config:   v1.ImageConfig{Entrypoint: []string{"/" + path.Base(name)}},
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{diff.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := blob(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageManifest,
		Config:    config.Descriptor,
		Layers:    []v1.Descriptor{diff},
	})
	if err != nil {
		return err
	}
	manifest.Annotations = map[string]string{nameAnnotation: ref}
	manifest.Platform = &v1.Platform{Architecture: runtime.GOARCH, OS: "linux"}
	index, err := blob(v1.MediaTypeImageIndex, v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: v1.MediaTypeImageIndex,
		Manifests: []v1.Descriptor{manifest.Descriptor},
	})
	if err != nil {
		return err
	}
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	return writeTar(w,
		file{v1.ImageLayoutFile, 0o644, layout},
		file{v1.ImageIndexFile, 0o644, index.content},
		file{config.path(), 0o644, config.content},
		file{manifest.path(), 0o644, manifest.content},
		file{described{diff, nil}.path(), 0o644, layer.Bytes()},
	)
}

type described struct {
	v1.Descriptor
	content []byte
}

func (d described) path() string { return path.Join(v1.ImageBlobsDir, "sha256", d.Digest.Encoded()) }

func blob(mediaType string, v any) (described, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return described{}, err
	}
	return described{describe(mediaType, b), b}, nil
}

func describe(mediaType string, b []byte) v1.Descriptor {
	return v1.Descriptor{
		MediaType: mediaType,
		Digest:    digest.NewDigestFromBytes(digest.SHA256, sum(b)),
		Size:      int64(len(b)),
	}
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func writeTar(w io.Writer, files ...file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if _, err := t.Write(f.content); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return t.Close()
}
