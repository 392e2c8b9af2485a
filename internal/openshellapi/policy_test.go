package openshellapi

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kickhq/kick/internal/openshellapi/wire"
)

const policyFile = `version: 1
filesystem_policy: {include_workdir: true, read_only: [/usr, /etc], read_write: [/tmp]}
landlock: {compatibility: hard_requirement}
network_policies:
  kick:
    name: kick
    endpoints:
      - {host: github.com, ports: [443], protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /a/b/info/refs, query: {service: {glob: git-upload-pack}}}}]}
      - {host: api.github.com, ports: [443, 8443], protocol: rest, enforcement: enforce, access: read-only, allowed_ips: [10.0.0.0/8]}
    binaries: [{path: /usr/bin/git}, {path: /usr/bin/curl}]
`

func parsed(t *testing.T) *Policy {
	t.Helper()
	p, err := ParsePolicy([]byte(policyFile))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for old, replacement := range map[string]string{
		"version: 1":       "version: 2",
		"hard_requirement": "best_effort",
		"{host: github.com, ports: [443], protocol: rest, enforcement: enforce": "{host: github.com, ports: [443], protocol: rest, enforcement: audit",
		"ports: [443, 8443], ":  "",
		"access: read-only, ":   "",
		"protocol: rest, ":      "protocol: tcp, ",
		"allowed_ips":           "allowed_addresses",
		"network_policies:":     "network_middlewares: {}\nnetwork_policies:",
		"landlock:":             "landlock: {}\nlandlock:",
		"path: /usr/bin/curl}]": "path: /usr/bin/curl}]\n---\nversion: 1",
	} {
		if !strings.Contains(policyFile, old) {
			t.Fatalf("the file has no %q", old)
		}
		if _, err := ParsePolicy([]byte(strings.ReplaceAll(policyFile, old, replacement))); err == nil {
			t.Errorf("%q for %q is taken", replacement, old)
		}
	}
}

// A policy that went over the wire and back is the same, in whatever order; any
// one change is seen.
func TestPolicyReadBack(t *testing.T) {
	t.Parallel()
	want := parsed(t)
	back := func(change func(*wire.SandboxPolicy)) (*Policy, string) {
		w := proto.CloneOf(policyToWire(want))
		change(w)
		raw, err := proto.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		got := &wire.SandboxPolicy{}
		if err := proto.Unmarshal(raw, got); err != nil {
			t.Fatal(err)
		}
		return policyFromWire(got)
	}
	got, strange := back(func(w *wire.SandboxPolicy) {
		r := w.NetworkPolicies["kick"]
		r.Endpoints[0], r.Endpoints[1] = r.Endpoints[1], r.Endpoints[0]
		r.Binaries[0], r.Binaries[1] = r.Binaries[1], r.Binaries[0]
	})
	if d := want.Difference(got); d != "" || strange != "" {
		t.Fatalf("the same policy differs: %s, %s", d, strange)
	}
	if d := want.Difference(nil); d == "" {
		t.Error("no policy is as good as one")
	}
	unknown := protowire.AppendString(protowire.AppendTag(nil, 5, protowire.BytesType), "enforce") // as the first generation has it
	endpoint := func(w *wire.SandboxPolicy) *wire.NetworkEndpoint { return w.NetworkPolicies["kick"].Endpoints[0] }
	for name, change := range map[string]func(*wire.SandboxPolicy){
		"audit": func(w *wire.SandboxPolicy) {
			endpoint(w).Enforcement = wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_AUDIT
		},
		"no enforcement":         func(w *wire.SandboxPolicy) { endpoint(w).Enforcement = 0 },
		"an unknown enforcement": func(w *wire.SandboxPolicy) { endpoint(w).Enforcement = 7 },
		"enforcement of another type": func(w *wire.SandboxPolicy) {
			endpoint(w).Enforcement = 0
			endpoint(w).ProtoReflect().SetUnknown(unknown)
		},
		"TLS unseen":       func(w *wire.SandboxPolicy) { endpoint(w).Tls = wire.NetworkTlsMode_NETWORK_TLS_MODE_SKIP },
		"another host":     func(w *wire.SandboxPolicy) { endpoint(w).Host = "*.com" },
		"another port":     func(w *wire.SandboxPolicy) { endpoint(w).Ports = append(endpoint(w).Ports, 22) },
		"the older port":   func(w *wire.SandboxPolicy) { endpoint(w).Port = 22 },
		"another protocol": func(w *wire.SandboxPolicy) { endpoint(w).Protocol = "" },
		"another access": func(w *wire.SandboxPolicy) {
			w.NetworkPolicies["kick"].Endpoints[1].Access = wire.NetworkAccessPreset_NETWORK_ACCESS_PRESET_FULL
		},
		"no rules":             func(w *wire.SandboxPolicy) { endpoint(w).Rules = nil },
		"another method":       func(w *wire.SandboxPolicy) { endpoint(w).Rules[0].Allow.Method = "*" },
		"another query":        func(w *wire.SandboxPolicy) { endpoint(w).Rules[0].Allow.Query["service"].Glob = "*" },
		"one query of several": func(w *wire.SandboxPolicy) { endpoint(w).Rules[0].Allow.Query["service"].Any = []string{"a"} },
		"an address more":      func(w *wire.SandboxPolicy) { endpoint(w).AllowedIps = []string{"0.0.0.0/0"} },
		"rules that deny":      func(w *wire.SandboxPolicy) { endpoint(w).DenyRules = []*wire.L7Allow{{}} },
		"encoded slashes":      func(w *wire.SandboxPolicy) { endpoint(w).AllowEncodedSlash = true },
		"an endpoint less": func(w *wire.SandboxPolicy) {
			w.NetworkPolicies["kick"].Endpoints = w.NetworkPolicies["kick"].Endpoints[:1]
		},
		"an endpoint twice": func(w *wire.SandboxPolicy) {
			r := w.NetworkPolicies["kick"]
			r.Endpoints = append(r.Endpoints, r.Endpoints[0])
		},
		"a program more": func(w *wire.SandboxPolicy) {
			r := w.NetworkPolicies["kick"]
			r.Binaries = append(r.Binaries, &wire.NetworkBinary{Path: "/**"})
		},
		"a rule more":                   func(w *wire.SandboxPolicy) { w.NetworkPolicies["more"] = &wire.NetworkPolicyRule{} },
		"no rule":                       func(w *wire.SandboxPolicy) { w.NetworkPolicies = nil },
		"best effort":                   func(w *wire.SandboxPolicy) { w.Landlock.Compatibility = "best_effort" },
		"no Landlock":                   func(w *wire.SandboxPolicy) { w.Landlock = nil },
		"a path to write":               func(w *wire.SandboxPolicy) { w.Filesystem.ReadWrite = append(w.Filesystem.ReadWrite, "/usr") },
		"a path to read":                func(w *wire.SandboxPolicy) { w.Filesystem.ReadOnly = append(w.Filesystem.ReadOnly, "/") },
		"no working directory":          func(w *wire.SandboxPolicy) { w.Filesystem.IncludeWorkdir = false },
		"a user":                        func(w *wire.SandboxPolicy) { w.Process = &wire.ProcessPolicy{RunAsUser: "1"} },
		"another version":               func(w *wire.SandboxPolicy) { w.Version = 2 },
		"an unknown field of the whole": func(w *wire.SandboxPolicy) { w.ProtoReflect().SetUnknown(unknown2()) },
	} {
		got, strange := back(change)
		if strange == "" && want.Difference(got) == "" {
			t.Errorf("%s is not seen", name)
		}
	}
}

func unknown2() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte(policyFile))
	f.Add([]byte("version: 1\nlandlock: {compatibility: hard_requirement}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		p, err := ParsePolicy(file)
		if err != nil {
			return
		}
		for _, r := range p.Network {
			for _, e := range r.Endpoints {
				if e.Enforcement != Enforce || len(e.Ports) == 0 {
					t.Fatalf("an open endpoint: %+v", e)
				}
			}
		}
		if got, strange := policyFromWire(policyToWire(p)); strange == "" && p.Difference(got) != "" {
			// A name that the wire does not have is a difference, and must be.
			for _, r := range p.Network {
				for _, e := range r.Endpoints {
					if _, ok := accesses[e.Access]; e.Access != "" && !ok {
						return
					}
				}
			}
			t.Fatalf("differs from itself: %s", p.Difference(got))
		}
	})
}

// FuzzPolicyFromWire reads whatever a gateway may send for a policy: what passes for
// the one that was asked for is, byte for byte of meaning, that one.
func FuzzPolicyFromWire(f *testing.F) {
	want, err := ParsePolicy([]byte(policyFile))
	if err != nil {
		f.Fatal(err)
	}
	raw, err := proto.Marshal(policyToWire(want))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(append(raw, unknown2()...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &wire.SandboxPolicy{}
		if proto.Unmarshal(b, w) != nil {
			return
		}
		got, strange := policyFromWire(w)
		if strange != "" || want.Difference(got) != "" {
			return
		}
		for _, r := range w.GetNetworkPolicies() {
			for _, e := range r.GetEndpoints() {
				if e.GetEnforcement() != wire.NetworkEnforcementMode_NETWORK_ENFORCEMENT_MODE_ENFORCE || e.GetTls() != 0 || e.GetPort() != 0 || e.GetProtocol() != "rest" {
					t.Fatalf("an endpoint passes that is open: %v", e)
				}
			}
		}
	})
}
