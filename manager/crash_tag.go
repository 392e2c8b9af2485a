//go:build kickcrash

package manager

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// With the build tag kickcrash, the program kills itself with SIGKILL right
// after it journaled the event that KICK_TEST_CRASH_AT names, so that tests
// can find out what a death at any step leaves behind. An event that happens
// more than once is named with its number, as "revoke#2".
func init() {
	at, number, numbered := strings.Cut(os.Getenv("KICK_TEST_CRASH_AT"), "#")
	left := 1
	if numbered {
		var err error
		if left, err = strconv.Atoi(number); err != nil {
			panic(err)
		}
	}
	crashPoint = func(event string) {
		if at == "" || at != event {
			return
		}
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}
