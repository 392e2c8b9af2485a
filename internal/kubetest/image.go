package kubetest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/kickhq/kick/internal/image"
)

// ShimImage gives the node an image that has a shim at /kick-shim, and returns its
// name with its digest. The same shim makes the same image.
func (c *Cluster) ShimImage(t testing.TB, shim []byte) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "kick-shim"), shim, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(shim)
	tar := filepath.Join(dir, "shim.tar")
	_, err := image.Build(t.Context(), image.Options{
		From: root, Out: tar, Name: "localhost/kick-shim:" + hex.EncodeToString(sum[:6]), Time: image.DefaultTime, Cache: filepath.Join(dir, "cache"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.Load(t, tar)
}
