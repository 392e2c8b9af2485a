package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kickhq/kick/sandbox"
)

// The agent's user in the image. The launcher sets it for each container; this
// is for who runs the image by hand.
const agentUser = 65532

var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// blob is one file of the layout, known by its digest.
type blob struct {
	v1.Descriptor
	write func(io.Writer) error
}

// write writes the image as an OCI layout. Layers are not compressed: their
// bytes, and so the image's digest, then depend on no compressor's version.
func (b *builder) write() error {
	blobs, err := b.blobs()
	if err != nil {
		return err
	}
	manifest := blobs[len(blobs)-1].Descriptor
	manifest.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	// The first is what podman load takes the name from, the second docker load.
	manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": b.Name, "io.containerd.image.name": b.Name}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest}})
	if err != nil {
		return err
	}
	b.result.Digest = manifest.Digest.String()
	if strings.HasSuffix(b.Out, ".tar") {
		return replace(b.Out, func(tmp string) error {
			return writeFile(tmp, func(w io.Writer) error { return b.writeTar(w, blobs, index) })
		})
	}
	if _, err := os.Stat(b.Out); err == nil {
		if _, err := os.Stat(filepath.Join(b.Out, "oci-layout")); err != nil {
			return &InputError{fmt.Sprintf("%s is there and is no OCI layout: give another place with --out", b.Out)}
		}
	}
	return replace(b.Out, func(tmp string) error { return writeDir(tmp, blobs, index) })
}

// blobs are the layers, the configuration and, last, the manifest.
func (b *builder) blobs() ([]blob, error) {
	var blobs []blob
	at := v1.Time{Time: b.Time}
	cfg := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Created: at,
		Config: v1.Config{
			User: fmt.Sprintf("%d:%[1]d", agentUser), Env: environment, Cmd: []string{"/bin/sh"}, WorkingDir: sandbox.DefaultMountPath, Labels: b.labels,
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, t := range b.layers {
		layer, err := describe(types.OCIUncompressedLayer, func(w io.Writer) error { return t.write(w, b.Time) })
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, layer)
		manifest.Layers = append(manifest.Layers, layer.Descriptor)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, layer.Digest)
		cfg.History = append(cfg.History, v1.History{Created: at, CreatedBy: "kick image build"})
		b.result.Bytes += layer.Size
		b.result.Dropped = b.result.Dropped.plus(t.dropped)
	}
	config, err := describeJSON(types.OCIConfigJSON, cfg)
	if err != nil {
		return nil, err
	}
	b.result.ID = config.Digest.String()
	manifest.Config = config.Descriptor
	last, err := describeJSON(types.OCIManifestSchema1, manifest)
	if err != nil {
		return nil, err
	}
	return append(blobs, config, last), nil
}

func describeJSON(mediaType types.MediaType, v any) (blob, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return blob{}, err
	}
	return describe(mediaType, verbatim(text))
}

// verbatim writes these bytes.
func verbatim(text []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}

// describe finds out the digest and the size of what write writes.
func describe(mediaType types.MediaType, write func(io.Writer) error) (blob, error) {
	sum := sha256.New()
	n := &counter{Writer: sum}
	if err := write(n); err != nil {
		return blob{}, err
	}
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	return blob{v1.Descriptor{MediaType: mediaType, Size: n.bytes, Digest: hash}, write}, nil
}

type counter struct {
	io.Writer
	bytes int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.bytes += int64(n)
	return n, err
}

const layoutVersion = `{"imageLayoutVersion":"1.0.0"}`

func (b *builder) writeTar(out io.Writer, blobs []blob, index []byte) error {
	w := tar.NewWriter(out)
	add := func(name string, size int64, write func(io.Writer) error) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: b.Time}); err != nil {
			return err
		}
		return write(w)
	}
	if err := add("oci-layout", int64(len(layoutVersion)), verbatim([]byte(layoutVersion))); err != nil {
		return err
	}
	if err := add("index.json", int64(len(index)), verbatim(index)); err != nil {
		return err
	}
	for _, blob := range blobs {
		if err := add("blobs/sha256/"+blob.Digest.Hex, blob.Size, blob.write); err != nil {
			return err
		}
	}
	return w.Close()
}

func writeDir(dir string, blobs []blob, index []byte) error {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return err
	}
	for _, blob := range blobs {
		if err := writeFile(filepath.Join(dir, "blobs", "sha256", blob.Digest.Hex), blob.write); err != nil {
			return err
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(layoutVersion), 0o644),
	)
}

func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}

// replace makes something beside its place, and then puts it there.
func replace(path string, write func(tmp string) error) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".kick-image-")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "new")
	if err = write(tmp); err == nil {
		// A directory that is not empty is not replaced by a rename.
		if os.Rename(tmp, path) != nil {
			err = errors.Join(os.RemoveAll(path), os.Rename(tmp, path))
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}
