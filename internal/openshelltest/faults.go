package openshelltest

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kickhq/kick/internal/openshellapi/wire"
)

// Faults are ways to behave badly. Each is off in the zero value.
type Faults struct {
	// Renamed: the gateway is of the third generation, which has another name.
	Renamed bool
	// Config changes what is said of a sandbox's policy.
	Config func(*wire.GetSandboxConfigResponse)
	// Lax enforces no endpoint, and gives policies back as they came.
	Lax bool
	// NotReady keeps sandboxes in PROVISIONING with that reason.
	NotReady string
	// ReadyEarly says READY before there is a supervisor, so that the first
	// commands find none (the 15 s gap of Running commands, without its length).
	ReadyEarly bool
	// Gaps is how many commands are refused as UNAVAILABLE.
	Gaps atomic.Int64
	// WatchEnds ends each watch after that many events.
	WatchEnds int
	// LogLines floods the answer with logs.
	LogLines int
	// LogBytes gives as many lines as were asked for, each so long.
	LogBytes int
	// ExecEnds cuts a command's stream when it has sent that many bytes of output,
	// without an exit; ExecExit makes of each exit that code.
	ExecEnds int64
	ExecExit *int32
	// AfterExit sends more after the exit.
	AfterExit bool
	// Deaf lets calls whose name holds that text hang until the caller gives up.
	Deaf atomic.Pointer[string]
	// Mute does what such calls ask for, and then lets them hang.
	Mute atomic.Pointer[string]
	// Undead: deleted sandboxes stay.
	Undead bool
	// Fails makes each creation fail after a while, with that reason.
	Fails string
}

// hold lets a call hang whose name holds that text.
func hold(ctx context.Context, method string, text *string) error {
	if text == nil || !strings.Contains(method, *text) {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// gap reports whether this command finds no supervisor.
func (f *Faults) gap() error {
	for {
		n := f.Gaps.Load()
		if n <= 0 {
			return nil
		}
		if f.Gaps.CompareAndSwap(n, n-1) {
			return status.Error(codes.Unavailable, "supervisor session not connected")
		}
	}
}

// patience bounds what the gateway waits for in its own sandboxes.
const patience = 15 * time.Second
