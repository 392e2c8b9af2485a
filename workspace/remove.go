package workspace

import (
	"path/filepath"

	"github.com/kickhq/kick/internal/rmtree"
)

// Remove deletes a directory that an agent could write, and all in it, as
// rmtree.Remove does.
func Remove(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return unusable("give an absolute path", "refuse to remove %q", dir)
	}
	dir = filepath.Clean(dir)
	if err := rmtree.Remove(dir); err != nil {
		return hostError("remove "+dir, err)
	}
	return nil
}
