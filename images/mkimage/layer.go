package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in an image: the real ones would make each build another image.
var epoch = time.Unix(0, 0).UTC()

// plainLayer is a layer in a file, not compressed: archives are read on this machine, where packing costs more than it
// saves.
type plainLayer struct {
	path   string
	digest v1.Hash
	size   int64
}

func (l *plainLayer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l *plainLayer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l *plainLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l *plainLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l *plainLayer) Size() (int64, error)                 { return l.size, nil }
func (l *plainLayer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }

// writeLayer writes sources as a tar file.
func writeLayer(file string, sources []source) (*plainLayer, error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	t := &tree{out: tar.NewWriter(io.MultiWriter(f, h)), seen: map[string]bool{"/": true}}
	for _, s := range sources {
		if err := t.add(s); err != nil {
			return nil, err
		}
	}
	if err := t.out.Close(); err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
	return &plainLayer{path: file, digest: digest, size: size}, f.Close()
}

// tree writes a file tree; seen holds the paths that are in it, with whether they are folders.
type tree struct {
	out  *tar.Writer
	seen map[string]bool
}

func (t *tree) add(s source) error {
	if err := t.parents(s.dst); err != nil {
		return err
	}
	// WalkDir goes in the order of names: the same tree gives the same archive.
	return filepath.WalkDir(s.src, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(s.src, p)
		if err != nil {
			return err
		}
		info, err := os.Lstat(p)
		if err != nil {
			return err
		}
		if below == "." { // SRC itself may be a link to what is meant
			if info, err = os.Stat(p); err != nil {
				return err
			}
		}
		if err := t.entry(p, path.Join(s.dst, filepath.ToSlash(below)), info); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		return nil
	})
}

func (t *tree) parents(dst string) error {
	dir := path.Dir(dst)
	if isDir, ok := t.seen[dir]; ok {
		if !isDir {
			return fmt.Errorf("%s: %s is no folder", dst, dir)
		}
		return nil
	}
	if err := t.parents(dir); err != nil {
		return err
	}
	return t.header(dir, &tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, true)
}

func (t *tree) entry(p, dst string, info fs.FileInfo) error {
	isDir, ok := t.seen[dst]
	if ok {
		if isDir && info.IsDir() {
			return nil // two sources that share a folder
		}
		return fmt.Errorf("%s is in the layer already", dst)
	}
	h := &tar.Header{Mode: int64(info.Mode().Perm())}
	for bit, mode := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			h.Mode |= mode
		}
	}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
		return t.header(dst, h, true)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(p)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, target, 0o777
		return t.header(dst, h, false)
	case info.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if err := t.header(dst, h, false); err != nil {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		_, err = io.Copy(t.out, f)
		return err
	default:
		return fmt.Errorf("an image cannot hold this kind of file (%v)", info.Mode().Type())
	}
}

// header writes what a file is: owned by root, at the epoch.
func (t *tree) header(dst string, h *tar.Header, isDir bool) error {
	t.seen[dst] = isDir
	h.Name = dst[1:] // relative, as layers have it
	if isDir {
		h.Name += "/"
	}
	h.ModTime = epoch
	return t.out.WriteHeader(h)
}
