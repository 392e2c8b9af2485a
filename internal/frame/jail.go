package frame

// Jail is the part of Config that tells the shim's first stage what to build
// around itself. The launcher decides everything; the shim only does it, so
// that what the host checks afterwards is a comparison with its own plan.
type Jail struct {
	// Unshare are the CLONE_NEW* flags of namespaces that are left only after
	// the launcher has placed the process in its cgroup.
	Unshare int `json:"unshare,omitempty"`
	// Hostname of the sandbox.
	Hostname string `json:"hostname"`
	// Entries make up the root file system, in their order.
	Entries []Entry `json:"entries"`
	// Rlimits are set, soft and hard, just before the lock-down.
	Rlimits []Rlimit `json:"rlimits,omitempty"`
	// Capabilities are those that survive the lock-down: none, in earnest.
	Capabilities []int `json:"capabilities,omitempty"`
	// NoNewPrivs sets no_new_privs.
	NoNewPrivs bool `json:"noNewPrivs"`
	// Landlock restricts the sandbox to the paths of its rules.
	Landlock *Landlock `json:"landlock,omitempty"`
	// Filter is the seccomp program: 8 bytes an instruction, as in struct
	// sock_filter of the native byte order.
	Filter []byte `json:"filter,omitempty"`
}

// JailEnv is the environment of the first stage, which lives for milliseconds
// and needs one thread: every further one that the Go runtime starts has to be
// waited for by the second stage's execve. The second stage does not get it.
var JailEnv = []string{"GOMAXPROCS=1", "GOGC=off"}

// EntryKind is what an Entry makes.
type EntryKind string

// The kinds of entries.
const (
	DirEntry     EntryKind = "dir"     // a directory in the root's tmpfs
	FileEntry    EntryKind = "file"    // a file in the root's tmpfs, with Content
	SymlinkEntry EntryKind = "symlink" // a symbolic link to Content
	BindEntry    EntryKind = "bind"    // the host tree FD or Source; or, with Inside, a path in the new root
	TmpfsEntry   EntryKind = "tmpfs"   //
	ProcEntry    EntryKind = "proc"    // of the sandbox's process namespace
	DevptsEntry  EntryKind = "devpts"  // a new instance
)

// Entry is one thing in the sandbox's root. Missing parents are made with mode
// 0755; the target of a mount is made when it is missing.
type Entry struct {
	Kind    EntryKind `json:"kind"`
	Path    string    `json:"path"` // absolute, in the sandbox
	Mode    uint32    `json:"mode,omitempty"`
	Content string    `json:"content,omitempty"`

	// Source is a host path to bind, opened before anything is mounted. FD, if
	// not 0, is an inherited descriptor of a tree that the launcher cloned.
	Source string `json:"source,omitempty"`
	FD     int    `json:"fd,omitempty"`
	// Inside is a path in the new root to bind again.
	Inside string `json:"inside,omitempty"`
	// File tells that a bind's source is not a directory.
	File bool `json:"file,omitempty"`
	// Recursive takes the mounts below a bind's source along.
	Recursive bool `json:"recursive,omitempty"`

	ReadOnly bool   `json:"readOnly,omitempty"`
	NoSuid   bool   `json:"noSuid,omitempty"`
	NoDev    bool   `json:"noDev,omitempty"`
	NoExec   bool   `json:"noExec,omitempty"`
	Options  string `json:"options,omitempty"` // of tmpfs and devpts
}

// Rlimit is one resource limit of the sandbox's processes.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// Landlock are the rules of the sandbox.
type Landlock struct {
	ABI   int            `json:"abi"` // the version that the launcher found in this kernel
	Rules []LandlockRule `json:"rules"`
}

// LandlockRule allows access beneath a path of the sandbox.
type LandlockRule struct {
	Path   string         `json:"path"`
	Access LandlockAccess `json:"access"`
}

// LandlockAccess is a set of rights.
type LandlockAccess string

// The sets of rights.
const (
	AccessList    LandlockAccess = "list"    // list directories
	AccessRead    LandlockAccess = "read"    // and read and execute files, connect to sockets
	AccessDevices LandlockAccess = "devices" // and write files, and device ioctls
	AccessWrite   LandlockAccess = "write"   // everything
)
