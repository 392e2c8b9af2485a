// Package frame is the protocol between kick and the shim, the first process
// in a sandbox: length-prefixed frames in both directions on byte streams. It
// uses the standard library alone, since the shim carries it.
//
// A frame is one type byte, a big-endian 32-bit payload length of at most
// MaxPayload, and the payload. What the host receives is a claim of a hostile
// sandbox: Reader caps it, and Conversation (see conversation.go) checks the
// order.
package frame

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxPayload is the largest payload of one frame, 64 KiB: small enough to
// interleave output with artifacts, large enough to cost nothing.
const MaxPayload = 64 << 10

// MaxConfig is the largest Config, sent as several frames.
const MaxConfig = 8 << 20

// Type is the kind of a frame.
type Type byte

// Frames from the shim to the host.
const (
	Ready   Type = 'R' // JSON Readiness: locked down, nothing of the agent has run; waits for Go
	Started Type = 'S' // empty: the command runs
	Stdout  Type = 'O' // bytes
	Stderr  Type = 'E' // bytes
	Look    Type = 'L' // empty: the command has ended and many processes are left; the host looks and answers with Ack
	Exit    Type = 'X' // JSON ExitStatus; everything else in the sandbox is dead. Exactly one.
	Begin   Type = 'B' // JSON ArtifactHeader
	Data    Type = 'D' // bytes of the artifact that was begun
	End     Type = 'F' // JSON ArtifactEnd: the artifact is whole, or broke off
	Problem Type = 'P' // text: something that the shim could not do; ends the conversation
	Goodbye Type = 'Z' // empty: nothing more comes
)

// Frames from the host to the shim.
const (
	ConfigPart Type = 'c' // part of the JSON Config
	ConfigEnd  Type = 'C' // empty: the Config is whole
	Go         Type = 'g' // empty: isolation is proved, begin
	Files      Type = 'f' // part of a tar of the workspace. It follows Go where Config.Sent says so
	Pack       Type = 'p' // part of a git pack with what BaseOID reaches, after the last of Files
	Whole      Type = 'w' // empty: the workspace is whole
	Signal     Type = 's' // one byte: send this signal to the command's process group
	Stop       Type = 'k' // empty: kill everything, collect, say goodbye
	Ack        Type = 'a' // empty: the host has looked; the shim may go on
)

// Mode is what the shim is to do.
type Mode string

const (
	// RunMode checks the base out, runs the command and reports its exit.
	RunMode Mode = "run"
	// CollectMode makes the artifacts of a workspace that is mounted read-only.
	CollectMode Mode = "collect"
	// RunAndCollectMode is both, one after the other in one sandbox.
	RunAndCollectMode Mode = "run-and-collect"
)

// Config is what the shim is told. EgressSecret is for the shim alone and the
// only secret in it; the agent gets Command, Env and Files.
type Config struct {
	Mode    Mode     `json:"mode"`
	Command []string `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"` // "K=V", the command's whole environment but for Inherit
	// Inherit are the names of variables that the command gets as the shim has them,
	// where a gateway has put the way out into them.
	Inherit []string `json:"inherit,omitempty"`
	// Files are written before the command starts, by their absolute paths.
	Files        map[string]string `json:"files,omitempty"`
	WorkDir      string            `json:"workDir"`
	BaseOID      string            `json:"baseOID,omitempty"` // checked out before the command, and where bundles start
	EgressSocket string            `json:"egressSocket,omitempty"`
	// EgressAddress is the gateway's host and port where EgressSocket is empty.
	EgressAddress string `json:"egressAddress,omitempty"`
	EgressSecret  string `json:"egressSecret,omitempty"` // forwarder.Way.Secret
	EgressPin     string `json:"egressPin,omitempty"`    // forwarder.Way.Pin
	EgressPort    int    `json:"egressPort,omitempty"`   // loopback port that is forwarded to the gateway
	WallMS        int64  `json:"wallMS,omitempty"`       // from the command's start; 0: none
	ArtifactMax   int64  `json:"artifactMax,omitempty"`
	// Pause makes the shim wait for Ack when it has sent Exit: the sandbox goes
	// with the shim, and the host has to look at it first.
	Pause bool `json:"pause,omitempty"`
	// CheckpointMS is how often, at most, a checkpoint is made while the command runs,
	// in milliseconds. 0: never.
	CheckpointMS int64 `json:"checkpointMS,omitempty"`
	// Sent tells that the workspace comes as frames after Go, since the host and
	// the sandbox have no directory in common.
	Sent bool `json:"sent,omitempty"`
	// Objects is where the shim keeps the objects of the base that were sent. Empty:
	// where a runtime would have mounted them.
	Objects string `json:"objects,omitempty"`
	// Show are files that the shim reads for the host, which cannot look into the
	// sandbox, at most MaxShown bytes of each. Of a symbolic link it is where that
	// leads.
	Show []string `json:"show,omitempty"`
	// Canaries are tried when the sandbox has its kick, where it was made before
	// that; see Wait.
	Canaries []string `json:"canaries,omitempty"`
	// Watch are limits that the shim holds, where the host cannot look.
	Watch *Watch `json:"watch,omitempty"`
	// Witness is a file that only Landlock keeps from being opened; the shim
	// tries to. Empty: the runtime does not use Landlock.
	Witness string `json:"witness,omitempty"`
	// Jail is the embedded runtime's own part, a Jail, for its first stage.
	Jail json.RawMessage `json:"jail,omitempty"`
}

// Readiness is what the shim tried in the locked-down sandbox before anything
// of the agent ran, for what /proc does not show. Names are property names;
// an empty string is a denial as it should be, anything else what went wrong.
type Readiness struct {
	Probes map[string]string `json:"probes,omitempty"`
	// Shown are the files of Config.Show that could be read, by name.
	Shown map[string]string `json:"shown,omitempty"`
}

// ShownShim among Config.Show is the SHA-256 of the shim itself, in hex.
const ShownShim = "shim"

// ShownLandlock among Config.Show is the version of the kernel's Landlock; a name that
// begins with ShownProgram is the SHA-256 of the file of that path, in hex, or of what
// it is a link to, with that's path before it.
const (
	ShownLandlock = "landlock"
	ShownProgram  = "program:"
)

// MaxShown is how much of a file of Config.Show is passed on, in bytes.
const MaxShown = 16 << 10

// Watch are limits that the shim holds. 0: none.
type Watch struct {
	Disk      int64 `json:"disk,omitempty"`      // bytes in WorkDir
	Processes int   `json:"processes,omitempty"` // of the command; the kernel refuses more,
	Uncounted bool  `json:"uncounted,omitempty"` // or it does not count them, and the command is killed that has so many
	// Memory is how many bytes of resident and shared memory the command may have,
	// where no control group is seen that would tell, or before one is full.
	Memory int64 `json:"memory,omitempty"`
	// Kernel tells that the kernel is a machine's in which nothing else runs, so that
	// what it kills for want of memory counts as killed for the memory limit.
	Kernel bool `json:"kernel,omitempty"`
}

// Usage is what the shim has seen of the command where it watches.
type Usage struct {
	Memory    int64 `json:"memory,omitempty"` // bytes, at most
	Processes int   `json:"processes,omitempty"`
	Disk      int64 `json:"disk,omitempty"`      // bytes in WorkDir, at most
	OOMKills  int64 `json:"oomKills,omitempty"`  // how often processes were killed for the memory limit, by the kernel or the shim
	DiskLimit bool  `json:"diskLimit,omitempty"` // Watch.Disk was reached
	Full      bool  `json:"full,omitempty"`      // Watch.Processes was reached
}

// Wait is what the shim is told on its command line where it waits for a host
// that comes over a connection.
type Wait struct {
	Jail    Jail  `json:"jail"`
	AloneMS int64 `json:"aloneMS"` // how long it waits for a host, in milliseconds
	// Inherit are the variables that it keeps, for Config.Inherit.
	Inherit []string `json:"inherit,omitempty"`
	// Canaries are addresses, HOST:PORT, that a sandbox without a network cannot
	// reach. The shim is ready when it cannot.
	Canaries []string `json:"canaries,omitempty"`
	// Standby is for a pod that is made before its kick: the first host may come
	// whenever it likes, and says in Config.Canaries what cannot be reached.
	Standby bool `json:"standby,omitempty"`
	// Inherited tells that what it listens at is its descriptor ListenerFD, since who
	// comes does so from outside of everything that the sandbox sees.
	Inherited bool `json:"inherited,omitempty"`
}

// NoServer is the exit code of a connection that found no shim to connect with.
const NoServer = 69

// Install is what the shim is told on its command line where it prepares a pod: it
// copies itself to the file Shim, and makes the directory Work, or, if that is Kept,
// finds it there and ends with the code NoWork otherwise.
type Install struct {
	Shim string `json:"shim"`
	Work string `json:"work"`
	Kept bool   `json:"kept,omitempty"`
	// Base is a directory for objects of the base, and Objects the digest of a list of
	// those that have to be there. If they are not, the host connects in at most
	// WaitMS milliseconds, sends the list, as frames Files with one JSON object of names
	// and sizes and one of another kind, gets the names of what lacks as Data and End,
	// and sends these as Files and Whole; Goodbye tells that they are there.
	Base    string `json:"base,omitempty"`
	Objects string `json:"objects,omitempty"`
	WaitMS  int64  `json:"waitMS,omitempty"`
}

// NoWork is the code with which the shim ends where the workspace that it is to find
// is not there.
const NoWork = 3

// ListenerFD is the descriptor of Wait.Inherited.
const ListenerFD = 3

// ExitStatus is the end of the command.
type ExitStatus struct {
	Code    int    `json:"code"`             // -1 if it was killed by a signal or never ran
	Signal  int    `json:"signal,omitempty"` //
	Timeout bool   `json:"timeout,omitempty"`
	Error   string `json:"error,omitempty"` // the command could not be started
	Usage   *Usage `json:"usage,omitempty"` // with Config.Watch
}

// ArtifactHeader begins an artifact.
type ArtifactHeader struct {
	Kind string `json:"kind"` // sandbox.Artifact
	Name string `json:"name,omitempty"`
}

// ArtifactEnd ends an artifact.
type ArtifactEnd struct {
	Error string `json:"error,omitempty"` // it broke off, and why
}

// ErrTooLarge is a frame or a config over its cap.
var ErrTooLarge = errors.New("frame too large")

// Writer writes frames; its methods may be called at once.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends one frame; a payload over MaxPayload is an error.
func (w *Writer) Write(t Type, payload []byte) error {
	if len(payload) > MaxPayload {
		return ErrTooLarge
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf[:0], byte(t), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(w.buf[1:], uint32(len(payload)))
	w.buf = append(w.buf, payload...)
	_, err := w.w.Write(w.buf)
	return err
}

// WriteJSON sends one frame with v as JSON.
func (w *Writer) WriteJSON(t Type, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Write(t, b)
}

// WriteConfig sends c in parts.
func (w *Writer) WriteConfig(c Config) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if len(b) > MaxConfig {
		return fmt.Errorf("configuration of %d bytes: %w", len(b), ErrTooLarge)
	}
	for len(b) > 0 {
		n := min(len(b), MaxPayload)
		if err := w.Write(ConfigPart, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return w.Write(ConfigEnd, nil)
}

// Stream returns a writer that sends what it gets as frames of type t.
func (w *Writer) Stream(t Type) io.Writer { return stream{w, t} }

type stream struct {
	w *Writer
	t Type
}

func (s stream) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		k := min(len(p), MaxPayload)
		if err := s.w.Write(s.t, p[:k]); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

// Reader reads frames. It is not for use by several goroutines at once.
type Reader struct {
	r   io.Reader
	buf []byte
}

// NewReader returns a Reader from r, which should be buffered.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read returns the next frame; the payload is valid until the next call. At a
// clean end it returns io.EOF, within a frame io.ErrUnexpectedEOF.
func (r *Reader) Read() (Type, []byte, error) {
	var h [5]byte
	if _, err := io.ReadFull(r.r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("frame %q of %d bytes: %w", h[0], n, ErrTooLarge)
	}
	if cap(r.buf) < int(n) {
		r.buf = make([]byte, max(int(n), 1<<10))
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Type(h[0]), b, nil
}

// ReadConfig reads the parts of a Config.
func (r *Reader) ReadConfig() (Config, error) {
	var b []byte
	for {
		t, p, err := r.Read()
		switch {
		case err != nil:
			return Config{}, err
		case t == ConfigEnd:
			var c Config
			err := json.Unmarshal(b, &c)
			return c, err
		case t != ConfigPart:
			return Config{}, fmt.Errorf("frame %q where a configuration was due", t)
		case len(b)+len(p) > MaxConfig:
			return Config{}, ErrTooLarge
		}
		b = append(b, p...)
	}
}
