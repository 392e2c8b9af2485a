package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/frame"
)

// Where the workspace is in the sandbox alone, what the agent has committed, stashed and
// changed so far is sent from time to time, as one bundle. A process of its own makes
// it, beside the command, since this one's children are the reaper's.

// checkpointShare is the part of the time that may go into making checkpoints.
const checkpointShare = 20

// checkpoints sends checkpoints until stop is closed. Then no other process is left,
// and the one at hand breaks off.
func checkpoints(cfg frame.Config, w *frame.Writer, stop <-chan struct{}) {
	if cfg.CheckpointMS <= 0 || cfg.BaseOID == "" {
		return
	}
	every := time.Duration(cfg.CheckpointMS) * time.Millisecond
	last := ""
	for pause := every; ; {
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		begin := time.Now()
		last = passCheckpoint(cfg, w, last)
		pause = max(every, checkpointShare*time.Since(begin))
	}
}

// passCheckpoint passes on what another process makes, unless it is what the last one
// was. What goes wrong costs this checkpoint alone.
func passCheckpoint(cfg frame.Config, w *frame.Writer, last string) (made string) {
	r, err := startCheckpoint(cfg)
	if err != nil {
		return last
	}
	defer r.Close()
	in := frame.NewReader(bufio.NewReader(r))
	t, p, err := in.Read()
	var h frame.ArtifactHeader
	if err != nil || t != frame.Begin || json.Unmarshal(p, &h) != nil || h.Name == last {
		return last
	}
	if w.WriteJSON(frame.Begin, frame.ArtifactHeader{Kind: frame.Checkpoint}) != nil {
		return last
	}
	for {
		t, p, err := in.Read()
		switch {
		case err != nil:
			_ = w.WriteJSON(frame.End, frame.ArtifactEnd{Error: "its process ended"}) // a host that is gone needs none
			return last
		case w.Write(t, p) != nil:
			return last
		case t == frame.End:
			var end frame.ArtifactEnd
			if json.Unmarshal(p, &end) != nil || end.Error != "" {
				return last
			}
			return h.Name
		}
	}
}

// startCheckpoint starts the process, whose output is the artifact as frames; its name
// is a digest of what it holds.
func startCheckpoint(cfg frame.Config) (*os.File, error) {
	question := frame.Config{WorkDir: cfg.WorkDir, BaseOID: cfg.BaseOID, Objects: cfg.Objects, ArtifactMax: cfg.ArtifactMax}
	for _, kv := range cfg.Env {
		if strings.HasPrefix(kv, "PATH=") {
			question.Env = append(question.Env, kv)
		}
	}
	raw, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	_, err = syscall.ForkExec("/proc/self/exe", []string{"kick-shim", "checkpoint", string(raw)}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{null.Fd(), out.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// checkpoint is that process. The agent works on meanwhile: what git finds half written
// is not in it.
func checkpoint() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if len(os.Args) != 3 {
		return errors.New("checkpoint takes one argument, of what")
	}
	c := &collector{out: frame.NewWriter(os.Stdout), maxDirty: maxDirty, patience: questionMax}
	if err := json.Unmarshal([]byte(os.Args[2]), &c.cfg); err != nil {
		return fmt.Errorf("read of what to make a checkpoint: %w", err)
	}
	if c.cfg.Objects != "" {
		baseObjects = c.cfg.Objects
	}
	defer c.close()
	return c.checkpoint()
}

// checkpointHead is the ref by which a checkpoint names HEAD.
const checkpointHead = "refs/kick/head"

func (c *collector) checkpoint() (err error) {
	if c.root, err = os.OpenRoot(c.cfg.WorkDir); err != nil {
		return err
	}
	if c.view, err = openView(c.cfg, c.root, c.patience, &c.sum); err != nil {
		return err
	}
	// The same changes are the same commit, whenever it is made.
	c.view.env = append(c.view.env, "GIT_AUTHOR_DATE=@1 +0000", "GIT_COMMITTER_DATE=@1 +0000")
	mine, count, err := c.view.newCommits()
	if err != nil {
		return err
	}
	var refs []ref
	if count > 0 {
		refs = append(refs, ref{c.view.head, checkpointHead})
	}
	refs = append(refs, c.view.others(mine, &c.sum)...)
	if r, ok := c.uncommitted(c.view, c.view.status(c.maxDirty)); ok {
		refs = append(refs, r)
	}
	if len(refs) == 0 {
		return nil
	}
	c.rest = c.view.startBundle(refs)
	digest := sha256.Sum256(c.rest.header)
	return c.sendBundleAs(frame.Checkpoint, hex.EncodeToString(digest[:]), c.rest)
}
