package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/spelling"
	"github.com/kickhq/kick/sandbox"
)

// fromDefault is the source of a value that nobody set.
const fromDefault = "default"

// Resolved is everything that holds for one agent: its own setting, else the
// global one, else the default, each with its source.
type Resolved struct {
	Name    string
	Enabled Value[bool] // both gates
	Runtime Value[string]
	Image   Value[string] // empty when the runtime uses none
	// What an operator chooses of Podman; empty: the launcher's own.
	PodmanSocket, PodmanOCIRuntime, PodmanNetwork Value[string]
	Kubernetes                                    Value[sandbox.KubernetesChoice]
	KubeVirt                                      Value[sandbox.KubeVirtChoice]
	EnvAllowlist                                  Value[[]string]
	NetworkMode                                   Value[sandbox.NetworkMode]
	Timeout                                       Value[time.Duration]
	WorkspaceDir                                  Value[string]  // empty: the state directory
	CPUs                                          Value[float64] // 0: not limited
	Memory                                        Value[int64]
	Processes                                     Value[int]
	Disk                                          Value[int64]
	Output                                        Value[int64]
	Kind                                          Value[string] // empty when the agent has a command of its own
	Command                                       Value[[]string]
	Repo                                          Value[string] // empty: the current checkout
	Base                                          Value[string] // empty: the repository's default branch
	Policy                                        Value[string] // path of the policy file; empty: built in
	Publish                                       Value[string] // empty: pr where the forge has pull requests, else branch
	Model                                         Value[string] // that the kind is to use; empty: see agents.Kind.Model
	OpenShell                                     OpenShell
	// Variables are the explicit environment. Env adds what comes from the host,
	// and a kind has variables of its own below these.
	Variables map[string]Value[string]
}

// Agent resolves the settings of one agent, also of one that is not opted in;
// Resolved.Runnable tells.
func (c *Config) Agent(name string) (Resolved, error) {
	i := slices.IndexFunc(c.agents, func(a agentBlock) bool { return a.name == name })
	if i < 0 {
		return Resolved{}, c.unknownAgent(name)
	}
	a := c.agents[i]
	own, all, def := a.sandbox, c.global, sandbox.DefaultLimits()
	r := Resolved{
		Name:             name,
		Enabled:          c.gates(a),
		Runtime:          first(own.runtime, all.runtime, Runtimes[0]),
		Image:            first(own.image, all.image, ""),
		PodmanSocket:     first(own.podmanSocket, all.podmanSocket, ""),
		PodmanOCIRuntime: first(own.ociRuntime, all.ociRuntime, ""),
		PodmanNetwork:    first(own.network, all.network, ""),
		Kubernetes:       first(own.kubernetes, all.kubernetes, sandbox.KubernetesChoice{}),
		KubeVirt:         first(own.kubeVirt, all.kubeVirt, sandbox.KubeVirtChoice{}),
		EnvAllowlist:     first(own.envAllowlist, all.envAllowlist, []string{}),
		NetworkMode:      first(own.networkMode, all.networkMode, sandbox.NetworkRestricted),
		Timeout:          first(own.timeout, all.timeout, def.Wall),
		WorkspaceDir:     first(own.workspaceDir, all.workspaceDir, ""),
		CPUs:             first(own.limits.cpus, all.limits.cpus, def.CPUs),
		Memory:           first(own.limits.memory, all.limits.memory, def.Memory),
		Processes:        first(own.limits.processes, all.limits.processes, def.Processes),
		Disk:             first(own.limits.disk, all.limits.disk, def.Disk),
		Output:           first(own.limits.output, all.limits.output, def.Output),
		Model:            first(a.model, nil, ""),
		Repo:             first(a.repo, nil, ""),
		Base:             first(a.base, nil, ""),
		Policy:           first(own.policy, all.policy, ""),
		Publish:          first(a.publish, nil, ""),
		OpenShell:        resolveOpenShell(own.openShell, all.openShell),
		Variables:        map[string]Value[string]{},
	}
	if r.Image.Value != "" && !usesImage(r.Runtime.Value) {
		r.Image = Value[string]{Source: r.Image.Source + ", not used by runtime " + r.Runtime.Value}
	}
	r.resolveCommand(a)
	for k, v := range a.env {
		r.Variables[k] = v
	}
	return r, nil
}

func (c *Config) unknownAgent(name string) error {
	names := c.Names()
	remedy := "it has no agents: add one below agents"
	if len(names) > 0 {
		remedy = "it has " + strings.Join(names, ", ")
	}
	if near := spelling.Nearest(name, names); near != "" {
		remedy = "did you mean " + near + "?"
	}
	return fmt.Errorf("agent %s is not in %s; %s", shown(name), c.path, remedy)
}

// first takes the first value that is set.
func first[T any](own, all *Value[T], def T) Value[T] {
	switch {
	case own != nil:
		return *own
	case all != nil:
		return *all
	}
	return Value[T]{Value: def, Source: fromDefault}
}

// gates is true when both gates are open; the source names what decided.
func (c *Config) gates(a agentBlock) Value[bool] {
	switch {
	case a.sandbox.enabled == nil:
		return Value[bool]{Source: fromDefault}
	case !a.sandbox.enabled.Value:
		return *a.sandbox.enabled
	case c.global.enabled == nil:
		return Value[bool]{Source: fromDefault + " of agent_sandbox.enabled"}
	case !c.global.enabled.Value:
		return *c.global.enabled
	}
	return *a.sandbox.enabled
}

func (r *Resolved) resolveCommand(a agentBlock) {
	if a.command != nil {
		r.Command = *a.command
		r.Kind = Value[string]{Source: "not used: the agent has a command"}
		return
	}
	r.Kind = first(a.kind, nil, agents.DefaultKind)
	k, _ := agents.Find(r.Kind.Value)
	r.Command = Value[[]string]{Value: k.Command(), Source: "kind " + k.Name}
}

// Runnable says why the agent must not run, and nil when both gates are open.
func (r Resolved) Runnable() error {
	if r.Enabled.Value {
		return nil
	}
	return fmt.Errorf("agent %s is not opted in to the sandbox (%s); set agent_sandbox.enabled and agents.%s.sandbox.enabled to true",
		r.Name, r.Enabled.Source, r.Name)
}

// Limits are the limits in the launcher's terms.
func (r Resolved) Limits() sandbox.Limits {
	return sandbox.Limits{
		CPUs: asked(r.CPUs), Memory: asked(r.Memory), Processes: asked(r.Processes),
		Disk: asked(r.Disk), Output: asked(r.Output), Wall: r.Timeout.Value,
	}
}

// asked is 0 for a value that nobody set: a runtime that cannot hold a limit
// refuses only one that somebody asked for.
func asked[T any](v Value[T]) T {
	if v.Source == fromDefault {
		var none T
		return none
	}
	return v.Value
}

// Env returns the agent's environment: the explicit variables over the
// allowlisted ones, which host (os.LookupEnv) supplies and which may be unset.
// A credential in an allowlisted variable is an error that names the variable
// and never its value.
func (r Resolved) Env(host func(string) (string, bool)) (map[string]string, error) {
	env := map[string]string{}
	for _, name := range r.EnvAllowlist.Value {
		v, ok := host(name)
		if _, explicit := r.Variables[name]; !ok || explicit {
			continue
		}
		if credential.IsName(name) {
			return nil, fmt.Errorf("%s of %s names a credential; remove it from env_allowlist", name, r.EnvAllowlist.Source)
		}
		if kind := credential.Kind(v); kind != "" {
			return nil, fmt.Errorf("the value of %s, allowed by %s, looks like %s; remove it from env_allowlist or clean the variable", name, r.EnvAllowlist.Source, kind)
		}
		if len(v) > maxWord {
			return nil, fmt.Errorf("the value of %s, allowed by %s, is longer than 127 KiB; remove it from env_allowlist", name, r.EnvAllowlist.Source)
		}
		env[name] = v
	}
	for name, v := range r.Variables {
		env[name] = v.Value
	}
	return env, nil
}

// Warnings tells what is allowed but hardly meant, one sentence each.
func (c *Config) Warnings() []string {
	var in, out, images []string
	for _, a := range c.agents {
		if a.sandbox.enabled == nil || !a.sandbox.enabled.Value {
			out = append(out, a.name)
			continue
		}
		in = append(in, a.name)
		if r, err := c.Agent(a.name); err == nil && r.Image.Value == "" && r.Image.Source != fromDefault {
			images = append(images, a.name)
		}
	}
	file := filepath.Base(c.path)
	global := c.global.enabled != nil && c.global.enabled.Value
	var ws []string
	switch {
	case len(c.agents) == 0:
		ws = append(ws, file+" has no agents; add one below agents")
	case global && len(in) == 0:
		ws = append(ws, "agent_sandbox.enabled is true, but no agent is opted in; set agents.NAME.sandbox.enabled to true")
	case !global && len(in) > 0:
		ws = append(ws, "opted in, but agent_sandbox.enabled is not true: "+strings.Join(in, ", ")+"; nothing of them runs until it is")
	case global && len(out) > 0:
		ws = append(ws, "only some agents are opted in, these are not and do not run: "+strings.Join(out, ", ")+"; set agents.NAME.sandbox.enabled to true")
	}
	if len(images) > 0 {
		ws = append(ws, "image is not used by the embedded runtime, which runs the host's programs: "+strings.Join(images, ", ")+"; remove it if that is what you want")
	}
	return ws
}
