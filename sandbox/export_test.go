package sandbox

import "time"

// Shim returns the shim that the tests of this package have built, for those
// in package sandbox_test.
func Shim() []byte { return shimBytes }

// SetAskTimeout sets how long a Podman service may take for an answer.
func SetAskTimeout(d time.Duration) { askTimeout = d }
