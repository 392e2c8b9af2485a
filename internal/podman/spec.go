package podman

// Spec is a container to make, with the fields of libpod's SpecGenerator that
// kick sets. Whatever is not here keeps Podman's default; whatever matters to
// isolation is here, and is set.
type Spec struct {
	Name        string            `json:"name"`
	Image       string            `json:"image"`
	VolumeMode  string            `json:"image_volume_mode"` // of the image's own volumes
	Entrypoint  []string          `json:"entrypoint"`
	Command     []string          `json:"command"`
	Env         map[string]string `json:"env"`
	EnvHost     *bool             `json:"env_host"`
	HTTPProxy   *bool             `json:"httpproxy"`
	UnsetEnvAll *bool             `json:"unsetenvall"`
	Terminal    *bool             `json:"terminal"`
	Stdin       *bool             `json:"stdin"`
	Init        *bool             `json:"init"`
	Labels      map[string]string `json:"labels"`
	Timeout     uint              `json:"timeout"` // seconds, then Podman kills it
	Log         LogConfig         `json:"log_configuration"`
	OCIRuntime  string            `json:"oci_runtime,omitempty"`
	Remove      *bool             `json:"remove"`   // when it ends, whatever ends it
	Volatile    *bool             `json:"volatile"` // its layer is not written to the disk when it is unmounted
	Restart     string            `json:"restart_policy"`
	Systemd     string            `json:"systemd"`
	SdNotify    string            `json:"sdnotifyMode"`
	Hostname    string            `json:"hostname"`
	Health      HealthConfig      `json:"healthconfig"`
	WorkDir     string            `json:"work_dir"`
	Umask       string            `json:"umask"`

	PidNS    Namespace `json:"pidns"`
	UtsNS    Namespace `json:"utsns"`
	IpcNS    Namespace `json:"ipcns"`
	NetNS    Namespace `json:"netns"`
	CgroupNS Namespace `json:"cgroupns"`
	UserNS   Namespace `json:"userns"`
	// Networks are those that a NetNS of mode bridge is in, with nothing asked
	// of them.
	Networks map[string]struct{} `json:"Networks,omitempty"`
	IDMap    *IDMappings         `json:"idmappings,omitempty"`

	User            string   `json:"user"`
	Groups          []string `json:"groups"`
	Passwd          *bool    `json:"manage_password"`
	PasswdEntry     string   `json:"passwd_entry,omitempty"`
	GroupEntry      string   `json:"group_entry,omitempty"`
	Privileged      *bool    `json:"privileged"`
	CapDrop         []string `json:"cap_drop"`
	NoNewPrivileges *bool    `json:"no_new_privileges"`
	SeccompPolicy   string   `json:"seccomp_policy"`
	SeccompProfile  string   `json:"seccomp_profile_path"`
	ReadOnly        *bool    `json:"read_only_filesystem"`
	ReadWriteTmpfs  *bool    `json:"read_write_tmpfs"`
	UseImageHosts   *bool    `json:"use_image_hosts"`
	UseImageResolv  *bool    `json:"use_image_resolve_conf"`
	Mask            []string `json:"mask,omitempty"` // files of /proc to cover

	Mounts    []Mount    `json:"mounts"`
	ShmSize   int64      `json:"shm_size,omitempty"` // bytes
	Resources *Resources `json:"resource_limits,omitempty"`
	Rlimits   []Rlimit   `json:"r_limits"`
}

// LogConfig says where output is logged.
type LogConfig struct {
	Driver string `json:"driver"`
}

// HealthConfig is a health check.
type HealthConfig struct {
	Test []string `json:"Test"`
}

// Namespace says which namespace of a kind a container has.
type Namespace struct {
	Mode  string `json:"nsmode"`
	Value string `json:"value,omitempty"`
}

// IDMappings map user and group ids.
type IDMappings struct {
	UIDMap []IDMap `json:"UIDMap"`
	GIDMap []IDMap `json:"GIDMap"`
}

// IDMap is one range of ids.
type IDMap struct {
	ContainerID int `json:"container_id"`
	HostID      int `json:"host_id"`
	Size        int `json:"size"`
}

// Mount is one mount, as in the OCI runtime specification.
type Mount struct {
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Options     []string `json:"options"`
}

// Resources are the limits of a container's control group.
type Resources struct {
	Memory *Memory `json:"memory,omitempty"`
	Pids   *Pids   `json:"pids,omitempty"`
	CPU    *CPU    `json:"cpu,omitempty"`
}

// Memory limits memory, in bytes. Swap is memory and swap together.
type Memory struct {
	Limit int64 `json:"limit"`
	Swap  int64 `json:"swap"`
}

// Pids limits processes and threads.
type Pids struct {
	Limit int64 `json:"limit"`
}

// CPU limits processor time: Quota microseconds in each Period.
type CPU struct {
	Quota  int64  `json:"quota"`
	Period uint64 `json:"period"`
}

// Rlimit is a resource limit of the first process.
type Rlimit struct {
	Type string `json:"type"` // e.g. "nofile"
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}
