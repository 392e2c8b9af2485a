// Package wire is the generated code of kick's own, minimal description of
// OpenShell's v0.1 wire. `make openshell-proto` writes it from the .proto files
// beside it; docs/openshell-wire.md has the field numbers in words. Only the
// client in openshellapi and the conformance gateway in openshelltest use it.
package wire
