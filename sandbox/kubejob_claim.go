package sandbox

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/lazyregexp"
)

// Where there is a claim, a kick's workspace is a directory of it, which its pod has
// and no other pod. What belongs to root's trust is done by containers of kick's own
// image alone, which have the whole claim: they make that directory, put the base's
// objects beside it, and remove it in the end. Below KubernetesChoice.ClaimPath:
//
//	kicks/<id>          the workspace of a kick
//	bases/<key>/        objects of a base, which many kicks read
//
// Until the directory is removed, a note in the state directory says that it may be
// there, for who collects the work of a dead kick, and for the reaper.

// KubernetesClaimRules is what a launcher whose workspaces are on a claim asks of the
// API server beside KubernetesRules.
var KubernetesClaimRules = []KubernetesRule{
	{"", "persistentvolumeclaims", []string{"get"}, "whether the claim of the workspaces can be used, before a pod waits for it in vain"},
}

// ClaimPathForm is a regular expression of what KubernetesChoice.ClaimPath can be.
const ClaimPathForm = `^([A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$`

var claimPathForm = lazyregexp.New(ClaimPathForm)

// checkClaim looks for what contradicts a claim.
func (c *KubernetesConfig) checkClaim() error {
	wrong := func(what, remedy string) error { return specError("workspace claim", errors.New(what), remedy) }
	switch {
	case c.Claim == "" && c.ClaimPath != "":
		return wrong("there is a path in it and no claim", "Set kubernetes.claim, or leave claim_path out")
	case c.Claim == "":
	case !claimPathForm.MatchString(c.ClaimPath):
		return wrong(fmt.Sprintf("%q is no path in it", c.ClaimPath), "Write a path relative to the claim's root, of names that begin with a letter, a digit, - or _")
	case c.ShimImage == "":
		return wrong("there is no shim_image", "Set kubernetes.shim_image: a container of kick's own image makes the directory in the claim")
	case c.Pool != "":
		return wrong("there is a pool too", "Leave out one of kubernetes.claim and kubernetes.pool: a pod that stands by was made before its kick has a directory")
	}
	return nil
}

// workOf is the directory of a kick's workspace in the claim.
func (c *KubernetesConfig) workOf(id string) string { return path.Join(c.ClaimPath, "kicks", id) }

// kubeBase is where in the claim the base's objects are. Zero: nowhere.
type kubeBase struct {
	Dir     string `json:"dir,omitempty"`
	Objects string `json:"objects,omitempty"` // digest of the list of them
}

// hasBase implements keeper.
func (l *Kubernetes) hasBase() bool { return l.config.Claim != "" }

// findBase looks which objects a base is to have in the claim. The directory there is
// that of one directory here, for as long as this exists, and of this state: so it has
// nothing that was not in this mirror.
func (l *Kubernetes) findBase(objects string) (kubeBase, map[string]int64, error) {
	if objects == "" {
		return kubeBase{}, nil, nil
	}
	files, err := objectFiles(objects)
	if err != nil {
		return kubeBase{}, nil, err
	}
	var made unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, objects, 0, unix.STATX_INO|unix.STATX_BTIME, &made); err != nil {
		return kubeBase{}, nil, &fs.PathError{Op: "stat", Path: objects, Err: err}
	}
	list, err := json.Marshal(files) // sorted by their names
	if err != nil {
		return kubeBase{}, nil, err
	}
	key := keyOfLine(l.key, fmt.Sprintf("base %s %d %d.%d", objects, made.Ino, made.Btime.Sec, made.Btime.Nsec))
	sum := sha256.Sum256(list)
	return kubeBase{Dir: path.Join(l.config.ClaimPath, "bases", hex.EncodeToString(key[:16])), Objects: hex.EncodeToString(sum[:16])}, files, nil
}

// objectFiles lists the files with objects of a repository's directory for them, with
// their sizes. The name of each tells its content.
func objectFiles(objects string) (map[string]int64, error) {
	files := map[string]int64{}
	dirs, err := os.ReadDir(objects)
	if err != nil {
		return nil, err
	}
	for _, d := range dirs {
		if _, err := hex.DecodeString(d.Name()); d.Name() != "pack" && (err != nil || len(d.Name()) != 2) {
			continue
		}
		list, err := os.ReadDir(filepath.Join(objects, d.Name()))
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			if d.Name() == "pack" && !slices.Contains([]string{".pack", ".idx", ".rev"}, path.Ext(f.Name())) {
				continue
			}
			info, err := f.Info()
			if err != nil {
				return nil, err
			}
			if info.Mode().IsRegular() && !strings.HasPrefix(f.Name(), "tmp_") { // git's own unfinished
				files[path.Join(d.Name(), f.Name())] = info.Size()
			}
		}
	}
	return files, nil
}

// prepareClaim does what comes before each pod that uses the claim.
func (b *kubeBox) prepareClaim(ctx context.Context) error {
	if b.clears {
		return nil // see awaitCleared
	}
	if err := b.lookAtClaim(ctx); err != nil || b.mode == frame.CollectMode {
		return err
	}
	b.given = false
	var err error
	if b.base, b.objects, err = b.launcher.findBase(b.spec.Workspace.Objects); err != nil {
		return &Error{Kind: ErrSpec, Op: "base objects", Err: err, Remedy: "Name the directory objects of a repository"}
	}
	return b.note()
}

// lostWork is called where a pod did not start. Of a directory that was never made
// nothing is left to say; one that is gone is work that is lost.
func (b *kubeBox) lostWork(err error) error {
	l := b.launcher
	if l.config.Claim == "" {
		return err
	}
	seen, _, _ := b.eye.look()
	switch {
	case b.mode == frame.CollectMode && foundNothing(seen.pod):
		err = &Error{Kind: ErrRuntime, Op: "collect the work of " + b.spec.ID, Err: errPodGone, Remedy: "What had come back before is kept"}
	case b.mode == frame.CollectMode || b.begun:
		return err
	}
	return errors.Join(err, l.unnote(b.spec.ID))
}

// errWantsBase is a pod that waits for the base.
var errWantsBase = errors.New("it waits for the base")

// lookAtClaim makes sure that the claim can be used: a pod that names another would
// wait for it until its time is over.
func (b *kubeBox) lookAtClaim(ctx context.Context) error {
	l := b.launcher
	name := l.config.Claim
	c, err := kube.Get[corev1.PersistentVolumeClaim](ctx, b.client, kube.Claims, l.config.Namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return b.failed(ctx, "look at the claim "+name, err)
	}
	if b.clears {
		return err // whatever else is wrong with it
	}
	what, remedy := "there is none of that name in namespace "+l.config.Namespace, "Make it: kubectl apply a PersistentVolumeClaim, or name another as kubernetes.claim"
	if err == nil {
		what, remedy = judgeClaim(c)
	}
	if what == "" {
		return nil
	}
	return &Error{Kind: ErrRuntime, Op: "use the claim " + name, Err: errors.New(what), Remedy: remedy}
}

// judgeClaim says what keeps a claim from being used for workspaces; nothing, if it
// can be. One that is not bound yet may wait for its first pod.
func judgeClaim(c *corev1.PersistentVolumeClaim) (what, remedy string) {
	writable := slices.ContainsFunc(c.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadWriteOnce
	})
	switch {
	case c.DeletionTimestamp != nil:
		return "it is being deleted", "Make another"
	case c.Status.Phase == corev1.ClaimLost:
		return "its volume is lost", "See what became of volume " + c.Spec.VolumeName
	case c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock:
		return "it is a block device, and has no directories", "Use one with volumeMode Filesystem"
	case slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) && !writable:
		return "its access mode is ReadWriteOncePod, so that one kick would keep out all others", "Use one with ReadWriteMany, or with ReadWriteOnce, which keeps all kicks on one node"
	case !writable:
		return "it cannot be written", "Use one with the access mode ReadWriteMany, or ReadWriteOnce, which keeps all kicks on one node"
	}
	return "", ""
}

// kubeNote tells of a directory that may be in a claim.
type kubeNote struct {
	KubernetesChoice
	Image string   // of the agent: git to collect the work is in it
	Dir   string   // of the workspace on this host; when it is gone, nobody wants the work
	Base  kubeBase // that the workspace borrows from
}

func (l *Kubernetes) noteFile(id string) string {
	return filepath.Join(l.config.Dir, "claims", id+".json")
}

// note tells, before there is a directory, that there may be one.
func (b *kubeBox) note() error {
	file := b.launcher.noteFile(b.spec.ID)
	if _, err := os.Lstat(file); err == nil {
		b.begun = true // by a dead kick of this id
	}
	data, err := json.Marshal(kubeNote{b.launcher.config.KubernetesChoice, b.spec.Image, b.spec.Workspace.Dir, b.base})
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = installFile(file, data, 0o600)
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "note the directory in the claim for the reaper", Err: err, Remedy: "kick needs a directory of its own that it can write, see --state-dir"}
	}
	return nil
}

// noted reads the note of a kick; an error of fs.ErrNotExist tells that there is none.
func (l *Kubernetes) noted(id string) (n kubeNote, err error) {
	data, err := os.ReadFile(l.noteFile(id))
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, err
}

// unnote drops the note of a directory that is not there.
func (l *Kubernetes) unnote(id string) error {
	err := os.Remove(l.noteFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// findKept finds the workspace of a kick whose pod is gone or is to go: another one
// collects the work.
func (b *kubeBox) findKept() error {
	n, err := b.launcher.noted(b.spec.ID)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the claim has no directory of it: %w", errPodGone)
	}
	if err != nil {
		return &Error{Kind: ErrRuntime, Op: "collect the work of " + b.spec.ID, Err: err, Remedy: "What had come back before is kept"}
	}
	b.base, b.spec.Image = n.Base, n.Image
	return nil
}

// installs tells a pod whose init container has begun, and perhaps not ended.
func installs(p *corev1.Pod) (begun, runs bool) {
	if p == nil {
		return false, false
	}
	for _, c := range p.Status.InitContainerStatuses {
		begun = begun || c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
		runs = runs || c.State.Running != nil
	}
	return begun, runs
}

// foundNothing tells that the workspace that was to be collected is not there.
func foundNothing(p *corev1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && c.State.Terminated.ExitCode == frame.NoWork
	})
}

// giveBase brings the base's objects to the init container that waits for them, again
// where the connection is cut. It returns when that waits no more.
func (b *kubeBox) giveBase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkoutTimeout)
	defer cancel()
	for since := time.Now(); ; {
		seen, changed, _ := b.eye.look()
		if _, runs := installs(seen.pod); !runs {
			return nil
		}
		conn, err := b.client.Exec(ctx, b.launcher.config.Namespace, seen.pod.Name, kubeInit, []string{kubeOwnShim, "line"}, io.Discard)
		if err == nil {
			err = sendBase(conn, b.spec.Workspace.Objects, b.objects)
			_ = conn.Close() // all is said
		}
		var said *Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &said):
			return said
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(since) > b.launcher.config.Alone, strings.Contains(err.Error(), "orbidden") && !b.client.Settling():
			return &Error{Kind: ErrRuntime, Op: "bring the base to the claim", Err: errors.New(escaped(err.Error())), Remedy: "See whether kick's account may exec into pods, and whether the API server reaches the node"}
		}
		// As a rule it has ended, which the watch tells a moment later.
		select {
		case <-changed:
		case <-ctx.Done():
		case <-time.After(baseAgain):
		}
	}
}

// baseAgain is when a base is offered again, where that did not go.
const baseAgain = 2 * time.Second

// sendBase speaks with the shim that installs, see frame.Install. An *Error is what
// that said of its own trouble.
func sendBase(conn io.ReadWriter, objects string, files map[string]int64) error {
	to := frame.NewWriter(conn)
	list, err := json.Marshal(files)
	if err == nil {
		_, err = to.Stream(frame.Files).Write(list)
	}
	if err = errors.Join(err, to.Write(frame.Whole, nil)); err != nil {
		return err
	}
	from := frame.NewReader(conn)
	var answer bytes.Buffer
	await := func(end frame.Type) error {
		for {
			t, p, err := from.Read()
			switch {
			case err != nil:
				return err
			case t == end:
				return nil
			case t == frame.Data && answer.Len() < maxBaseAnswer:
				answer.Write(p)
			case t == frame.Problem:
				return &Error{Kind: ErrRuntime, Op: "bring the base to the claim", Err: errors.New(escaped(string(p))), Remedy: "See whether the claim is full"}
			default:
				return fmt.Errorf("frame %q of a shim that installs", t)
			}
		}
	}
	if err := await(frame.End); err != nil {
		return err
	}
	var lacks []string
	if err := json.Unmarshal(answer.Bytes(), &lacks); err != nil {
		return err
	}
	if err := sendObjectFiles(to.Stream(frame.Files), objects, files, lacks); err != nil {
		return err
	}
	if err := to.Write(frame.Whole, nil); err != nil {
		return err
	}
	return await(frame.Goodbye)
}

// maxBaseAnswer is more than the names of a million objects take.
const maxBaseAnswer = 64 << 20

// sendObjectFiles writes a tar of the files that lack, which are all on the list.
func sendObjectFiles(to io.Writer, objects string, files map[string]int64, lacks []string) error {
	root, err := os.OpenRoot(objects)
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(to)
	dirs := map[string]bool{}
	for _, name := range lacks {
		if _, ok := files[name]; !ok {
			return fmt.Errorf("the shim asks for %q", name)
		}
		for _, name := range []string{path.Dir(name), name} {
			if dirs[name] {
				continue
			}
			dirs[name] = true
			info, err := root.Lstat(name)
			if err == nil {
				err = sendFile(out, root, name, info)
			}
			if err != nil {
				return err
			}
		}
	}
	return out.Close()
}

// forget implements keeper: it removes a kick's directory from the claim.
func (l *Kubernetes) forget(spec LaunchSpec) error {
	n, err := l.noted(spec.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = l.With(n.KubernetesChoice).clear(spec.ID, spec.Agent)
	}
	if err != nil {
		return err
	}
	return l.unnote(spec.ID)
}

// clear has a pod of kick's own image remove a kick's directory.
func (l *Kubernetes) clear(id, agent string) (err error) {
	if l, err = l.open(); err != nil {
		return err
	}
	c := l.config
	c.Queue, c.Pool = "", "" // it waits in no queue: room that a kick has left is enough
	b := &kubeBox{launcher: &Kubernetes{config: c, clusters: l.clusters, kubeCluster: l.kubeCluster}, client: l.client, mode: frame.CollectMode, clears: true,
		spec: LaunchSpec{ID: id, Agent: agent, Network: NetworkNone, Workspace: Workspace{MountPath: DefaultMountPath}, Limits: clearLimits}}
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.Pending, errPending)
	defer cancel()
	b.eye = l.watch.open(id)
	defer b.eye.close()
	if err = b.make(ctx); err == nil {
		err = b.awaitCleared(ctx)
	}
	if err = errors.Join(err, b.remove()); apierrors.IsNotFound(err) {
		return nil // the claim itself is gone
	}
	if err != nil {
		return fmt.Errorf("remove the directory %s of claim %s: %w", c.workOf(id), c.Claim, err)
	}
	return nil
}

// clearLimits are those of a pod that removes a directory.
var clearLimits = Limits{Memory: 128 << 20, Disk: 64 << 20, Wall: 10 * time.Minute}

// endedWell tells a pod whose container has done what it was there for. The pod's own
// phase may tell later.
func endedWell(p *corev1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
	})
}

// awaitCleared waits until the container that removes a directory has ended well. If
// no node takes its pod, the claim may be gone, and with it the directory.
func (b *kubeBox) awaitCleared(ctx context.Context) error {
	for looked := false; ; {
		seen, changed, blind := b.eye.look()
		n := seen.news()
		if endedWell(seen.pod) {
			return nil
		}
		if !looked && unschedulable(seen.pod) != nil {
			looked = true
			if err := b.lookAtClaim(ctx); err != nil {
				return err
			}
		}
		switch {
		case blind != nil:
			return kubeError("watch the "+b.object.String(), blind)
		case n.phase == kubeEnded:
			return &Error{Kind: ErrRuntime, Op: "run the pod of the " + b.object.String(), Err: errors.New(escaped(n.why)), Remedy: n.remedy}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return &Error{Kind: ErrRuntime, Op: "run the pod of the " + b.object.String(), Err: fmt.Errorf("%w: %s", context.Cause(ctx), escaped(n.why)), Remedy: n.remedy}
		}
	}
}

// reapClaims removes directories of kicks that are dead and whose work nobody wants,
// or has: their workspace on this host is gone.
func (l *Kubernetes) reapClaims() ([]string, error) {
	notes, err := filepath.Glob(l.noteFile("*"))
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, file := range notes {
		id := strings.TrimSuffix(filepath.Base(file), ".json")
		if !idForm.MatchString(id) {
			continue
		}
		release, err := claimNow(id)
		if err != nil {
			continue // its kick lives
		}
		n, err := l.noted(id)
		_, gone := os.Lstat(n.Dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // its kick has ended a moment ago
		case err != nil:
			errs = append(errs, err)
		case n.Dir == "" || errors.Is(gone, fs.ErrNotExist):
			if err := l.forget(LaunchSpec{ID: id, Agent: "reaper"}); err != nil {
				errs = append(errs, err)
			} else {
				removed = append(removed, id)
			}
		}
		release()
	}
	return removed, errors.Join(errs...)
}

// clearing makes the pod that removes a kick's directory, of one that would run it.
func (p *kubePlan) clearing(spec *corev1.PodSpec) {
	spec.InitContainers = nil
	spec.Volumes = spec.Volumes[:1]
	c := &spec.Containers[0]
	c.Image = p.config.ShimImage
	c.Command = []string{kubeOwnShim, "clear", path.Join(kubeVolume, p.config.workOf(p.spec.ID))}
	c.VolumeMounts = []corev1.VolumeMount{{Name: spec.Volumes[0].Name, MountPath: kubeVolume}}
}
