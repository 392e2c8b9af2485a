// Package request turns a command line, kick.yaml and the checkout that a
// person stands in into one manager.Request. Every mistake is found here,
// before anything runs.
package request

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/checkout"
	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/gitversion"
	"github.com/kickhq/kick/internal/smallfile"
	"github.com/kickhq/kick/internal/spelling"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
	"github.com/kickhq/kick/workspace"
)

// Options are the command line's.
type Options struct {
	Repo, Base, Agent       string
	Kind, Model             string // of the agent, as in package agents
	ConfigPath, PolicyPath  string
	Runtime                 string
	Prompt                  string
	Timeout                 time.Duration
	Publish                 string
	AcceptReview            bool
	Squash, Signed          bool
	Update                  *manager.Update // of the kick that --update names
	Network                 string
	Env                     []string // NAME=VALUE
	Memory, Disk            string   // sizes, e.g. 4GiB
	Processes               int
	CPUs                    float64
	ProgramDirs             []string
	Image                   string
	Kubernetes              sandbox.KubernetesChoice // of which the flags set a part
	OCIRuntime              string
	OpenShell               sandbox.OpenShellChoice // what the command line says of it
	AcceptWeaker            []string
	GitHubAppID             string
	GitHubAppKey, GitHubAPI string
	Command                 []string
	// Set tells whether a flag was given, by its long name.
	Set func(flag string) bool
}

// maxPrompt bounds a prompt: what fits into a model's context is far less.
const maxPrompt = 1 << 20

// ReadPrompt reads a prompt from a file, or from standard input for "-".
func ReadPrompt(path string) (string, error) {
	if path != "-" {
		b, err := smallfile.Read(path, maxPrompt)
		if err != nil {
			return "", fmt.Errorf("read the prompt: %w; - stands for standard input", err)
		}
		return string(b), nil
	}
	b, err := io.ReadAll(io.LimitReader(os.Stdin, maxPrompt+1))
	if err != nil {
		return "", fmt.Errorf("read the prompt: %w", err)
	}
	if len(b) > maxPrompt {
		return "", errors.New("the prompt on standard input is larger than 1 MiB: shorten it, or put the material into the repository")
	}
	return string(b), nil
}

// Build makes the request. Its errors are the user's to mend.
func Build(ctx context.Context, o Options) (manager.Request, error) {
	req := manager.Request{
		Agent: o.Agent, Prompt: o.Prompt, Command: o.Command, AcceptReview: o.AcceptReview, Squash: o.Squash, Signed: o.Signed,
		ProgramDirs: o.ProgramDirs, AcceptWeaker: o.AcceptWeaker,
	}
	if err := update(&req, &o); err != nil {
		return req, err
	}
	agent, err := configured(o)
	if err != nil {
		return req, err
	}
	if agent != nil {
		if err := apply(&req, &o, *agent); err != nil {
			return req, err
		}
	}
	if err := kindOf(&req, &o); err != nil {
		return req, err
	}
	if req.Agent == "" {
		req.Agent = defaultAgent
	}
	if !config.IsAgentName(req.Agent) {
		return req, fmt.Errorf("--agent %q: an agent's name becomes part of a branch name; use up to 63 lower-case letters, digits, - and _", req.Agent)
	}
	if len(req.Command) == 0 {
		return req, errors.New("no command for the agent: give one after --, as in `kick run -- ./agent`, name a known agent with --agent-kind (`kick agents` lists them), or one of kick.yaml with --agent")
	}
	if len(o.Prompt) > maxPrompt {
		return req, errors.New("--prompt is larger than 1 MiB: shorten it, or put the material into the repository")
	}
	if err := settings(&req, o); err != nil {
		return req, err
	}
	if req.Policy, err = LoadPolicy(o.PolicyPath); err != nil {
		return req, err
	}
	req.Notes = append(req.Notes, req.Policy.Warnings(time.Now())...)
	req.Identity = manager.DefaultIdentity(req.Agent)
	if err := places(ctx, &req, o); err != nil {
		return req, err
	}
	if err := equip(ctx, &req, o); err != nil {
		return req, err
	}
	req.Held = Held(os.Environ())
	if err := target(&req, o); err != nil {
		return req, err
	}
	if signed(req) && req.Publish != manager.PublishNone && !req.Target.HasPullRequests() {
		return req, fmt.Errorf("signed commits: GitHub alone makes them, and %s is reached without its API: leave --signed out and `signed` out of the policy, or give a GitHub App (see `kick run --help`)", req.Target)
	}
	if u := req.Update; u != nil && req.Source.Repo != u.Repo {
		return req, fmt.Errorf("--repo %s: kick %s was for %s: leave --repo out", req.Source.Repo, u.ID, u.Repo)
	}
	return req, nil
}

// signed reports whether the command line or the policy asks for commits that
// GitHub makes.
func signed(req manager.Request) bool {
	return req.Signed || policy.Is(req.Policy.For(req.Source.Repo, req.Agent).Publish.Signed)
}

// update starts from the branch of an earlier kick, or with --base again from
// where that one started.
func update(req *manager.Request, o *Options) error {
	u := o.Update
	if u == nil {
		return nil
	}
	switch {
	case o.Agent != "" && o.Agent != u.Agent:
		return fmt.Errorf("--agent %s: kick %s was %s's, and its branch has that name: leave --agent out", o.Agent, u.ID, u.Agent)
	case o.Base != "" && o.Base != u.Into:
		return fmt.Errorf("--base %s: kick %s started from %s, and its pull request stays with that: pass --base %s to write the branch anew, or leave --base out to add to it", o.Base, u.ID, u.Into, u.Into)
	}
	rewrite := *u
	rewrite.Rewrite = o.Base != ""
	req.Update, req.Agent, o.Agent = &rewrite, u.Agent, u.Agent
	if !rewrite.Rewrite {
		o.Base = u.Branch
	}
	if o.Repo == "" {
		o.Repo = u.Repo
	}
	return nil
}

// LoadPolicy reads a policy file; an empty path stands for policy.Default.
func LoadPolicy(path string) (*policy.Policy, error) {
	if path == "" {
		return policy.Default(), nil
	}
	return policy.Load(path)
}

// Repository makes a request that only looks at a repository's base branch: it
// has a source and a target, and no agent's command.
func Repository(ctx context.Context, o Options) (manager.Request, error) {
	req := manager.Request{Agent: o.Agent, Held: map[string]string{}}
	if req.Agent == "" {
		req.Agent = defaultAgent
	}
	if !config.IsAgentName(req.Agent) {
		return req, fmt.Errorf("--agent %q: want up to 63 lower-case letters, digits, - and _", req.Agent)
	}
	var err error
	if req.Policy, err = AgentPolicy(o.PolicyPath, o.Agent); err != nil {
		return req, err
	}
	if err := places(ctx, &req, o); err != nil {
		return req, err
	}
	o.Publish = string(manager.PublishNone)
	return req, target(&req, o)
}

// defaultAgent is the name of an agent that has none.
const defaultAgent = "agent"

// AgentPolicy reads the policy that `kick run` would hold an agent to: the one
// at path, else the one that kick.yaml names for it, else the built-in one.
func AgentPolicy(path, agent string) (*policy.Policy, error) {
	if path == "" && agent != "" {
		file, err := config.Find(".")
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return policy.Default(), nil
		case err != nil:
			return nil, err
		}
		c, err := config.Load(file)
		if err != nil {
			return nil, err
		}
		if slices.Contains(c.Names(), agent) {
			r, err := c.Agent(agent)
			if err != nil {
				return nil, err
			}
			path = r.Policy.Value
		}
	}
	return LoadPolicy(path)
}

// configured returns the agent's settings in kick.yaml, or nil if there is no
// such file and the command line says it all.
func configured(o Options) (*config.Resolved, error) {
	path := o.ConfigPath
	if path == "" {
		var err error
		path, err = config.Find(".")
		if errors.Is(err, fs.ErrNotExist) || (err == nil && o.Agent == "") {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	c, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	if o.Agent == "" {
		return nil, fmt.Errorf("--config is given, but no agent: pass --agent with one of %s", strings.Join(c.Names(), ", "))
	}
	r, err := c.Agent(o.Agent)
	if err != nil {
		if len(o.Command) > 0 && o.ConfigPath == "" {
			return nil, nil // a name for an agent of the command line's own
		}
		return nil, err
	}
	if err := r.Runnable(); err != nil {
		return nil, err
	}
	return &r, nil
}

// apply takes over what kick.yaml says, below what the command line says.
func apply(req *manager.Request, o *Options, r config.Resolved) error {
	if len(req.Command) == 0 && o.Kind == "" {
		req.Command = r.Command.Value
		if _, known := agents.Find(r.Kind.Value); known {
			o.Kind = r.Kind.Value
		}
	}
	fill := func(dst *string, v string) {
		if *dst == "" {
			*dst = v
		}
	}
	fill(&o.Model, r.Model.Value)
	fill(&o.Repo, r.Repo.Value)
	fill(&o.Base, r.Base.Value)
	fill(&o.Publish, r.Publish.Value)
	fill(&o.PolicyPath, r.Policy.Value)
	fill(&o.Runtime, r.Runtime.Value)
	fill(&o.Network, string(r.NetworkMode.Value))
	if !o.Set("timeout") {
		o.Timeout = r.Timeout.Value
	}
	req.Limits = r.Limits()
	req.WorkspaceDir = r.WorkspaceDir.Value
	fill(&o.Image, r.Image.Value)
	fill(&o.OCIRuntime, r.PodmanOCIRuntime.Value)
	req.Kubernetes, req.KubeVirt = r.Kubernetes.Value, r.KubeVirt.Value
	req.Podman.Socket, req.Podman.Network = r.PodmanSocket.Value, r.PodmanNetwork.Value
	if req.Podman.Network != "" && o.Network == string(sandbox.NetworkNone) {
		return fmt.Errorf("the network mode is none, and %s gives the agent the network %s: remove one of the two", r.PodmanNetwork.Source, req.Podman.Network)
	}
	s := r.OpenShell
	req.OpenShell = manager.OpenShell{Choice: s.Choice(), Inference: s.Inference.Value, Gateway: s.EgressGateway.Value, GatewayFrom: s.EgressFrom.Value, Binaries: s.Binaries.Value}
	env, err := r.Env(os.LookupEnv)
	req.Env = env
	return err
}

// Weaknesses are the names that Options.AcceptWeaker may hold.
func Weaknesses() []string {
	names := slices.Clone(sandbox.EmbeddedProperties) // those of Podman's containers are among them
	for _, p := range slices.Concat(sandbox.GuestProperties, sandbox.OpenShellProperties, sandbox.KubernetesProperties, sandbox.KubeVirtProperties) {
		if !slices.Contains(names, p) {
			names = append(names, p)
		}
	}
	for _, h := range gitversion.Holes {
		names = append(names, h.Name())
	}
	return names
}

// weaker refuses names of no weakness: who misspells one believes that it is
// accepted.
func weaker(accepted []string) error {
	known := Weaknesses()
	for _, name := range accepted {
		if !slices.Contains(known, name) {
			if near := spelling.Nearest(name, known); near != "" {
				return fmt.Errorf("--accept-weaker %s: there is no such property: did you mean %s?", name, near)
			}
			return fmt.Errorf("--accept-weaker %s: there is no such property: write one of %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// openShell takes over what the command line says of an OpenShell gateway.
func openShell(req *manager.Request, o Options) error {
	own := o.OpenShell
	if s := req.OpenShell; req.Runtime == "openshell" {
		switch {
		case s.Inference && s.Gateway != "":
			return errors.New("openshell has both inference and egress_gateway: models are called at one of the two, remove the other")
		case (s.Gateway == "") != !s.GatewayFrom.IsValid():
			return errors.New("openshell has one of egress_gateway and egress_from: the first is where sandboxes reach kick's gateway, the second the network that they come from, and both are needed")
		}
	}
	if req.Runtime != "openshell" {
		if own != (sandbox.OpenShellChoice{}) {
			return errors.New("--openshell-gateway and --openshell-telemetry-off are of OpenShell: pass --runtime openshell, or leave them out")
		}
		return nil
	}
	c := &req.OpenShell.Choice
	if own.Gateway != "" {
		c.Gateway, c.Connection.Endpoint = own.Gateway, ""
	}
	c.TelemetryOff = c.TelemetryOff || own.TelemetryOff
	return nil
}

// kubernetes takes over the flags that say where pods and machines run.
func kubernetes(req *manager.Request, o Options) error {
	k, v := &req.Kubernetes, &req.KubeVirt
	if own := &o.Kubernetes.Kubeconfig; *own != "" {
		// A later kick, from another directory, looks for what this one left.
		abs, err := filepath.Abs(*own)
		if err != nil {
			return fmt.Errorf("--kubeconfig %s: %w", *own, err)
		}
		*own = abs
	}
	if file := os.Getenv("KUBECONFIG"); req.Runtime == "kubernetes" && k.Kubeconfig == "" && file != "" && len(filepath.SplitList(file)) == 1 {
		var err error // as one from another environment does
		if k.Kubeconfig, err = filepath.Abs(file); err != nil {
			return fmt.Errorf("KUBECONFIG %s: %w", file, err)
		}
	}
	for _, f := range []struct {
		flag         string
		dst, machine *string // nil: machines have none
		v            string
	}{
		{"kubeconfig", &k.Kubeconfig, &v.Kubeconfig, o.Kubernetes.Kubeconfig}, {"context", &k.Context, &v.Context, o.Kubernetes.Context},
		{"namespace", &k.Namespace, &v.Namespace, o.Kubernetes.Namespace}, {"gateway", &k.Gateway, nil, o.Kubernetes.Gateway},
		{"shim-image", &k.ShimImage, nil, o.Kubernetes.ShimImage}, {"claim", &k.Claim, nil, o.Kubernetes.Claim},
	} {
		switch {
		case f.v == "":
		case req.Runtime == "kubernetes":
			*f.dst = f.v
		case req.Runtime == "kubevirt" && f.machine != nil:
			*f.machine = f.v
		case f.machine != nil:
			return fmt.Errorf("--%s is for Kubernetes: pass --runtime kubernetes or kubevirt, or leave it out", f.flag)
		default:
			return fmt.Errorf("--%s is for Kubernetes: pass --runtime kubernetes, or leave it out", f.flag)
		}
	}
	return nil
}

// settings checks and takes over the plain flags.
func settings(req *manager.Request, o Options) error {
	req.Runtime = o.Runtime
	if req.Runtime == "" {
		req.Runtime = "embedded"
	}
	if !slices.Contains(config.Runtimes, req.Runtime) {
		return fmt.Errorf("--runtime %s: this kick knows %s", req.Runtime, strings.Join(config.Runtimes, ", "))
	}
	switch req.Image = o.Image; {
	case req.Runtime == "embedded" && req.Image != "":
		return errors.New("--image: the embedded runtime runs this host's programs and takes no image: leave it out, or pass --runtime podman, openshell, kubernetes or kubevirt")
	case req.Runtime == "kubevirt" && req.Image == "":
		return errors.New("--runtime kubevirt boots a machine from an image, and there is none: pass --image, or set image in kick.yaml (docs/kubevirt.md says what it needs)")
	case req.Runtime != "embedded" && req.Image == "":
		return fmt.Errorf("--runtime %s runs agents in an image, and there is none: pass --image, or set image in kick.yaml (`kick image build` makes one)", req.Runtime)
	case req.Image != "" && len(req.ProgramDirs) > 0:
		return errors.New("--program-dir is for the embedded runtime: in an image, its own programs run")
	}
	if err := errors.Join(openShell(req, o), kubernetes(req, o)); err != nil {
		return err
	}
	switch req.Podman.OCIRuntime = o.OCIRuntime; {
	case o.OCIRuntime == "":
	case req.Runtime != "podman" && o.Set("oci-runtime"):
		return errors.New("--oci-runtime is Podman's: pass --runtime podman, or leave it out")
	case !slices.Contains(sandbox.OCIRuntimes, o.OCIRuntime):
		return fmt.Errorf("--oci-runtime %s: want one of %s", o.OCIRuntime, strings.Join(sandbox.OCIRuntimes, ", "))
	}
	switch req.Network = sandbox.NetworkMode(o.Network); req.Network {
	case "":
		req.Network = sandbox.NetworkRestricted
	case sandbox.NetworkNone, sandbox.NetworkRestricted:
	default:
		return fmt.Errorf("--network %s: want restricted or none; no other mode keeps the agent off the network", o.Network)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout %s: want a positive duration, e.g. 45m", o.Timeout)
	}
	req.Limits.Wall = o.Timeout
	if err := weaker(o.AcceptWeaker); err != nil {
		return err
	}
	var err error
	size := func(flag, v string, dst *int64) {
		if v == "" {
			return
		}
		n, perr := config.ParseSize(v)
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("--%s %s: %w", flag, v, perr))
		}
		*dst = n
	}
	size("memory", o.Memory, &req.Limits.Memory)
	size("disk", o.Disk, &req.Limits.Disk)
	if err == nil {
		err = config.CheckLimits(o.CPUs, req.Limits.Memory, req.Limits.Disk, o.Processes)
	}
	req.Limits.Processes, req.Limits.CPUs = cmp.Or(o.Processes, req.Limits.Processes), cmp.Or(o.CPUs, req.Limits.CPUs)
	if len(o.Env) > 0 && req.Env == nil {
		req.Env = map[string]string{}
	}
	for _, kv := range o.Env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "":
			err = errors.Join(err, fmt.Errorf("--env %s: want NAME=VALUE", name))
		case credential.IsName(name) && value != credential.DummyKey:
			err = errors.Join(err, fmt.Errorf("--env %s: that is the name of a credential, and no credential enters a sandbox: leave it out", name))
		case credential.LooksLike(value):
			err = errors.Join(err, fmt.Errorf("--env %s: its value looks like %s, and no credential enters a sandbox: leave it out", name, credential.Kind(value)))
		default:
			req.Env[name] = value
		}
	}
	for i, dir := range req.ProgramDirs {
		abs, aerr := filepath.Abs(dir)
		fi, serr := os.Stat(abs)
		if aerr != nil || serr != nil || !fi.IsDir() {
			err = errors.Join(err, fmt.Errorf("--program-dir %s: no such directory", dir))
		}
		req.ProgramDirs[i] = abs
	}
	return err
}

// places finds the repository and the base branch.
func places(ctx context.Context, req *manager.Request, o Options) error {
	req.Source = workspace.Source{Repo: o.Repo, Base: o.Base}
	if o.Repo != "" {
		if localPath(o.Repo) {
			abs, err := filepath.Abs(o.Repo)
			if err != nil {
				return fmt.Errorf("--repo %s: %w", o.Repo, err)
			}
			req.Source.Repo = abs
		}
		return nil
	}
	c, err := checkout.Find(ctx, ".")
	if errors.Is(err, checkout.ErrNone) {
		return errors.New("no repository: this is not a git checkout; change into one, or pass --repo with a URL or a path")
	}
	if err != nil {
		return err
	}
	if req.Source.Base == "" {
		req.Source.Base = c.Branch
	}
	if req.Source.Base == "" {
		return errors.New("HEAD is detached here: pass --base with the branch to start from")
	}
	req.Source.Repo = c.Origin
	if c.Origin == "" {
		req.Source.Repo, req.LocalCheckout = c.Top, true
	}
	if c.Ahead != "" && req.Source.Base == c.Branch {
		req.Notes = append(req.Notes, fmt.Sprintf("this checkout has commits that origin lacks (%s); the agent does not see them: push them first, or pass --repo .", c.Ahead))
	}
	if c.Dirty {
		req.Notes = append(req.Notes, "this checkout has uncommitted changes; the agent does not see them")
	}
	return nil
}

// localPath tells a path from a URL and from host:path, as git does: a colon
// after a slash is part of a path.
func localPath(repo string) bool {
	head, _, _ := strings.Cut(repo, "/")
	return !strings.Contains(head, ":")
}

// Held are the credentials in kick's own environment: their values must not
// leave through an agent's work.
func Held(environ []string) map[string]string {
	const tooShort = 8 // shorter values occur by chance
	out := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if len(value) >= tooShort && value != credential.DummyKey && (credential.IsName(name) || credential.LooksLike(value)) && !isPath(name, value) {
			out[name] = value
		}
	}
	return out
}

var pathName = regexp.MustCompile(`(?i)(FILE|PATH|DIR|HOME|SOCK|CONFIG|NETRC|ASKPASS)$`)

// isPath tells the path of a file or socket, as in SSH_AUTH_SOCK, from a
// credential: that may begin with a slash too, as one in 64 keys in base64 does.
func isPath(name, value string) bool {
	if !filepath.IsAbs(value) {
		return false
	}
	_, err := os.Lstat(value)
	return err == nil || pathName.MatchString(name)
}
