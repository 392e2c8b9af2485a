package manager

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kickhq/kick/sandbox"
)

// New returns a manager with every runtime that this kick has. shim is the
// program cmd/kick-shim.
func New(state *State, shim io.Reader, version string) (*Manager, error) {
	embedded, err := NewEmbedded(shim)
	if err != nil {
		return nil, err
	}
	podman, err := NewPodman(state, embedded, "")
	if err != nil {
		return nil, err
	}
	openShell, err := sandbox.NewOpenShell(sandbox.OpenShellConfig{Shim: embedded.OpenShim, Dir: filepath.Join(state.Dir, "openshell")})
	if err != nil {
		return nil, err
	}
	kubernetes, err := NewKubernetes(state, embedded, "", sandbox.KubernetesChoice{})
	if err != nil {
		return nil, err
	}
	kubeVirt, err := NewKubeVirt(state, embedded, "", sandbox.KubeVirtChoice{})
	if err != nil {
		return nil, err
	}
	return &Manager{
		State:     state,
		Launchers: map[string]sandbox.Launcher{"embedded": embedded, "podman": podman, openShellRuntime: openShell, "kubernetes": kubernetes, "kubevirt": kubeVirt},
		Version:   version,
	}, nil
}

// NewPodman returns the Podman launcher. Its shim is the embedded launcher's,
// which makes the artifacts where Podman cannot any more. image is what
// Preflight runs.
func NewPodman(state *State, embedded *sandbox.Embedded, image string) (*sandbox.Podman, error) {
	return sandbox.NewPodman(sandbox.PodmanConfig{
		Shim: embedded.OpenShim, Dir: filepath.Join(state.Dir, "podman"), Image: image, Fallback: embedded,
	})
}

// NewKubernetes returns the Kubernetes launcher. image is what Preflight runs.
func NewKubernetes(state *State, embedded *sandbox.Embedded, image string, choice sandbox.KubernetesChoice) (*sandbox.Kubernetes, error) {
	return sandbox.NewKubernetes(sandbox.KubernetesConfig{
		Shim: embedded.OpenShim, Dir: filepath.Join(state.Dir, "kubernetes"), Image: image, KubernetesChoice: choice,
	})
}

// NewKubeVirt returns the KubeVirt launcher. image is what Preflight boots.
func NewKubeVirt(state *State, embedded *sandbox.Embedded, image string, choice sandbox.KubeVirtChoice) (*sandbox.KubeVirt, error) {
	return sandbox.NewKubeVirt(sandbox.KubeVirtConfig{
		Shim: embedded.OpenShim, Dir: filepath.Join(state.Dir, "kubevirt"), Image: image, KubeVirtChoice: choice,
	})
}

// launcher finds the launcher of a request.
func (m *Manager) launcher(req Request) (sandbox.Launcher, error) {
	l, ok := m.Launchers[req.Runtime]
	if !ok {
		names := slices.Sorted(maps.Keys(m.Launchers))
		return nil, &sandbox.Error{Kind: sandbox.ErrSpec, Op: fmt.Sprintf("no runtime %q", req.Runtime),
			Remedy: "This kick knows " + strings.Join(names, ", ") + "."}
	}
	switch own := l.(type) {
	case *sandbox.Podman:
		l = own.With(req.Podman)
	case *sandbox.OpenShell:
		l = own.With(req.OpenShell.Choice)
	case *sandbox.Kubernetes:
		l = own.With(req.Kubernetes)
	case *sandbox.KubeVirt:
		l = own.With(req.KubeVirt)
	}
	return l, nil
}

// NewEmbedded returns the embedded launcher.
func NewEmbedded(shim io.Reader) (*sandbox.Embedded, error) {
	return sandbox.NewEmbedded(sandbox.EmbeddedConfig{Shim: shim})
}

// fingerprintKey returns the key under which findings get their fingerprints.
// It lives with the state, since fingerprints in a policy file name findings
// across kicks.
func (s *State) fingerprintKey() ([]byte, error) {
	const size = 32
	path := filepath.Join(s.Dir, "fingerprint.key")
	key, err := os.ReadFile(path)
	if err == nil && len(key) == size {
		return key, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	key = make([]byte, size)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	tmp, err := os.CreateTemp(s.Dir, "fingerprint-*")
	if err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // a leftover holds a key that nothing uses
	_, werr := tmp.Write(key)
	if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	// Of two processes that make it at once, the first wins.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("fingerprint key: %w", err)
	}
	return os.ReadFile(path)
}
