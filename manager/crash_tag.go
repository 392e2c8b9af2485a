//go:build kickcrash

package manager

import (
	"os"
	"syscall"
)

// With the build tag kickcrash, the program kills itself with SIGKILL right
// after it journalled the event that KICK_TEST_CRASH_AT names, so that tests
// can find out what a death at any step leaves behind.
func init() {
	at := os.Getenv("KICK_TEST_CRASH_AT")
	crashPoint = func(event string) {
		if at != "" && at == event {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}
