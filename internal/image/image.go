// Package image builds the images of agents' containers: from Debian packages
// or a given root file system, with an agent from npm if wanted, without a
// daemon, a registry or root. The same inputs give the same image, to the
// digest.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/agents"
)

// Options say what is in an image.
type Options struct {
	// From is a root file system, a directory or a tar. Empty: Debian packages.
	From string
	// Packages are Debian packages beside the usual ones, as apt-get takes them
	// ("ripgrep", "git=1:2.39.5-0+deb12u3").
	Packages []string
	// Agent is a kind, or KIND@VERSION. Empty: none.
	Agent string
	// Node adds Node.js, which an agent that is a script gets in any case.
	Node bool
	// Shim, if set, opens kick's first process, which the image then has where a
	// Kubernetes pod looks for it. Its git trusts a workspace of any owner, since a
	// volume of a pod is root's.
	Shim func() (io.ReadCloser, error)
	// Name is what the image is called when it is loaded.
	Name string
	// Out is where the OCI layout goes: a tar file if it ends with ".tar", else a
	// directory.
	Out string
	// Time is the time of every file in the image, and of the image.
	Time time.Time
	// Cache is the directory for downloads.
	Cache string
	// Step is told what was done, for people; may be nil.
	Step func(name, detail string)
}

// Result is an image that was built.
type Result struct {
	// Digest is that of the manifest, which podman load keeps.
	Digest string `json:"digest"`
	// ID is that of the configuration, which Podman and Docker call the image's id.
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Bytes    int64             `json:"bytes"` // of all layers
	Packages map[string]string `json:"packages"`
	Agent    string            `json:"agent,omitempty"`
	Dropped  Dropped           `json:"dropped"`
}

// InputError is something wrong with what the caller gave.
type InputError struct{ text string }

func (e *InputError) Error() string { return e.text }

// DefaultTime is the time of everything in an image where no other one is
// asked for: the first that the file format zip can hold, which tools that
// pack an agent's work may use.
var DefaultTime = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// TimeOf reads SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/);
// empty is DefaultTime.
func TimeOf(epoch string) (time.Time, error) {
	if epoch == "" {
		return DefaultTime, nil
	}
	// The year 9999 is the last that RFC 3339 can write.
	s, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || s < 0 || s > 253402300799 {
		return time.Time{}, &InputError{fmt.Sprintf("SOURCE_DATE_EPOCH is %q: want seconds since 1970", epoch)}
	}
	return time.Unix(s, 0).UTC(), nil
}

// builder builds one image.
type builder struct {
	Options
	scratch string // a directory for files without a name
	debs    []download
	npms    []npmPackage
	layers  []*tree
	labels  map[string]string // of the image, which its containers inherit
	result  Result
}

// download is a file that is part of the image.
type download struct {
	file   string
	sha256 string
}

// Labels of an image.
const (
	labelPackages = "io.kickhq.image.packages" // NAME=VERSION of each Debian package
	labelAgent    = "io.kickhq.image.agent"    // KIND@VERSION
)

// Build builds an image.
func Build(ctx context.Context, o Options) (res Result, err error) {
	if o.Step == nil {
		o.Step = func(string, string) {}
	}
	b := &builder{
		Options: o, scratch: filepath.Dir(o.Out), labels: map[string]string{},
		result: Result{Name: o.Name, Path: o.Out, Packages: map[string]string{}},
	}
	defer func() {
		for _, t := range b.layers {
			err = errors.Join(err, t.close())
		}
	}()
	if _, _, err := agentOf(o.Agent); err != nil {
		return Result{}, err // before anything is downloaded
	}
	if _, err := name.NewTag(o.Name, name.WithDefaultRegistry("")); err != nil {
		return Result{}, &InputError{fmt.Sprintf("image name: %v", err)}
	}
	if _, err := os.Stat(b.scratch); err != nil {
		return Result{}, &InputError{fmt.Sprintf("place of the image: %v", err)}
	}
	if err := os.MkdirAll(o.Cache, 0o755); err != nil {
		return Result{}, err
	}
	unlock, err := lock(filepath.Join(o.Cache, "image.lock"))
	if err != nil {
		return Result{}, err
	}
	defer unlock()

	if err := b.gather(ctx); err != nil {
		return Result{}, err
	}
	if r, ok := b.built(); ok {
		b.Step("image", "as it was")
		return r, nil
	}
	if err := b.system(ctx); err != nil {
		return Result{}, err
	}
	for _, p := range b.npms {
		if err := b.npm(p); err != nil {
			return Result{}, err
		}
	}
	if o.Shim != nil {
		if err := b.shim(); err != nil {
			return Result{}, fmt.Errorf("add the shim: %w", err)
		}
	}
	if err := b.write(); err != nil {
		return Result{}, fmt.Errorf("write %s: %w", o.Out, err)
	}
	return b.result, b.remember()
}

// gather downloads what the image is made of.
func (b *builder) gather(ctx context.Context) error {
	kind, version, err := agentOf(b.Agent)
	if err != nil {
		return err
	}
	if b.From == "" {
		if err := b.fetchDebs(ctx); err != nil {
			return err
		}
	}
	if b.Node || kind.NPM.Script {
		if err := b.fetchNPM(ctx, "node", nodejs, nodeVersion); err != nil {
			return err
		}
	}
	if b.Agent != "" {
		if err := b.fetchNPM(ctx, kind.Name, kind.NPM, version); err != nil {
			return err
		}
		b.result.Agent = kind.Name + "@" + version
		b.labels[labelAgent] = b.result.Agent
	}
	return nil
}

// Agents returns the kinds that can be in an image, in order.
func Agents() []string {
	var names []string
	for _, k := range agents.Kinds() {
		if k.NPM.Spec != "" {
			names = append(names, k.Name)
		}
	}
	return names
}

// agentOf reads KIND or KIND@VERSION.
func agentOf(agent string) (agents.Kind, string, error) {
	if agent == "" {
		return agents.Kind{}, "", nil
	}
	name, version, given := strings.Cut(agent, "@")
	k, ok := agents.Find(name)
	switch {
	case !ok:
		return k, "", &InputError{fmt.Sprintf("agent kind %q is not known: `kick agents` lists them", name)}
	case k.NPM.Spec == "":
		return k, "", &InputError{fmt.Sprintf("agent kind %s is not on npm: install it into a root file system, and give that with --from", name)}
	case given && !agents.IsVersion(version):
		return k, "", &InputError{fmt.Sprintf("agent version %q is none: want one like %s", version, k.Tested)}
	case !given:
		version = k.Tested
	}
	return k, version, nil
}

// layer begins a layer. It is closed with the builder.
func (b *builder) layer() (*tree, error) {
	t, err := newTree(b.scratch)
	if err != nil {
		return nil, err
	}
	b.layers = append(b.layers, t)
	return t, nil
}

// system makes the layer that the others lie on.
func (b *builder) system(ctx context.Context) error {
	t, err := b.layer()
	if err != nil {
		return err
	}
	if b.From != "" {
		err = t.rootfs(b.From)
	} else {
		err = b.debian(ctx, t)
	}
	if err != nil {
		return err
	}
	b.Step("system", fmt.Sprintf("%d files", len(t.nodes)))
	return finish(t)
}

// shimPath is where a pod's first process is looked for in its image.
const shimPath = "usr/libexec/kick/kick-shim"

// shim makes the layer of kick's first process.
func (b *builder) shim() error {
	r, err := b.Shim()
	if err != nil {
		return err
	}
	defer r.Close()
	t, err := b.layer()
	if err != nil {
		return err
	}
	if err := t.file(shimPath, 0o755, r); err != nil {
		return err
	}
	config, err := b.layers[0].old("etc/gitconfig")
	if err != nil {
		return err
	}
	return t.text("etc/gitconfig", config+"[safe]\n\tdirectory = *\n")
}

// lock waits for the lock of a file, which is made if there is none, and
// returns what gives it back.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
