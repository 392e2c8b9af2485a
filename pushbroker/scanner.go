package pushbroker

import (
	"context"

	"github.com/kickhq/kick/policy"
)

// ItemKind says what an Item's bytes are.
type ItemKind string

// The kinds.
const (
	BlobItem    ItemKind = "blob"           // content of a file
	CommitItem  ItemKind = "commit"         // a commit object as it is: headers, identities and message
	PathItem    ItemKind = "path"           // a path that a commit adds; Data is the path
	SymlinkItem ItemKind = "symlink-target" // what a symbolic link points to
	BranchItem  ItemKind = "branch"         // the name that the work is pushed under
)

// Item is one run of bytes that would leave with the push.
//
// Every new blob is one item, whatever its path, mode, attributes or size
// below the ingest limits; it is attributed to the first commit and path where
// it appears. Every commit, every added path, every link target and the
// branch's name are items too.
type Item struct {
	Kind   ItemKind
	OID    string // blob (also of a link target) or commit; empty for a path or a branch
	Commit string // new commit in which it first appears; empty for a branch
	Path   string // path there, raw bytes; empty for a commit or a branch
	Mode   uint32 // git mode of the entry (0o100644, 0o120000, ...); 0 for a commit or a branch
	Data   []byte // the bytes; valid, and not to be changed, only during Scan
	Base   Base   // what base holds already; never nil
}

// Base answers what the base commit holds, so that a finding that was there
// before is not called new. An implementation caches and has a byte budget;
// when the budget is spent, the answers are "no", which leaves the finding in.
type Base interface {
	// Blob returns the content of the file or link at path in the base
	// commit's tree. ok is false if there is none, or if it is no blob. The
	// bytes are not to be changed.
	Blob(ctx context.Context, path string) (data []byte, ok bool, err error)
	// Contains reports whether value occurs, as these very bytes, in any file
	// or commit that base reaches. It looks at the base commit's tree before
	// older history. It costs a read of what it has to look at: ask it about a
	// value that a rule has struck, not before.
	Contains(ctx context.Context, value []byte) (bool, error)
}

// Scanner looks for secrets in what would leave. Inspect calls Scan from one
// goroutine at a time. An error means that the item could not be judged, and
// ends the inspection: nothing is pushed.
//
// A finding gets Rule, Level, Message, Remedy, and where known Line, Column,
// Excerpt and Fingerprint from the scanner; Inspect fills in Commit, Path and
// Place where they are empty, and applies the policy's levels and exceptions.
type Scanner interface {
	Scan(ctx context.Context, it Item) ([]policy.Finding, error)
	// Digest names the rules, their versions and their settings: two scanners
	// of one digest find the same. It reveals no held value.
	Digest() string
}

// HeldValues is a Scanner that also looks for values that this process holds.
type HeldValues interface {
	// HeldDigest names the set of values by a keyed digest.
	HeldDigest() string
}
