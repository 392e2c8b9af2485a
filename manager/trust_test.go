package manager

import (
	"testing"

	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// A machine lingers for the same agent, repository and policy, however the repository
// is written.
func TestTrust(t *testing.T) {
	t.Parallel()
	read := func(text string) *policy.Policy {
		p, err := policy.Parse("policy.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	trust := func(change func(*Request)) string {
		req := Request{Agent: "scanner", Network: sandbox.NetworkRestricted, AcceptWeaker: []string{"a", "b"}}
		req.Source.Repo = "https://github.com/acme/api"
		change(&req)
		return (&run{req: req}).trust()
	}
	want := trust(func(*Request) {})
	for name, tt := range map[string]struct {
		change func(*Request)
		same   bool
	}{
		"another task":         {func(r *Request) { r.Prompt, r.Command = "x", []string{"y"} }, true},
		"another spelling":     {func(r *Request) { r.Source.Repo = "HTTPS://GitHub.com:443/acme/api" }, true},
		"the default, written": {func(r *Request) { r.Policy = policy.Default() }, true},
		"a rule of others": {func(r *Request) {
			r.Policy = read("version: 1\nchanges: {scopes: [{agents: [other], limits: {files: 7}}]}\n")
		}, true},
		"another order":      {func(r *Request) { r.AcceptWeaker = []string{"b", "a"} }, true},
		"another agent":      {func(r *Request) { r.Agent = "fixer" }, false},
		"another repository": {func(r *Request) { r.Source.Repo += "2" }, false},
		"another limit":      {func(r *Request) { r.Policy = read("version: 1\nchanges: {limits: {files: 7}}\n") }, false},
		"another way out":    {func(r *Request) { r.Policy = read("version: 1\negress: {presets: [go]}\n") }, false},
		"another network":    {func(r *Request) { r.Network = sandbox.NetworkNone }, false},
		"weaker":             {func(r *Request) { r.AcceptWeaker = []string{"a", "b", "c"} }, false},
	} {
		if got := trust(tt.change); (got == want) != tt.same {
			t.Errorf("%s: the same is %v", name, got == want)
		}
	}
}
