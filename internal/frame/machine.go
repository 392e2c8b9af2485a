package frame

// In a virtual machine that an operator's image made, kick comes in as a user by
// SSH. It has the shim look at the machine first, plans a sandbox in it, and has the
// shim make that: the structs here are what goes in and out of these two commands, as
// JSON.

// Question is what kick wants to know of a machine.
type Question struct {
	// Paths are patterns of files and directories.
	Paths []string `json:"paths"`
	// Show are files that are read, at most MaxShown bytes of each, and links of
	// which it is told where they lead.
	Show []string `json:"show"`
	// Canaries are addresses, HOST:PORT, that the machine itself must not reach.
	Canaries []string `json:"canaries,omitempty"`
}

// Machine is what there is.
type Machine struct {
	UID      int               `json:"uid"`
	GID      int               `json:"gid"`
	Landlock int               `json:"landlock"` // the version of the kernel's; 0: it has none
	Found    []Found           `json:"found"`
	Shown    map[string]string `json:"shown"`
	// Network is empty, or says which canary can be reached.
	Network string `json:"network,omitempty"`
	// Processes are the user's.
	Processes []Process `json:"processes,omitempty"`
}

// Process is one, by its id and when it was started, in ticks since the boot.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

// Leave is what the shim is told when a sandbox has ended whose machine another kick
// may have: which directory to remove, and which processes of the user were there
// before the sandbox. Any other has so long to end, and is named if it does not.
type Leave struct {
	Dir        string    `json:"dir"`
	Before     []Process `json:"before"`
	PatienceMS int64     `json:"patienceMS"`
}

// Found is a file, a directory or a symbolic link.
type Found struct {
	Path string `json:"path"`
	Dir  bool   `json:"dir,omitempty"`
	Link string `json:"link,omitempty"` // where it leads; empty if it is none
}

// Enclosure is a sandbox to make in a machine: a shim that waits for its host in
// namespaces of its own, at a socket that the sandbox does not see.
type Enclosure struct {
	// Clone are the CLONE_NEW* flags of its namespaces.
	Clone uintptr `json:"clone"`
	// User is who its user is inside.
	User int  `json:"user"`
	Wait Wait `json:"wait"`
}
