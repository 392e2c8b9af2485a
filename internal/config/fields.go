package config

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/internal/spelling"
	"github.com/kickhq/kick/sandbox"
)

// Runtimes are the values of runtime that this version can run.
var Runtimes = []string{"embedded", "podman", "openshell", "kubernetes", "kubevirt"}

// What is done with the commits of a kick.
const (
	PublishPR     = "pr"     // push a branch and open a pull request
	PublishBranch = "branch" // push a branch
	PublishNone   = "none"   // keep them, and stop after the verdict
)

// Value is a setting and where it came from: "kick.yaml:12
// agents.scanner.sandbox.timeout_s", "default", or "kind claude".
type Value[T any] struct {
	Value  T      `json:"value"`
	Source string `json:"source"`
}

// The blocks hold what a file says; nil is what it does not say.
type (
	sandboxBlock struct {
		enabled      *Value[bool]
		runtime      *Value[string]
		image        *Value[string]
		podmanSocket *Value[string]
		kubernetes   *Value[sandbox.KubernetesChoice]
		kubeVirt     *Value[sandbox.KubeVirtChoice]
		ociRuntime   *Value[string]
		network      *Value[string]
		envAllowlist *Value[[]string]
		networkMode  *Value[sandbox.NetworkMode]
		timeout      *Value[time.Duration]
		workspaceDir *Value[string]
		policy       *Value[string]
		limits       limitsBlock
		openShell    openShellBlock
	}
	limitsBlock struct {
		cpus      *Value[float64]
		memory    *Value[int64]
		processes *Value[int]
		disk      *Value[int64]
		output    *Value[int64]
	}
	agentBlock struct {
		name    string
		source  string
		kind    *Value[string]
		model   *Value[string]
		command *Value[[]string]
		repo    *Value[string]
		base    *Value[string]
		publish *Value[string]
		env     map[string]Value[string]
		sandbox sandboxBlock
	}
)

// field is one key of a mapping: the reader and the published schema are made
// from the same row.
type field[T any] struct {
	key    string
	doc    string
	schema object // JSON Schema of the value
	decode func(d *decoder, p place, dst *T)
}

// decodeMapping reads a mapping whose keys are all known.
func decodeMapping[T any](d *decoder, p place, dst *T, fields []field[T]) {
	for _, e := range d.mapping(p) {
		i := slices.IndexFunc(fields, func(f field[T]) bool { return f.key == e.key })
		if i >= 0 {
			fields[i].decode(d, e.place, dst)
			continue
		}
		keys := make([]string, len(fields))
		for i, f := range fields {
			keys[i] = f.key
		}
		remedy := "use one of " + strings.Join(keys, ", ")
		if near := spelling.Nearest(strings.ToLower(e.key), keys); near != "" {
			remedy = "did you mean " + near + "?"
		}
		d.problem(e.at, "unknown key", remedy)
	}
}

// set stores what read found under the name of its source.
func set[T any](d *decoder, p place, dst **Value[T], read func(*decoder, place) (T, bool)) {
	if v, ok := read(d, p); ok {
		*dst = &Value[T]{Value: v, Source: d.source(p)}
	}
}

// setUnlessZero is set for the keys whose zero value means "not set" in Hive.
func setUnlessZero[T comparable](d *decoder, p place, dst **Value[T], read func(*decoder, place) (T, bool)) {
	var zero T
	if v, ok := read(d, p); ok && v != zero {
		*dst = &Value[T]{Value: v, Source: d.source(p)}
	}
}

var topFields = []field[Config]{
	{"agent_sandbox", "What all sandboxed agents share, and the first of two gates: an agent runs in a sandbox when this block and its own are enabled.",
		mappingSchema(sandboxFields), func(d *decoder, p place, c *Config) { decodeMapping(d, p, &c.global, sandboxFields) }},
	{"agents", "The agents by name.", agentsSchema, decodeAgents},
}

var sandboxFields = []field[sandboxBlock]{
	{"enabled", "Opens this gate. Both agent_sandbox.enabled and agents.NAME.sandbox.enabled are needed. Default: false.",
		object{"type": "boolean"}, func(d *decoder, p place, b *sandboxBlock) { set(d, p, &b.enabled, (*decoder).boolean) }},
	{"runtime", "What isolates the agent: embedded (the kernel, with the host's programs), podman (a container of an image), openshell (a sandbox of an OpenShell gateway), kubernetes (a Job) or kubevirt (a virtual machine). Default: embedded.",
		enumSchema(Runtimes), func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.runtime, readRuntime) }},
	{"image", "Container image of the agent, for runtimes that use images: by id, by name with a digest, or by name, which is looked up once a kick. It is never pulled. The embedded runtime uses the host's programs.",
		object{"type": "string"}, func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.image, readWord) }},
	{"podman_socket", "The Podman service's socket, as unix:///path. Default: CONTAINER_HOST, else the user's own service, or the system's as root.",
		object{"type": "string"}, func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.podmanSocket, readWord) }},
	{"podman_oci_runtime", "The program that the Podman service must start containers with; it is the service's setting (runtime in containers.conf), and a kick on a service with another one does not start. runsc, krun and kata have a kernel of their own, into which nothing outside can look: they need the weakness guest-kernel accepted. Default: crun or runc, whichever the service has.",
		enumSchema(sandbox.OCIRuntimes), func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.ociRuntime, readOCIRuntime) }},
	{"podman_network", "A network of the Podman service that was made for such agents, by name, which the agent is in besides what network_mode gives. Whoever names one accepts that the agent reaches what is in it, past the egress gateway. Never host or bridge. Default: none.",
		object{"type": "string"}, func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.network, readPodmanNetwork) }},
	{"kubernetes", "The cluster, and what pods need there. An agent's block replaces the global one as a whole.",
		mappingSchema(kubernetesFields), decodeKubernetes},
	{"kubevirt", "The cluster, and what machines need there. An agent's block replaces the global one as a whole.",
		mappingSchema(kubeVirtFields), decodeKubeVirt},
	{"env_allowlist", "Names of environment variables that are taken from the host. A credential's name is refused, and so is a credential's value when the kick starts. The agent's list replaces the global one. Default: none.",
		object{"type": "array", "items": object{"type": "string", "pattern": envName.String()}, "uniqueItems": true},
		func(d *decoder, p place, b *sandboxBlock) { set(d, p, &b.envAllowlist, readAllowlist) }},
	{"network_mode", "restricted: one way out, the egress gateway. none: no way out. Default: restricted.",
		enumSchema(networkModes), func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.networkMode, readNetworkMode) }},
	{"timeout_s", "Seconds from the agent's start until everything is killed and the work collected. 0 means not set. Default: 2700.",
		object{"type": "integer", "minimum": 0, "maximum": maxTimeout},
		func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.timeout, readTimeout) }},
	{"workspace_dir", "Absolute directory on the host in which the workspaces are made. Default: the state directory.",
		object{"type": "string", "pattern": "^(/.*)?$"}, func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.workspaceDir, readDirectory) }},
	{"policy", "The policy file, which says what may be pushed and how; a relative path is from this file's directory. It is the operator's, never one of the repository that is worked on. Default: built in.",
		object{"type": "string"}, func(d *decoder, p place, b *sandboxBlock) { setUnlessZero(d, p, &b.policy, readPolicy) }},
	{"openshell", "The gateway that runtime openshell uses. An agent's keys go over the global ones, key by key.",
		mappingSchema(openShellFields), func(d *decoder, p place, b *sandboxBlock) { decodeMapping(d, p, &b.openShell, openShellFields) }},
	{"limits", "Limits of one sandbox. An agent's limit goes over the global one, key by key.",
		mappingSchema(limitFields), func(d *decoder, p place, b *sandboxBlock) { decodeMapping(d, p, &b.limits, limitFields) }},
}

var limitFields = []field[limitsBlock]{
	{"cpus", "CPU cores; fractions are allowed. Default: not limited.",
		object{"type": "number", "exclusiveMinimum": 0, "maximum": maxCPUs}, func(d *decoder, p place, b *limitsBlock) { set(d, p, &b.cpus, readCPUs) }},
	{"memory", "Memory of all processes together, with its unit. Default: 8GiB.", sizeSchema,
		func(d *decoder, p place, b *limitsBlock) { set(d, p, &b.memory, sizeReader(minMemory, maxMemory)) }},
	{"processes", "Processes and threads at once. Default: 1024.",
		object{"type": "integer", "minimum": minProcesses, "maximum": maxProcesses},
		func(d *decoder, p place, b *limitsBlock) { set(d, p, &b.processes, readProcesses) }},
	{"disk", "What the workspace may hold, with its unit; /tmp and the home directory have as much each. Default: 10GiB.", sizeSchema,
		func(d *decoder, p place, b *limitsBlock) { set(d, p, &b.disk, sizeReader(minDisk, maxDisk)) }},
	{"output", "Output that is kept, with its unit; of what exceeds it the last 64KiB are. Default: 32MiB.", sizeSchema,
		func(d *decoder, p place, b *limitsBlock) { set(d, p, &b.output, sizeReader(minOutput, maxOutput)) }},
}

var agentFields = []field[agentBlock]{
	{"kind", "A coding agent whose command is known, see kick agents; it needs a model route in the policy. Default, when there is no command: claude.",
		object{"enum": agents.Names()}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.kind, readKind) }},
	{"model", "The model that an agent with a kind uses. Default: the only one that the policy's route names, else the agent's own choice.",
		object{"type": "string", "pattern": agents.ModelPattern}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.model, readModel) }},
	{"command", "The agent's command line: a list of words, or one string for sh -c. The task is in .hive/kick-prompt.txt.",
		object{"anyOf": []object{
			{"type": "string", "minLength": 1},
			{"type": "array", "minItems": 1, "maxItems": maxWords, "items": object{"type": []string{"string", "number", "boolean"}}},
		}}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.command, readCommand) }},
	{"repo", "Git URL without a credential, or absolute path, of the repository to work on. Default: the current checkout.",
		object{"type": "string", "minLength": 1}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.repo, readRepo) }},
	{"base", "Branch to start from, without refs/heads/. Default: the repository's default branch.",
		object{"type": "string", "minLength": 1}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.base, readBranch) }},
	{"publish", "What is done with the commits: pr pushes a branch and opens a pull request, branch only pushes, none keeps them here. Default: pr where the forge has pull requests, else branch.",
		object{"enum": publishValues}, func(d *decoder, p place, b *agentBlock) { set(d, p, &b.publish, readPublish) }},
	{"env", "Environment variables and their values, as written. Credentials are refused by name and by value; the value " + credential.DummyKey + " is allowed.",
		object{"type": []string{"object", "null"}, "propertyNames": object{"pattern": envName.String()},
			"additionalProperties": object{"type": []string{"string", "number", "boolean"}}}, decodeEnv},
	{"sandbox", "What differs for this agent from agent_sandbox, and the second gate.",
		mappingSchema(sandboxFields), func(d *decoder, p place, b *agentBlock) { decodeMapping(d, p, &b.sandbox, sandboxFields) }},
}

// agentName is what fits a branch (kick/NAME/ID) and a label of every runtime.
var agentName = lazyregexp.New(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$`)

// IsAgentName reports whether name can be an agent's: 1 to 63 lower-case
// letters, digits, - and _, a letter or digit at both ends.
func IsAgentName(name string) bool { return agentName.MatchString(name) }

func decodeAgents(d *decoder, p place, c *Config) {
	for _, e := range d.mapping(p) {
		if !IsAgentName(e.key) {
			d.problem(e.at, "is not a name for an agent", "use 1 to 63 lower-case letters, digits, - and _, and begin and end with a letter or digit")
			continue
		}
		a := agentBlock{name: e.key, source: d.source(e.at)}
		decodeMapping(d, e.place, &a, agentFields)
		if a.kind != nil && a.command != nil {
			d.problem(e.at, "has a command and a kind", "keep one of the two: a kind stands for a command")
		}
		if a.model != nil && a.command != nil {
			d.problem(e.at, "has a command and a model", "keep one of the two: the command chooses its model by itself")
		}
		c.agents = append(c.agents, a)
	}
}

func decodeEnv(d *decoder, p place, a *agentBlock) {
	a.env = map[string]Value[string]{}
	for _, e := range d.mapping(p) {
		if !checkEnvName(d, e.at, e.key) {
			continue
		}
		v, ok := readLiteral(d, e.place)
		if ok && v != credential.DummyKey && credential.IsName(e.key) {
			d.problem(e.at, "names a credential", "remove it: nothing secret enters a sandbox; write "+credential.DummyKey+" if the agent insists on some value")
			ok = false
		}
		if ok {
			a.env[e.key] = Value[string]{Value: v, Source: d.source(e.place)}
		}
	}
}

var envName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)

func checkEnvName(d *decoder, p place, name string) bool {
	if envName.MatchString(name) {
		return true
	}
	d.problem(p, shown(name)+" is not the name of an environment variable", "use letters, digits and _, without patterns, and do not begin with a digit")
	return false
}

func readAllowlist(d *decoder, p place) ([]string, bool) {
	items, ok := d.list(p, "names of variables")
	if !ok {
		return nil, false
	}
	names := []string{}
	for _, it := range items {
		name, ok := d.text(it, "the name of a variable")
		switch {
		case !ok || !checkEnvName(d, it, name):
		case credential.IsName(name):
			d.problem(it, name+" names a credential", "remove it: no credential enters a sandbox; pushing and model keys are handled outside of it")
		case slices.Contains(names, name):
			d.problem(it, name+" is listed twice", "remove one of the two")
		default:
			names = append(names, name)
		}
	}
	return names, true
}

// oneOf reads one of a few words; other maps further words to what to do.
func oneOf(d *decoder, p place, allowed []string, other map[string]string) (string, bool) {
	list := strings.Join(allowed, ", ")
	v, ok := d.text(p, "one of "+list)
	if !ok || v == "" || slices.Contains(allowed, v) {
		return v, ok
	}
	remedy := "use " + list
	if len(allowed) > 1 {
		remedy = "use one of " + list
	}
	if near := spelling.Nearest(strings.ToLower(v), allowed); near != "" {
		remedy = "did you mean " + near + "?"
	}
	if r := other[v]; r != "" {
		remedy = r
	}
	d.problem(p, "is "+shown(v), remedy)
	return "", false
}

func readRuntime(d *decoder, p place) (string, bool) { return oneOf(d, p, Runtimes, nil) }

var networkModes = []string{string(sandbox.NetworkRestricted), string(sandbox.NetworkNone)}

func readNetworkMode(d *decoder, p place) (sandbox.NetworkMode, bool) {
	const why = "a sandbox never has a network of its own: use restricted, whose one way out is the egress gateway, or none"
	v, ok := oneOf(d, p, networkModes, map[string]string{"bridge": why, "host": why})
	return sandbox.NetworkMode(v), ok
}

func readOCIRuntime(d *decoder, p place) (string, bool) {
	return oneOf(d, p, sandbox.OCIRuntimes, nil)
}

func readPodmanNetwork(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "the name of a network")
	if err := sandbox.CheckPodmanNetwork(v); ok && err != nil {
		d.problem(p, err.Error(), "name a network that was made for agents (podman network create --internal NAME), or remove the key")
		return "", false
	}
	return v, ok
}

var publishValues = []string{PublishPR, PublishBranch, PublishNone}

func readPublish(d *decoder, p place) (string, bool) { return nonEmpty(d, p, publishValues) }
func readKind(d *decoder, p place) (string, bool)    { return nonEmpty(d, p, agents.Names()) }

func readModel(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "the name of a model")
	if ok && agents.CheckModel(v) != nil {
		d.problem(p, shown(v)+" is no name of a model", "write it as its provider does")
		return "", false
	}
	return v, ok
}

func nonEmpty(d *decoder, p place, allowed []string) (string, bool) {
	v, ok := oneOf(d, p, allowed, nil)
	if ok && v == "" {
		d.problem(p, "is empty", "use one of "+strings.Join(allowed, ", ")+", or remove the key")
	}
	return v, ok && v != ""
}

// readWord reads text without spaces and control characters, or "".
func readWord(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "text")
	if ok && strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		d.problem(p, "holds a space or a control character", "remove it")
		return "", false
	}
	return v, ok
}

func readDirectory(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "a directory")
	if ok && v != "" && !path.IsAbs(v) {
		d.problem(p, "is a relative path", "write an absolute one, beginning with /")
		return "", false
	}
	return v, ok
}

// readPolicy reads a path and makes it one from the file's directory.
func readPolicy(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "the path of a policy file")
	if ok && v != "" && !filepath.IsAbs(v) {
		v = filepath.Join(filepath.Dir(d.file), v)
	}
	return v, ok
}

// scpForm is the short form of an ssh URL: user@host:path or host:path.
var scpForm = lazyregexp.New(`^[A-Za-z0-9_.@-]+:[^/].*$|^[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+:.+$`)

func readRepo(d *decoder, p place) (string, bool) {
	v, ok := readWord(d, p)
	if ok && (strings.HasPrefix(v, "-") || !strings.Contains(v, "://") && !path.IsAbs(v) && !scpForm.MatchString(v)) {
		d.problem(p, shown(v)+" is neither a git URL nor an absolute path", "write one of them, or remove the key to work on the current checkout")
		return "", false
	}
	return v, ok
}

var badRef = lazyregexp.New(`^-|^/|/$|//|\.\.|@\{|\.lock(/|$)|(^|/)\.|\.$|[ ~^:?*\[\\\x00-\x20\x7f]|^$`)

func readBranch(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "the name of a branch")
	switch {
	case !ok:
	case strings.HasPrefix(v, "refs/"):
		d.problem(p, shown(v)+" is a full ref", "write the branch's name alone, without refs/heads/")
		return "", false
	case badRef.MatchString(v):
		d.problem(p, shown(v)+" cannot be the name of a branch", "write a branch as git branch lists it")
		return "", false
	}
	return v, ok
}

// maxWord is Linux' limit on one argument or environment entry (MAX_ARG_STRLEN,
// 128 KiB with the final NUL), less room for a name.
const (
	maxWord  = 127 << 10
	maxWords = 1000
)

// readLiteral reads a scalar as it is written: 1.10 stays 1.10, and yes stays yes.
func readLiteral(d *decoder, p place) (string, bool) {
	n, ok := d.scalar(p, "text")
	switch {
	case !ok:
	case strings.ContainsRune(n.Value, 0):
		d.problem(p, "holds a NUL character", "remove it")
	case len(n.Value) > maxWord:
		d.problem(p, "is longer than 127 KiB", "put it into a file of the repository or into the prompt")
	default:
		return n.Value, true
	}
	return "", false
}

func readCommand(d *decoder, p place) ([]string, bool) {
	n := d.visit(p)
	if n == nil {
		return nil, false
	}
	if len(n.Content) == 0 {
		return readShellCommand(d, p)
	}
	items, ok := d.list(p, "the command")
	if !ok {
		return nil, false
	}
	if len(items) > maxWords {
		d.problem(p, "has more than 1000 words", "put the command into a script of the repository")
		return nil, false
	}
	var words []string
	for _, it := range items {
		w, ok := readLiteral(d, it)
		if !ok {
			return nil, false
		}
		words = append(words, w)
	}
	if strings.TrimSpace(words[0]) == "" {
		d.problem(items[0], "is empty, but the program's name belongs here", "write the program first, then its arguments")
		return nil, false
	}
	return words, true
}

func readShellCommand(d *decoder, p place) ([]string, bool) {
	v, ok := d.text(p, "a command as a list or as one string")
	if ok && strings.TrimSpace(v) == "" {
		d.problem(p, "is empty", "write a command, or remove the key to run the agent of its kind")
		return nil, false
	}
	if len(v) > maxWord {
		d.problem(p, "is longer than 127 KiB", "put the command into a script of the repository")
		return nil, false
	}
	return []string{"sh", "-c", v}, ok
}

func enumSchema(values []string) object {
	return object{"enum": append(slices.Clone(values), "")}
}

// sourceOf is the form of Value.Source for a place in a file.
func sourceOf(file string, p place) string {
	return fmt.Sprintf("%s:%d %s", path.Base(file), p.node.Line, p.path)
}
