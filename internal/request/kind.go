package request

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/internal/spelling"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// kindOf takes the command of an agent whose kind is known.
func kindOf(req *manager.Request, o *Options) error {
	if o.Kind == "" {
		if o.Model != "" && o.Set("model") {
			return errors.New("--model is for agents whose kind is known: pass --agent-kind too, or let your command choose its model")
		}
		return nil
	}
	if len(o.Command) > 0 {
		return errors.New("--agent-kind and a command after -- are both given: a kind stands for a command, choose one")
	}
	k, ok := agents.Find(o.Kind)
	if !ok {
		remedy := "`kick agents` lists them"
		if near := spelling.Nearest(strings.ToLower(o.Kind), agents.Names()); near != "" {
			remedy = "did you mean " + near + "?"
		}
		return fmt.Errorf("--agent-kind %q is not known: %s", o.Kind, remedy)
	}
	req.Command = k.Command()
	if req.Agent == "" {
		req.Agent = k.Name
	}
	return nil
}

// equip gives an agent whose kind is known what it needs to reach its model,
// and finds beforehand what would fail in the sandbox.
func equip(ctx context.Context, req *manager.Request, o Options) error {
	k, known := agents.Find(o.Kind)
	if !known {
		return nil
	}
	switch {
	case req.Network == sandbox.NetworkNone:
		return fmt.Errorf("agent kind %s calls a model, and network mode none has no way to one: use restricted, whose one way out is the egress gateway", k.Name)
	case strings.TrimSpace(req.Prompt) == "":
		return fmt.Errorf("agent kind %s needs a task: pass --prompt or --prompt-file", k.Name)
	case k.MaxPrompt > 0 && len(req.Prompt) > k.MaxPrompt:
		return fmt.Errorf("agent kind %s takes its prompt as an argument, which Linux limits to 128 KiB, and this one has %d bytes: shorten it, or put the material into the repository", k.Name, len(req.Prompt))
	}
	if req.Image == "" { // what an image holds, its runtime alone can see
		if err := installed(k, req.ProgramDirs); err != nil {
			return err
		}
	}
	inference := req.Runtime == "openshell" && req.OpenShell.Gateway == ""
	switch {
	case inference && !req.OpenShell.Inference:
		return fmt.Errorf("agent kind %s calls a model, which a sandbox of OpenShell reaches at https://inference.local: set a route up in the gateway's workspace, and openshell.inference: true in kick.yaml; or let sandboxes reach kick's own gateway, by openshell.egress_gateway and egress_from", k.Name)
	case inference && !k.InferenceLocal():
		return fmt.Errorf("agent kind %s speaks a format that https://inference.local does not have: let sandboxes reach kick's own gateway, by openshell.egress_gateway and egress_from in kick.yaml, or choose another kind", k.Name)
	}
	route, err := k.Route(req.Policy.For(req.Source.Repo, req.Agent).Egress.Models)
	if err != nil {
		return err
	}
	// A gateway of OpenShell has a key of its own.
	if _, err := egress.ReadKeys(ctx, policy.Egress{Models: []policy.Model{route}}); err != nil && !inference {
		return fmt.Errorf("agent kind %s would reach its model without a key: %w: set it where kick runs, or name another place in the policy", k.Name, err)
	}
	model, err := k.Model(o.Model, route)
	if err != nil {
		return err
	}
	env := k.Environment(route, model)
	maps.Copy(env, req.Env)
	req.Env, req.Home = env, k.Home
	return nil
}

// installed looks for the agent's program where the sandbox will.
func installed(k agents.Kind, programDirs []string) error {
	path := manager.SandboxPath(programDirs)
	for _, dir := range filepath.SplitList(path) {
		if fi, err := os.Stat(filepath.Join(dir, k.Name)); err == nil && !fi.IsDir() && fi.Mode()&0o111 != 0 {
			return nil
		}
	}
	return fmt.Errorf("agent kind %s runs the program %s, and the sandbox sees none: install it below /usr, or name its directory with --program-dir (looked in %s)", k.Name, k.Name, path)
}
