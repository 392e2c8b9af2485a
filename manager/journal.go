package manager

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// crashPoint is told of every entry; only the crash tests' build makes it do
// anything.
var crashPoint = func(event string) {}

// Journal is a kick's append-only record. Outside effects (a sandbox's start,
// a token, a push, a pull request) are in it, on disk, before they happen.
type Journal struct {
	mu sync.Mutex
	f  *os.File
}

// Entry is one line of a journal.
type Entry struct {
	Time   time.Time         `json:"time"`
	Event  string            `json:"event"`
	Fields map[string]string `json:"fields,omitempty"`
}

func openJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if err := endLine(f); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal: %w", err), f.Close())
	}
	return &Journal{f: f}, nil
}

// endLine ends a line that a crash cut, so that it does not take the next one
// with it.
func endLine(f *os.File) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, size-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte("\n"))
	return err
}

// Note appends an entry about something that happened.
func (j *Journal) Note(event string, fields map[string]string) error {
	return j.append(event, fields, false)
}

// Intend appends an entry about an outside effect that is about to happen and
// returns when it is on disk. Without that, the effect must not happen.
func (j *Journal) Intend(event string, fields map[string]string) error {
	return j.append(event, fields, true)
}

func (j *Journal) append(event string, fields map[string]string, sync bool) error {
	b, err := json.Marshal(Entry{Time: time.Now().UTC(), Event: event, Fields: fields})
	if err != nil {
		return fmt.Errorf("journal %s: %w", event, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("journal %s: %w", event, err)
	}
	crashPoint(event)
	if !sync {
		return nil
	}
	if err := j.f.Sync(); err != nil {
		return fmt.Errorf("journal %s: %w", event, err)
	}
	return nil
}

// Close closes the journal's file.
func (j *Journal) Close() error { return j.f.Close() }

// readJournal returns the whole lines of a journal; a last line that a crash
// cut is left out.
func readJournal(path string) ([]Entry, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Entry
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e Entry
		if json.Unmarshal(sc.Bytes(), &e) == nil {
			out = append(out, e)
		}
	}
	return out, sc.Err()
}

// field returns a field of the last entry of an event, and whether there is
// such an entry.
func field(entries []Entry, event, name string) (string, bool) {
	for i := len(entries) - 1; i >= 0; i-- {
		if entries[i].Event == event {
			return entries[i].Fields[name], true
		}
	}
	return "", false
}
