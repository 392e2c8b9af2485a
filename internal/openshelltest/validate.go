package openshelltest

import (
	"path"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kickhq/kick/internal/openshellapi"
	"github.com/kickhq/kick/internal/openshellapi/wire"
)

var (
	nameForm  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	keyForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	labelKey  = regexp.MustCompile(`^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelText = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkCreate is what creation refuses (Names and limits).
func checkCreate(q *wire.CreateSandboxRequest) error {
	s := q.GetSpec()
	switch name := q.GetName(); {
	case s == nil:
		return invalid("spec is required")
	case len(name) > openshellapi.MaxName, !nameForm.MatchString(name), strings.Contains(name, "--"):
		return invalid("name %q: at most 19 of a-z, 0-9 and single -", name)
	}
	for k, v := range q.GetLabels() {
		if !labelKey.MatchString(k) || !labelText.MatchString(v) {
			return invalid("label %q=%q", k, v)
		}
	}
	if len(q.GetAnnotations()) > 128 {
		return invalid("%d annotations", len(q.GetAnnotations()))
	}
	for k, v := range q.GetAnnotations() {
		if !labelKey.MatchString(k) || len(v) > openshellapi.MaxAttribute {
			return invalid("annotation %q of %d bytes", k, len(v))
		}
	}
	if err := checkEnvironment(s.GetEnvironment()); err != nil {
		return err
	}
	if err := checkArguments(s.GetCommand(), 256); err != nil {
		return err
	}
	if proto.Size(s.GetTemplate().GetResources()) > 64<<10 || proto.Size(s.GetTemplate().GetDriverConfig()) > 64<<10 {
		return invalid("resources or driver_config over 64 KiB")
	}
	return checkPolicy(s.GetPolicy())
}

func checkEnvironment(env map[string]string) error {
	total := 0
	for k, v := range env {
		total += len(k) + len(v)
		if len(k) > 256 || !keyForm.MatchString(k) || strings.HasPrefix(k, "OPENSHELL_") || len(v) > openshellapi.MaxAttribute || strings.ContainsAny(v, "\x00\n") {
			return invalid("environment variable %q", k)
		}
	}
	if len(env) > 128 || total > 256<<10 {
		return invalid("environment of %d entries and %d bytes", len(env), total)
	}
	return nil
}

func checkArguments(argv []string, most int) error {
	total := 0
	for _, a := range argv {
		total += len(a)
		if len(a) > 32<<10 || strings.ContainsRune(a, 0) {
			return invalid("argument of %d bytes", len(a))
		}
	}
	if len(argv) > most || total > 256<<10 {
		return invalid("%d arguments of %d bytes", len(argv), total)
	}
	return nil
}

// checkPolicy is what a policy must not say (Policy).
func checkPolicy(p *wire.SandboxPolicy) error {
	if p == nil {
		return nil
	}
	if proto.Size(p) > openshellapi.MaxPolicy || p.GetVersion() != 1 {
		return invalid("policy of version %d and %d bytes", p.GetVersion(), proto.Size(p))
	}
	paths := append(append([]string(nil), p.GetFilesystem().GetReadOnly()...), p.GetFilesystem().GetReadWrite()...)
	for i, f := range paths {
		if !path.IsAbs(f) || strings.Contains(f, "..") || len(f) > 4096 || len(paths) > 256 || f == "/" && i >= len(p.GetFilesystem().GetReadOnly()) {
			return invalid("filesystem path %q", f)
		}
	}
	for key, rule := range p.GetNetworkPolicies() {
		if strings.HasPrefix(key, "_provider_") {
			return invalid("rule %q is reserved", key)
		}
		for _, e := range rule.GetEndpoints() {
			if err := checkEndpoint(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkEndpoint(e *wire.NetworkEndpoint) error {
	host := e.GetHost()
	switch {
	case host == "", strings.Contains(host, "*") && strings.Count(host, ".") < 2:
		return invalid("host %q", host)
	case e.GetEnforcement() > 2, e.GetAccess() > 3, e.GetTls() > 1:
		return invalid("%s: unknown enumeration", host)
	case e.GetProtocol() == "rest" && (e.GetAccess() == 0) == (len(e.GetRules()) == 0):
		return invalid("%s: rest wants access or rules", host)
	case len(e.GetPorts()) > 0 && e.GetPort() != 0:
		return invalid("%s: port and ports", host)
	}
	for _, port := range e.GetPorts() {
		switch port {
		case 2379, 2380, 6443, 10250, 10255:
			return invalid("%s: port %d is never allowed", host, port)
		}
	}
	return nil
}
