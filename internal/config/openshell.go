package config

import (
	"errors"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// openShellBlock is what a file says of an OpenShell gateway.
type openShellBlock struct {
	gateway, endpoint, workspace, ca, cert, key, token, version *Value[string]

	telemetryOff, inference *Value[bool]
	egressGateway           *Value[string]
	egressFrom              *Value[netip.Prefix]
	binaries                *Value[[]string]
}

// openShellWord is a row for a word.
func openShellWord(key, doc string, read func(*decoder, place) (string, bool), at func(*openShellBlock) **Value[string]) field[openShellBlock] {
	return field[openShellBlock]{key, doc, object{"type": "string"}, func(d *decoder, p place, b *openShellBlock) { setUnlessZero(d, p, at(b), read) }}
}

// readPart reads a word that, as a part of that connection, is checked.
func readPart(in func(string) sandbox.OpenShellConnection) func(*decoder, place) (string, bool) {
	return func(d *decoder, p place) (string, bool) {
		v, ok := readWord(d, p)
		if !ok || v == "" {
			return v, ok
		}
		if err := in(v).Check(); err != nil {
			problem, remedy, _ := strings.Cut(err.Error(), ": ")
			d.problem(p, problem, remedy)
			return "", false
		}
		return v, true
	}
}

// openShellFile is a row for a file.
func openShellFile(key, doc string, at func(*openShellBlock) **Value[string]) field[openShellBlock] {
	return field[openShellBlock]{key, doc, object{"type": "string", "pattern": "^(/.*)?$"},
		func(d *decoder, p place, b *openShellBlock) { setUnlessZero(d, p, at(b), readDirectory) }}
}

var openShellFields = []field[openShellBlock]{
	openShellWord("gateway", "Name of the gateway in the openshell command's own configuration. Default: OPENSHELL_GATEWAY, else the active one.",
		readWord, func(b *openShellBlock) **Value[string] { return &b.gateway }),
	openShellWord("endpoint", "Address of the gateway, https://HOST:PORT, instead of gateway; http:// for this host's loopback alone.",
		readPart(func(v string) sandbox.OpenShellConnection { return sandbox.OpenShellConnection{Endpoint: v} }),
		func(b *openShellBlock) **Value[string] { return &b.endpoint }),
	openShellWord("workspace", "The gateway's workspace that the sandboxes are in. Default: OPENSHELL_WORKSPACE, else default.",
		readPart(func(v string) sandbox.OpenShellConnection {
			return sandbox.OpenShellConnection{Endpoint: "https://any", Workspace: v}
		}),
		func(b *openShellBlock) **Value[string] { return &b.workspace }),
	openShellFile("ca", "Absolute path of the gateway's authority, in PEM, with endpoint. Default: the system's authorities.",
		func(b *openShellBlock) **Value[string] { return &b.ca }),
	openShellFile("cert", "Absolute path of kick's certificate for the gateway, with endpoint.", func(b *openShellBlock) **Value[string] { return &b.cert }),
	openShellFile("key", "Absolute path of that certificate's key.", func(b *openShellBlock) **Value[string] { return &b.key }),
	openShellFile("token", "Absolute path of a file with a bearer token for the gateway, as text or as oidc_token.json, with endpoint. It is read for each call.",
		func(b *openShellBlock) **Value[string] { return &b.token }),
	openShellWord("accept_version", "A version of the gateway outside of those that kick was tested with (0.1.x) that is accepted. Never of 0.0.x.",
		readWord, func(b *openShellBlock) **Value[string] { return &b.version }),
	{"telemetry_off", "Your word that the gateway sends no telemetry, which nothing on its wire tells. Default: false, and a kick does not start unless the weakness telemetry is accepted.",
		object{"type": "boolean"}, func(d *decoder, p place, b *openShellBlock) { set(d, p, &b.telemetryOff, (*decoder).boolean) }},
	{"inference", "The workspace has a route for models, so that https://inference.local answers in its sandboxes. An agent with a kind needs it, or egress_gateway. Default: false.",
		object{"type": "boolean"}, func(d *decoder, p place, b *openShellBlock) { set(d, p, &b.inference, (*decoder).boolean) }},
	{"egress_gateway", "Where sandboxes reach kick's own gateway for calls of models, instead of inference, as HOST:PORT or HOST:PORT-PORT; each process of kick listens on the first of these ports that is free. It needs egress_from.",
		object{"type": "string"}, func(d *decoder, p place, b *openShellBlock) { setUnlessZero(d, p, &b.egressGateway, readEgressGateway) }},
	{"egress_from", "The network, as ADDRESS/BITS, that connections of sandboxes to egress_gateway come from. Who is in it may try a kick's secret, and nobody else.",
		object{"type": "string"}, func(d *decoder, p place, b *openShellBlock) { setUnlessZero(d, p, &b.egressFrom, readNetwork) }},
	{"binaries", "Real paths, in the image, of the programs that may use the network as the policy says. With @sha256: and a digest after it, a kick does not start where the file is another. Default: git, curl and interpreters where common images have them.",
		object{"type": "array", "items": object{"type": "string", "pattern": "^/"}, "uniqueItems": true},
		func(d *decoder, p place, b *openShellBlock) { set(d, p, &b.binaries, readBinaries) }},
}

var programDigest = lazyregexp.New(`^[^@]+@sha256:[0-9a-f]{64}$`)

func readBinaries(d *decoder, p place) ([]string, bool) {
	items, ok := d.list(p, "paths of programs")
	if !ok {
		return nil, false
	}
	list := []string{}
	for _, it := range items {
		name, ok := d.text(it, "the path of a program")
		switch {
		case !ok:
		case !path.IsAbs(name) || path.Clean(name) != name:
			d.problem(it, shown(name)+" is not the real path of a program", "write an absolute path without links, as readlink -f prints it in the image")
		case strings.Contains(name, "@") && !programDigest.MatchString(name):
			d.problem(it, shown(name)+" has no SHA-256 after its @", "write PATH@sha256: and the 64 digits that sha256sum prints in the image")
		case slices.Contains(list, name):
			d.problem(it, name+" is listed twice", "remove one of the two")
		default:
			list = append(list, name)
		}
	}
	return list, true
}

// readEgressGateway takes a name too: the policy of the sandbox has it, and a gateway
// knows its host by one.
func readEgressGateway(d *decoder, p place) (string, bool) {
	v, ok := d.text(p, "a host with a port or a range of ports")
	if !ok || v == "" {
		return v, ok
	}
	host, port, err := net.SplitHostPort(v)
	ports, err2 := policy.ParsePorts(port)
	if err = errors.Join(err, err2); err != nil || ports.First == 0 || !hostForm.MatchString(host) {
		d.problem(p, shown(v)+" is no host with a port or a range of ports", "write it as in host.openshell.internal:8377-8392")
		return "", false
	}
	return v, true
}

var hostForm = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$`)

func readNetwork(d *decoder, p place) (netip.Prefix, bool) {
	v, ok := d.text(p, "a network")
	if !ok || v == "" {
		return netip.Prefix{}, ok
	}
	n, err := netip.ParsePrefix(v)
	if err != nil || n != n.Masked() || n.Bits() == 0 || n.Addr().Is4In6() {
		d.problem(p, shown(v)+" is no network of sandboxes", "write it as in 10.244.0.0/16")
		return netip.Prefix{}, false
	}
	return n, true
}

// OpenShell is what holds for one agent on an OpenShell gateway.
type OpenShell struct {
	Gateway, Endpoint, Workspace, CA, Cert, Key, Token, AcceptVersion Value[string]

	TelemetryOff, Inference Value[bool]
	EgressGateway           Value[string]
	EgressFrom              Value[netip.Prefix]
	Binaries                Value[[]string] // empty: the default
}

func resolveOpenShell(own, all openShellBlock) OpenShell {
	return OpenShell{
		Gateway: first(own.gateway, all.gateway, ""), Endpoint: first(own.endpoint, all.endpoint, ""), Workspace: first(own.workspace, all.workspace, ""),
		CA: first(own.ca, all.ca, ""), Cert: first(own.cert, all.cert, ""), Key: first(own.key, all.key, ""), Token: first(own.token, all.token, ""),
		AcceptVersion: first(own.version, all.version, ""), TelemetryOff: first(own.telemetryOff, all.telemetryOff, false),
		Inference: first(own.inference, all.inference, false), EgressGateway: first(own.egressGateway, all.egressGateway, ""),
		EgressFrom: first(own.egressFrom, all.egressFrom, netip.Prefix{}), Binaries: first(own.binaries, all.binaries, []string{}),
	}
}

// Choice is the same for the launcher.
func (o OpenShell) Choice() sandbox.OpenShellChoice {
	return sandbox.OpenShellChoice{
		Gateway: o.Gateway.Value, TelemetryOff: o.TelemetryOff.Value,
		Connection: sandbox.OpenShellConnection{Endpoint: o.Endpoint.Value, Workspace: o.Workspace.Value, CA: o.CA.Value, Cert: o.Cert.Value, Key: o.Key.Value,
			Token: o.Token.Value, AcceptVersion: o.AcceptVersion.Value},
	}
}

func (o OpenShell) rows() []Row {
	const at = "sandbox.openshell."
	return []Row{
		row(at+"gateway", o.Gateway), row(at+"endpoint", o.Endpoint), row(at+"workspace", o.Workspace), row(at+"ca", o.CA), row(at+"cert", o.Cert), row(at+"key", o.Key),
		row(at+"token", o.Token), row(at+"accept_version", o.AcceptVersion), row(at+"telemetry_off", o.TelemetryOff), row(at+"inference", o.Inference),
		row(at+"egress_gateway", o.EgressGateway), row(at+"egress_from", o.EgressFrom), row(at+"binaries", o.Binaries),
	}
}
