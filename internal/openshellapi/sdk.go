//go:build openshellsdk

package openshellapi

// This file is where OpenShell's own SDK (github.com/ai-openshell/sdk-go) goes on
// the day when it can be had: Dial then makes a client of the SDK and returns an
// adapter that implements Gateway in its terms, and wire_client.go and package
// wire, whose messages have the same names in the registry of protocol buffers,
// are left out of the build by the tag. Nothing above Gateway changes.
//
// The module proxy that kick is built with does not serve the SDK, so that an
// adapter could not even be compiled. It is not written before it can be tested.

// Dial says that this build has no client.
func Dial(Connection) (Gateway, error) {
	return nil, &Error{Op: "connect to the OpenShell gateway", Code: CodeUnimplemented, Text: "kick was built with the tag openshellsdk, and the SDK's adapter is not written: build it without"}
}
