package sandbox

import (
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
	res, err := l.Run(ctx, LaunchSpec{
		ID:      fmt.Sprintf("p%d-%d", os.Getpid(), preflights.Add(1)),
		Agent:   "preflight",
		Image:   l.config.Image,
		Command: []string{"/bin/sh", "-c", ":"},
		Network: NetworkNone,

		Workspace: Workspace{Dir: dir},
	})
	if err == nil && res.ExitCode != 0 {
		err = &Error{Kind: ErrRuntime, Op: "run /bin/sh in a container of " + l.config.Image, Err: errors.New(res.Detail)}
	}
	return res.Isolation, err
}

// Reap implements Reaper. A container ends with its kick, whose death closes its
// standard input, but stays in Podman's storage. It is removed if the kick's id
// can be claimed, which it cannot while the kick lives, or if it is past its
// deadline.
func (l *Podman) Reap(ctx context.Context) ([]string, error) {
	if _, err := os.Lstat(l.config.Socket); err != nil {
		return nil, nil // no service here, so nothing that it could remove
	}
	fail := func(op string, err error) error { return &Error{Kind: ErrRuntime, Op: op, Err: err} }
	list, err := l.client.List(ctx, labelID)
	if err != nil {
		return nil, fail("list the containers of kick", err)
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
