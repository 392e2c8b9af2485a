package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/internal/agents"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// openShellRuntime is the name of the runtime whose gateway is the way out, instead
// of kick's own.
const openShellRuntime = "openshell"

// OpenShell is how a kick runs on an OpenShell gateway.
type OpenShell struct {
	Choice sandbox.OpenShellChoice
	// Inference tells that https://inference.local answers in its sandboxes.
	Inference bool
	// Gateway is where sandboxes reach kick's own gateway, for calls of models, as
	// HOST:PORT or HOST:PORT-PORT, and GatewayFrom the network that their connections
	// come from. Empty: they do not.
	Gateway     string
	GatewayFrom netip.Prefix
	// Binaries are the programs that may use the network, as PATH or
	// PATH@sha256:DIGEST. Empty: policy.OpenShellBinaries.
	Binaries []string
}

// programs are the paths of Binaries, and the digests of those that have one.
func (o OpenShell) programs() (paths []string, digests map[string]string) {
	digests = map[string]string{}
	for _, b := range o.Binaries {
		name, digest, pinned := strings.Cut(b, "@sha256:")
		paths = append(paths, name)
		if pinned {
			digests[name] = digest
		}
	}
	if len(paths) == 0 {
		paths = policy.OpenShellBinaries()
	}
	return paths, digests
}

// journaled is the choice for the journal, by which the sandbox is found again.
func (o OpenShell) journaled(runtime string) string {
	if runtime != openShellRuntime {
		return ""
	}
	b, _ := json.Marshal(o.Choice) // of texts alone: it cannot fail
	return string(b)
}

// openShell gives the sandbox the way out that its gateway enforces, and what the
// gateway denied to the kick's audit. done is called after the run.
func (r *run) openShell(spec *sandbox.LaunchSpec) (done func(), err error) {
	audit, err := os.OpenFile(r.k.Path("openshell.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.ErrRuntime, Op: "open the egress audit", Err: err}
	}
	denied := 0
	spec.OnLog = func(l sandbox.RuntimeLog) {
		switch {
		case l.Fields["action"] == "denied":
			denied++
		case l.Source == "kick":
			r.out.Notes = append(r.out.Notes, "what the gateway denied is not known: "+l.Message)
		}
		r.note("write the gateway's log", writeLine(audit, l))
	}
	done = func() {
		r.note("close the gateway's log", audit.Close())
		if denied > 0 {
			r.out.Notes = append(r.out.Notes, fmt.Sprintf("the gateway denied %d requests: %s says which, and of which program", denied, r.k.Path("openshell.jsonl")))
		}
	}
	if spec.Network == sandbox.NetworkNone {
		return done, nil
	}
	end := done
	done = func() {
		end()
		// What it allowed, the gateway does not tell.
		if r.out.Egress == nil {
			r.out.Egress = &egress.Summary{}
		}
		r.out.Egress.Denied += denied
	}
	binaries, digests := r.req.OpenShell.programs()
	spec.Egress.Programs = digests
	p, err := r.policy().Egress.OpenShell(binaries)
	var text []byte
	if err == nil {
		text, err = p.YAML()
	}
	if err != nil {
		done()
		return nil, &sandbox.Error{Kind: sandbox.ErrSpec, Op: "compile the policy for OpenShell", Err: err, Remedy: "kick policy compile --to openshell shows what becomes of it"}
	}
	spec.Egress.Policy = string(text)
	fit := agents.ForInferenceLocal
	if r.req.OpenShell.Gateway != "" {
		maps.Copy(spec.Env, agents.WithoutProxy())
		fit = func(text string) string { return agents.ForGatewayAt(text, openShellPort) }
	}
	for name, value := range spec.Env {
		spec.Env[name] = fit(value)
	}
	home := maps.Clone(spec.Home)
	for name, content := range home {
		home[name] = fit(content)
	}
	spec.Home = home
	return done, nil
}

// openShellPort is the loopback port that leads to kick's gateway, beside the proxy of
// OpenShell's supervisor, which may have agents.GatewayPort.
const openShellPort = 8378

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// reapGateways deletes what dead kicks have left on the gateways that kicks of this
// state have used.
func (m *Manager) reapGateways(reap func(sandbox.Reaper)) error {
	l, ok := m.Launchers[openShellRuntime].(*sandbox.OpenShell)
	if !ok {
		return nil
	}
	ids, err := m.State.Kicks()
	var seen []sandbox.OpenShellChoice
	errs := []error{err}
	for _, id := range ids {
		entries, err := readJournal(filepath.Join(m.State.KickDir(id), "journal.jsonl"))
		if err != nil {
			continue // the rest of the collection says it
		}
		text, used := field(entries, "kick", "openshell")
		var c sandbox.OpenShellChoice
		if !used || text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			errs = append(errs, fmt.Errorf("kick %s: its gateway: %w", id, err))
			continue
		}
		if !slices.Contains(seen, c) {
			seen = append(seen, c)
			reap(l.With(c))
		}
	}
	return errors.Join(errs...)
}
