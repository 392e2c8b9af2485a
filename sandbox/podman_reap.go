package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Preflight implements Preflighter: it runs the image's shell in a container of
// its own, with a workspace, since that is mounted by other means than the rest.
func (l *Podman) Preflight(ctx context.Context) (iso Isolation, err error) {
	if l.config.Network != "" && l.address == nil && CheckPodmanNetwork(l.config.Network) == nil {
		if _, err := l.network(ctx); err != nil {
			return l.isolation(), err
		}
	}
	if _, err := l.install(); err != nil { // makes the directory
		return l.isolation(), err
	}
	dir, err := os.MkdirTemp(l.config.Dir, "preflight-")
	if err != nil {
		return l.isolation(), &Error{Kind: ErrRuntime, Op: "make a workspace", Err: err}
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return runShell(ctx, l, l.config.Image, "a container", Workspace{Dir: dir})
}

// Reap implements Reaper. A container ends with its kick, whose death closes its
// standard input, but stays in Podman's storage. It is removed if the kick's id
// can be claimed, which it cannot while the kick lives, or if it is past its
// deadline. Every service that this state's kicks have used is asked.
func (l *Podman) Reap(ctx context.Context) (removed []string, err error) {
	sockets, err := l.services()
	if err != nil {
		err = &Error{Kind: ErrRuntime, Op: "find the services that kicks have used", Err: err}
	}
	for _, socket := range sockets {
		names, rerr := l.With(PodmanChoice{Socket: socket}).reap(ctx)
		removed, err = append(removed, names...), errors.Join(err, rerr)
	}
	return removed, err
}

func (l *Podman) reap(ctx context.Context) ([]string, error) {
	if _, err := os.Lstat(l.config.Socket); err != nil {
		return nil, nil // no service here, so nothing that it could remove
	}
	asking, stop := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("it has not answered for %v", askTimeout))
	defer stop()
	list, err := l.client.List(asking, labelID)
	if err != nil {
		return nil, &Error{Kind: ErrRuntime, Op: "list the containers of kick at " + l.config.Socket, Err: cmp.Or(context.Cause(asking), err),
			Remedy: "See whether the service works (podman --url unix://" + l.config.Socket + " info); kick gc tries again"}
	}
	here, err := claimOwner()
	if err != nil {
		return nil, err
	}
	removed := map[string]bool{}
	var errs []error
	for _, c := range list {
		id := c.Labels[labelID]
		if !idForm.MatchString(id) || len(c.Names) != 1 || c.Names[0] != "kick-"+id && c.Names[0] != "kick-"+id+collectorGroup {
			continue // not one that this launcher has made
		}
		deadline, err := time.Parse(time.RFC3339, c.Labels[labelDeadline])
		expired := err == nil && time.Now().After(deadline)
		if c.Labels[labelOwner] != here && !expired {
			continue // whether its kick lives, only another place knows
		}
		release, err := claimNow(id)
		if err != nil && !expired {
			continue // its kick lives
		}
		err = removeContainer(ctx, l.client, c.ID)
		if release != nil {
			release()
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		removed[id] = true
	}
	return names(removed), errors.Join(errs...)
}
