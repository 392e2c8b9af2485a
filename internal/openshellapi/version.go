package openshellapi

import (
	"fmt"
	"strconv"

	"github.com/kickhq/kick/internal/lazyregexp"
)

// Tested are the versions that are spoken with. The conformance gateway's behaviour
// was taken from 0.1.0 to 0.1.10; patch releases of 0.1 promise to change nothing
// but by addition.
const Tested = "0.1.x"

var versionForm = lazyregexp.New(`^v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})([-+][0-9A-Za-z.+-]{1,64})?$`)

// CheckVersion says why kick does not speak with a gateway of that version, or
// nil. accept is a version outside of the tested range that the operator accepts
// by name; the wire of 0.0.x, on which a policy would arrive without its
// enforcement, cannot be accepted.
func CheckVersion(version, accept string) error {
	m := versionForm.FindStringSubmatch(version)
	if m == nil {
		return fmt.Errorf("the gateway calls its version %.60q, which is none", version)
	}
	major, _ := strconv.Atoi(m[1]) // at most six digits
	minor, _ := strconv.Atoi(m[2])
	switch {
	case major == 0 && minor == 1:
		return nil
	case major == 0 && minor == 0:
		return fmt.Errorf("the gateway is %s, of the first generation (0.0.x): it would take a policy's enforcement for an unknown field and enforce nothing: upgrade it to %s", version, Tested)
	case accept == version:
		return nil
	}
	return fmt.Errorf("the gateway is %s, and kick was tested with %s: set openshell.accept_version to %q if you have tried this one", version, Tested, version)
}
