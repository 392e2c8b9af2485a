package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kickhq/kick/sandbox"
)

// memorySink keeps artifacts in memory.
type memorySink struct {
	refuse     sandbox.Artifact // Create fails for this one
	breakAfter sandbox.Artifact // the second write fails for this one

	mu      sync.Mutex
	stored  map[string][]byte
	aborted map[sandbox.Artifact]bool
	open    bool
}

func newMemorySink() *memorySink {
	return &memorySink{stored: map[string][]byte{}, aborted: map[sandbox.Artifact]bool{}}
}

func (m *memorySink) Create(a sandbox.Artifact, name string) (sandbox.SinkWriter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return nil, errors.New("two artifacts at once")
	}
	if a == m.refuse {
		return nil, errors.New("the disk is full")
	}
	m.open = true
	return &memoryWriter{sink: m, artifact: a, key: string(a) + "\x00" + name}, nil
}

func (m *memorySink) whole(a sandbox.Artifact) bool { return m.content(a) != nil }

func (m *memorySink) content(a sandbox.Artifact) []byte { return m.get(string(a) + "\x00") }

func (m *memorySink) report(name string) string {
	return string(m.get(string(sandbox.Report) + "\x00" + name))
}

func (m *memorySink) get(key string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored[key]
}

func (m *memorySink) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for key, b := range m.stored {
		list = append(list, fmt.Sprintf("%s (%d bytes)", strings.TrimSuffix(strings.ReplaceAll(key, "\x00", " "), " "), len(b)))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

type memoryWriter struct {
	sink     *memorySink
	artifact sandbox.Artifact
	key      string
	b        bytes.Buffer
	closed   bool
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	if w.closed {
		return 0, errors.New("write after the end of the artifact")
	}
	if w.artifact == w.sink.breakAfter {
		return 0, errors.New("the disk is full")
	}
	return w.b.Write(p)
}

func (w *memoryWriter) Close() error { return w.end(func() { w.sink.stored[w.key] = w.b.Bytes() }) }

func (w *memoryWriter) Abort() error { return w.end(func() { w.sink.aborted[w.artifact] = true }) }

func (w *memoryWriter) end(f func()) error {
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	if w.closed {
		return errors.New("the artifact was ended twice")
	}
	w.closed, w.sink.open = true, false
	f()
	return nil
}
