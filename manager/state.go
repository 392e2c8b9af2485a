package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/internal/kickid"
)

// State is kick's state directory. Several kick processes share one.
//
//	mirrors/           mirrors of base branches (workspace.Cache)
//	active/<id>        a symbolic link for every kick that is not finished
//	kicks/<id>/        one kick:
//	  lock             held while a process runs or recovers the kick
//	  journal.jsonl    what happened and what was about to happen: the truth
//	  work/            the live workspace, only while the kick runs
//	  out/             artifacts: bundles, archive, reports
//	  transcript.log   the agent's output, escaped
//	  verdict.json     the broker's decision
//	  result.json      the Outcome
type State struct {
	Dir string
}

// DefaultStateDir returns $XDG_STATE_HOME/kick, or ~/.local/state/kick.
func DefaultStateDir() (string, error) {
	if x := os.Getenv("XDG_STATE_HOME"); x != "" {
		if !filepath.IsAbs(x) {
			return "", fmt.Errorf("XDG_STATE_HOME is %q: it must be an absolute path; set it or pass --state-dir", x)
		}
		return filepath.Join(x, "kick"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("no state directory: HOME and XDG_STATE_HOME are not set; pass --state-dir DIR")
	}
	return filepath.Join(home, ".local", "state", "kick"), nil
}

// OpenState opens or makes the state directory at dir. It must belong to the
// caller and be closed to everybody else.
func OpenState(dir string) (*State, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for _, d := range []string{dir, filepath.Join(dir, "kicks"), filepath.Join(dir, "active"), filepath.Join(dir, "mirrors")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w; pass --state-dir DIR for another place", err)
		}
		if err := checkPrivate(d); err != nil {
			return nil, err
		}
	}
	return &State{Dir: dir}, nil
}

func checkPrivate(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return fmt.Errorf("state directory %s is not a directory", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("state directory %s belongs to uid %d and you are uid %d: pass --state-dir DIR with one of your own", dir, st.Uid, os.Geteuid())
	case fi.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("state directory %s is open to other users (mode %04o): run chmod 700 %s", dir, fi.Mode().Perm(), dir)
	}
	return nil
}

// MirrorsDir is where mirrors of base branches are.
func (s *State) MirrorsDir() string { return filepath.Join(s.Dir, "mirrors") }

// BudgetsDir is where agents' daily budgets are.
func (s *State) BudgetsDir() string { return filepath.Join(s.Dir, "budgets") }

func (s *State) activePath(id string) string { return filepath.Join(s.Dir, "active", id) }

// KickDir is one kick's directory; id must be valid.
func (s *State) KickDir(id string) string { return filepath.Join(s.Dir, "kicks", id) }

// ErrBusy is a kick that another process runs or recovers.
var ErrBusy = errors.New("the kick is running in another process")

// Kick is one kick's directory, locked by this process.
type Kick struct {
	ID      string
	Dir     string
	Journal *Journal

	state *State
	lock  *os.File
}

// NewKick makes the directory of a new kick and locks it.
func (s *State) NewKick() (*Kick, error) {
	id := kickid.New()
	dir := s.KickDir(id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make kick: %w: make the state directory writable, or pass --state-dir DIR for another place", err)
	}
	k, err := s.lockKick(id)
	if err != nil {
		return nil, err
	}
	if err := os.Symlink(filepath.Join("..", "kicks", id), s.activePath(id)); err != nil {
		return nil, errors.Join(fmt.Errorf("make kick: %w", err), k.close())
	}
	return k, nil
}

// lockKick takes the lifetime lock of an existing kick.
func (s *State) lockKick(id string) (*Kick, error) {
	dir := s.KickDir(id)
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock kick %s: %w", id, err)
	}
	// An open-file-description lock: it goes with the process however that
	// ends, and others can ask for it without taking it.
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock kick %s: %w", id, err)
	}
	j, err := openJournal(filepath.Join(dir, "journal.jsonl"))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Kick{ID: id, Dir: dir, Journal: j, state: s, lock: lock}, nil
}

// Path returns a path in the kick's directory.
func (k *Kick) Path(name string) string { return filepath.Join(k.Dir, name) }

// Finish writes the outcome and unlocks the kick. That ends it for ever, unless
// it is unsettled.
func (k *Kick) Finish(o Outcome) error {
	err := writeJSON(k.Path("result.json"), o)
	if err == nil && !o.Unsettled {
		err = k.state.forget(k.ID)
	}
	return errors.Join(err, k.close())
}

func (k *Kick) close() error { return errors.Join(k.Journal.Close(), k.lock.Close()) }

// writeJSON writes v to path so that it is there whole or not at all, also
// after a power cut.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, werr := f.Write(append(b, '\n'))
	if err := errors.Join(werr, f.Sync(), f.Close()); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fmt.Errorf("%w: free disk space, then run `kick gc`", err)
		}
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(tmp, path)
}

// Outcome reads the outcome of a kick; os.ErrNotExist means that it has none
// yet, or that there is no such kick.
func (s *State) Outcome(id string) (Outcome, error) {
	var o Outcome
	b, err := os.ReadFile(filepath.Join(s.KickDir(id), "result.json"))
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return o, fmt.Errorf("result of kick %s: %w", id, err)
	}
	return o, nil
}

// Kicks lists all kick ids, oldest first.
func (s *State) Kicks() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.Dir, "kicks"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if kickid.Valid(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Find resolves an id, a unique prefix of one, or "last".
func (s *State) Find(name string) (string, error) {
	ids, err := s.Kicks()
	if err != nil {
		return "", err
	}
	if len(ids) == 0 {
		return "", fmt.Errorf("there is no kick in %s yet", s.Dir)
	}
	if name == "last" {
		return ids[len(ids)-1], nil
	}
	var found []string
	for _, id := range ids {
		if strings.HasPrefix(id, name) {
			found = append(found, id)
		}
	}
	switch {
	case name == "" || len(found) == 0:
		return "", fmt.Errorf("no kick %q in %s: `kick ls` lists them", name, s.Dir)
	case len(found) > 1:
		return "", fmt.Errorf("%q fits %d kicks, e.g. %s and %s: give more of the id", name, len(found), found[0], found[1])
	}
	return found[0], nil
}
