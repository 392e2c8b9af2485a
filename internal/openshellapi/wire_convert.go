//go:build !openshellsdk

package openshellapi

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kickhq/kick/internal/openshellapi/wire"
)

var phases = map[wire.SandboxPhase]Phase{
	wire.SandboxPhase_SANDBOX_PHASE_PROVISIONING: Provisioning, wire.SandboxPhase_SANDBOX_PHASE_READY: Ready,
	wire.SandboxPhase_SANDBOX_PHASE_ERROR: Failed, wire.SandboxPhase_SANDBOX_PHASE_DELETING: Deleting,
	wire.SandboxPhase_SANDBOX_PHASE_STOPPING: Stopping, wire.SandboxPhase_SANDBOX_PHASE_STOPPED: Stopped,
	wire.SandboxPhase_SANDBOX_PHASE_STARTING: Starting, wire.SandboxPhase_SANDBOX_PHASE_COMPLETED: Completed,
}

func sandboxFromWire(w *wire.Sandbox) Sandbox {
	m, st := w.GetMetadata(), w.GetStatus()
	s := Sandbox{ID: m.GetId(), Name: m.GetName(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Created: m.GetCreatedTime().AsTime(), Phase: Unknown}
	if p, ok := phases[st.GetPhase()]; ok {
		s.Phase = p
	}
	if r := w.GetSpec().GetTemplate().GetResources(); r != nil {
		s.Resources = r.AsMap()
	}
	for _, c := range st.GetConditions() {
		s.Conditions = append(s.Conditions, Condition{c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage()})
	}
	if st != nil && st.ExitCode != nil {
		s.ExitCode = new(int(st.GetExitCode()))
	}
	if a := st.GetConfigurationAdmission(); a.GetState() == wire.ConfigurationAdmissionState_CONFIGURATION_ADMISSION_STATE_REJECTED {
		s.Rejected = firstOf(a.GetError(), "the gateway gives no reason")
	}
	return s
}

func eventFromWire(w *wire.SandboxStreamEvent) Event {
	switch p := w.GetPayload().(type) {
	case *wire.SandboxStreamEvent_Sandbox:
		return Event{Sandbox: new(sandboxFromWire(p.Sandbox))}
	case *wire.SandboxStreamEvent_Event:
		return Event{Platform: firstOf(p.Event.GetReason(), p.Event.GetType()) + ": " + p.Event.GetMessage()}
	case *wire.SandboxStreamEvent_Warning:
		return Event{Warning: p.Warning.GetMessage()}
	}
	return Event{} // a log line, or of a later release
}

var (
	enforcements = map[string]wire.NetworkEnforcementMode{
		Enforce: wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE, "audit": wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_AUDIT,
	}
	accesses = map[string]wire.NetworkAccessPreset{
		"read-only": wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_READ_ONLY, "read-write": wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_READ_WRITE,
		"full": wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_FULL,
	}
)

// policyToWire writes ports, never the older port, and globs alone: both are what
// all releases of the wire have.
func policyToWire(p *Policy) *wire.SandboxPolicy {
	if p == nil {
		return nil
	}
	w := &wire.SandboxPolicy{
		Version: p.Version,
		Filesystem: &wire.FilesystemPolicy{
			IncludeWorkdir: p.Filesystem.IncludeWorkdir, ReadOnly: p.Filesystem.ReadOnly, ReadWrite: p.Filesystem.ReadWrite,
		},
		Landlock:        &wire.LandlockPolicy{Compatibility: p.Landlock.Compatibility},
		NetworkPolicies: map[string]*wire.NetworkPolicyRule{},
	}
	for name, rule := range p.Network {
		r := &wire.NetworkPolicyRule{Name: rule.Name}
		for _, b := range rule.Binaries {
			r.Binaries = append(r.Binaries, &wire.NetworkBinary{Path: b.Path})
		}
		for _, e := range rule.Endpoints {
			we := &wire.NetworkEndpoint{
				Host: e.Host, Ports: e.Ports, Protocol: e.Protocol, Enforcement: enforcements[e.Enforcement], Access: accesses[e.Access],
				AllowEncodedSlash: e.EncodedSlash, AllowedIps: e.AllowedIPs,
			}
			if e.Relayed {
				we.Tls = wire.NetworkTlsMode_NETWORK_TLS_MODE_SKIP
			}
			for _, l := range e.Rules {
				a := &wire.L7Allow{Method: l.Allow.Method, Path: l.Allow.Path}
				for k, m := range l.Allow.Query {
					if a.Query == nil {
						a.Query = map[string]*wire.L7QueryMatcher{}
					}
					a.Query[k] = &wire.L7QueryMatcher{Glob: m.Glob}
				}
				we.Rules = append(we.Rules, &wire.L7Rule{Allow: a})
			}
			r.Endpoints = append(r.Endpoints, we)
		}
		w.NetworkPolicies[name] = r
	}
	return w
}

// policyFromWire reads a policy. strange says what Policy cannot hold: an unknown
// field may be an opening that a later release has, or a value of another one's
// type.
func policyFromWire(w *wire.SandboxPolicy) (p *Policy, strange string) {
	if w == nil {
		return nil, ""
	}
	if at := unknownField(w.ProtoReflect()); at != "" {
		return nil, at + " has a field that kick does not know"
	}
	if w.GetProcess() != nil {
		return nil, "it names a user to run as"
	}
	p = &Policy{
		Version:    w.GetVersion(),
		Filesystem: Filesystem{w.GetFilesystem().GetIncludeWorkdir(), w.GetFilesystem().GetReadOnly(), w.GetFilesystem().GetReadWrite()},
		Landlock:   Landlock{w.GetLandlock().GetCompatibility()},
		Network:    map[string]NetworkRule{},
	}
	for name, rule := range w.GetNetworkPolicies() {
		r := NetworkRule{Name: rule.GetName()}
		for _, b := range rule.GetBinaries() {
			r.Binaries = append(r.Binaries, Binary{b.GetPath()})
		}
		for _, we := range rule.GetEndpoints() {
			e, why := endpointFromWire(we)
			if why != "" {
				return nil, fmt.Sprintf("the endpoint %s %s", we.GetHost(), why)
			}
			r.Endpoints = append(r.Endpoints, e)
		}
		p.Network[name] = r
	}
	return p, ""
}

func endpointFromWire(w *wire.NetworkEndpoint) (e Endpoint, strange string) {
	switch {
	case w.GetTls() > wire.NetworkTlsMode_NETWORK_TLS_MODE_SKIP:
		return e, "has a way with TLS that kick does not know"
	case w.GetPort() != 0:
		return e, "has the older form of a port"
	case len(w.GetDenyRules()) > 0:
		return e, "has rules that deny"
	}
	e = Endpoint{Host: w.GetHost(), Ports: w.GetPorts(), Protocol: w.GetProtocol(), EncodedSlash: w.GetAllowEncodedSlash(), AllowedIPs: w.GetAllowedIps(),
		Relayed:     w.GetTls() == wire.NetworkTlsMode_NETWORK_TLS_MODE_SKIP,
		Enforcement: nameOf(enforcements, w.GetEnforcement()), Access: nameOf(accesses, w.GetAccess())}
	for _, l := range w.GetRules() {
		a := Allow{Method: l.GetAllow().GetMethod(), Path: l.GetAllow().GetPath()}
		for k, m := range l.GetAllow().GetQuery() {
			if len(m.GetAny()) > 0 {
				return e, "has a query with several values"
			}
			if a.Query == nil {
				a.Query = map[string]Matcher{}
			}
			a.Query[k] = Matcher{m.GetGlob()}
		}
		if l.GetAllow().GetCommand() != "" {
			return e, "has a rule for a command"
		}
		e.Rules = append(e.Rules, Rule{a})
	}
	return e, ""
}

// nameOf is the name of an enumeration's value; of one without a name its number,
// and "" of none.
func nameOf[V interface {
	comparable
	protoreflect.Enum
}](names map[string]V, v V) string {
	for name, n := range names {
		if n == v {
			return name
		}
	}
	if v.Number() == 0 {
		return ""
	}
	return fmt.Sprint(v.Number())
}

// unknownField names a message that holds a field that its description does not
// have, or "".
func unknownField(m protoreflect.Message) (at string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().Name())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				at = unknownField(v.Message())
				return at == ""
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				if at == "" {
					at = unknownField(v.List().Get(i).Message())
				}
			}
		case f.Message() != nil && !f.IsMap():
			at = unknownField(v.Message())
		}
		return at == ""
	})
	return at
}
