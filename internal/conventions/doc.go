// Package conventions holds no code: its tests hold the whole source tree
// against the rules that no linter knows.
package conventions
