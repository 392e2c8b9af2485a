package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/sandbox"
)

// SalvageRequest names the remains of a kick.
type SalvageRequest struct {
	ID      string
	Agent   string
	Image   string // where the launcher uses images
	Dir     string // the live workspace directory
	Mirror  string // mirror generation that it borrows from
	BaseOID string
	Sink    sandbox.Sink
	// AcceptWeaker is what the operator had accepted for the kick.
	AcceptWeaker []string
}

// salvageWall bounds a salvage; bundling gigabytes takes minutes.
const salvageWall = 15 * time.Minute

// Salvage gets the work out of a kick that did not end in order: commits of
// every branch, stashes and uncommitted changes. A fresh sandbox without a
// network reads the workspace, mounted read-only, and its artifacts go to the
// sink. Nothing of the workspace is read, run or followed on the host.
//
// The directory stays. When the Result's Missing is empty and the error nil,
// all of it is in the sink, and the caller may Remove it.
func Salvage(ctx context.Context, l sandbox.Launcher, req SalvageRequest) (sandbox.Result, error) {
	info, err := os.Lstat(req.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox.Result{}, unusable("nothing of it is left to salvage", "workspace %s does not exist", req.Dir)
	case err != nil:
		return sandbox.Result{}, hostError("look at workspace", err)
	case !info.IsDir():
		return sandbox.Result{}, unusable("name the workspace directory itself", "workspace %s is not a directory", req.Dir)
	case !gitcmd.IsOID(req.BaseOID):
		return sandbox.Result{}, unusable("take it from the kick's journal", "base %q is not a full commit id", req.BaseOID)
	case req.Sink == nil:
		return sandbox.Result{}, unusable("give a sink", "salvage without a place to keep the work")
	}
	spec := sandbox.LaunchSpec{
		ID:      req.ID,
		Agent:   req.Agent,
		Image:   req.Image,
		Network: sandbox.NetworkNone,
		Workspace: sandbox.Workspace{
			Dir:     req.Dir,
			BaseOID: req.BaseOID,
			Objects: filepath.Join(req.Mirror, "objects"),
			Sink:    req.Sink,
		},
		Limits:       sandbox.Limits{Wall: salvageWall},
		AcceptWeaker: req.AcceptWeaker,
	}
	lost := ""
	if _, err := os.Stat(spec.Workspace.Objects); req.Mirror == "" || errors.Is(err, fs.ErrNotExist) {
		// Without the base git cannot tell what is new; the archive of the
		// whole work tree, with what git can still read, is what remains.
		spec.Workspace.Objects = ""
		lost = "bundles: the mirror that holds the base is gone"
	}
	res, err := l.Run(ctx, spec)
	if err == nil && (res.Reason != sandbox.ReasonExited && (res.Reason != sandbox.ReasonLost || len(res.Missing) == 0) || len(res.Artifacts)+len(res.Missing) == 0) {
		err = fmt.Errorf("the work was not taken out: %s: %s", res.Reason, res.Detail)
	}
	if lost != "" {
		res.Missing = append(res.Missing, lost)
	}
	return res, err
}

// RestoreCommands returns the shell commands with which a person gets kept
// work back from dir, where a DirSink put it. They are to be run in a fresh
// clone of the repository, not in one that is in use: what an agent made is
// fetched there. The commits come as branch kick-restored/ID; other branches,
// tags, stashes and uncommitted changes come as remote-tracking branches
// kick-restored/ID/heads/..., kick-restored/ID/kick/stash/0,
// kick-restored/ID/kick/uncommitted and so on. Without names of artifacts, all
// that are there are meant. Nothing kept: no command.
func RestoreCommands(dir, id string, artifacts ...sandbox.Artifact) []string {
	var commands []string
	for _, b := range []struct {
		artifact sandbox.Artifact
		command  string // PATH is the artifact's
	}{
		{sandbox.FinalBundle, "git -c fetch.fsckObjects=true fetch --no-tags PATH 'HEAD:refs/heads/kick-restored/" + id + "'"},
		{sandbox.RestBundle, "git -c fetch.fsckObjects=true fetch --no-tags PATH 'refs/*:refs/remotes/kick-restored/" + id + "/*'"},
		{sandbox.Checkpoint, "git -c fetch.fsckObjects=true fetch --no-tags PATH 'refs/*:refs/remotes/kick-restored/" + id + "/*'"},
		{sandbox.DirtyArchive, "mkdir kick-restored-" + id + " && tar -xf PATH -C kick-restored-" + id},
	} {
		if len(artifacts) > 0 && !slices.Contains(artifacts, b.artifact) {
			continue
		}
		path := filepath.Join(dir, string(b.artifact))
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		commands = append(commands, strings.Replace(b.command, "PATH", shellQuote(path), 1))
	}
	return commands
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
