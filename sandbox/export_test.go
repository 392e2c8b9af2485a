package sandbox

// Shim returns the shim that the tests of this package have built, for those
// in package sandbox_test.
func Shim() []byte { return shimBytes }
