// Package agents knows how coding agents run without a terminal and without a
// network but the egress gateway: their command lines, their variables and the
// files of their home. None of it is secret: where an agent insists on a key it
// gets credential.DummyKey, and the gateway adds the real one outside.
package agents

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kickhq/kick/internal/credential"
	"github.com/kickhq/kick/internal/lazyregexp"
	"github.com/kickhq/kick/policy"
)

// GatewayPort is the loopback port in a sandbox that leads to the egress
// gateway. It is the port that proxies commonly use, so that people recognise
// it.
const GatewayPort = 3128

// gatewayURL is the gateway as the agent sees it.
var gatewayURL = fmt.Sprintf("http://127.0.0.1:%d", GatewayPort)

// DefaultKind is the kind of an agent that has neither a kind nor a command.
const DefaultKind = "claude"

// API is a wire format that models are spoken to in.
type API string

// The wire formats.
const (
	OpenAIResponses   API = "openai-responses"
	OpenAIChat        API = "openai-chat"
	AnthropicMessages API = "anthropic-messages"
	Gemini            API = "gemini"
)

// Kind is a coding agent whose command line is known.
type Kind struct {
	Name    string `json:"name"`
	Product string `json:"product"` // and the package that it comes in
	API     API    `json:"api"`
	// Script runs under sh -c in the workspace, gives the agent the prompt, and
	// ends as the agent does. $KICK_MODEL_URL and $KICK_MODEL are set as
	// Environment says.
	Script string `json:"script"`
	// Env are the agent's variables. In a value, {url} stands for the route's
	// base URL, {path} for the path of that, {gateway} for the gateway's URL,
	// {key} for credential.DummyKey and {model} for the model; a variable that
	// needs a model where none is named is left out.
	Env map[string]string `json:"env"`
	// Home are files below the home directory, with their content.
	Home map[string]string `json:"home,omitempty"`
	// NeedsModel tells that the agent does not choose a model by itself.
	NeedsModel bool `json:"needsModel"`
	// MaxPrompt is the longest prompt in bytes; 0: any. Linux limits an
	// argument to 128 KiB (MAX_ARG_STRLEN).
	MaxPrompt int `json:"maxPrompt,omitempty"`
	// Tested is the version that the tests run. Empty: the settings are those
	// of its documentation, and no test runs it.
	Tested string `json:"tested,omitempty"`
	// NPM is where its program can be had.
	NPM NPM `json:"-"`
}

// Command is the agent's command line.
func (k Kind) Command() []string { return []string{"sh", "-c", k.Script} }

// Kinds returns all kinds in the order of their names.
func Kinds() []Kind { return slices.Clone(kinds) }

// Names returns the names of all kinds, in order.
func Names() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// Find returns the kind of that name.
func Find(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// speakers are the providers of a policy that speak an API, the usual one first.
var speakers = map[API][]policy.Provider{
	OpenAIResponses:   {policy.OpenAI, policy.OpenAICompatible},
	OpenAIChat:        {policy.OpenAI, policy.OpenAICompatible},
	AnthropicMessages: {policy.Anthropic},
	Gemini:            {policy.Gemini},
}

// Route returns the first model route of the policy that speaks the agent's
// wire format. The error says what to write into the policy.
func (k Kind) Route(models []policy.Model) (policy.Model, error) {
	for _, m := range models {
		if slices.Contains(speakers[k.API], m.Provider) {
			return m.Filled(), nil
		}
	}
	m := policy.Model{Provider: speakers[k.API][0]}.Filled()
	return m, fmt.Errorf(`agent kind %s calls a model by %s, and the policy has no route for that: add one to the policy file (--policy), as in

version: 1
egress:
  models:
    - provider: %s
      key_env: %s  # a variable of kick's own environment; the sandbox never has it`, k.Name, k.API, m.Provider, m.KeyEnv)
}

// ModelPattern is what a model's name looks like.
const ModelPattern = `^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$`

var modelName = regexp.MustCompile(ModelPattern)

// CheckModel refuses what is no name of a model.
func CheckModel(name string) error {
	if !modelName.MatchString(name) {
		return fmt.Errorf("%q is no name of a model: use up to 128 letters, digits and . _ : / @ + -, and begin with a letter or digit", name)
	}
	return nil
}

// Model chooses the model: the one asked for, else the one that the route
// forces or that it allows alone, else the agent's own choice, which is empty.
func (k Kind) Model(asked string, route policy.Model) (string, error) {
	switch {
	case asked != "" && !route.AllowsModel(asked):
		return "", fmt.Errorf("model %q is not allowed by `names` of the policy's %s route, which has %s: choose one of them, or add it there", asked, route.Route, strings.Join(route.Names, ", "))
	case asked != "":
		return asked, CheckModel(asked)
	case route.Force != "":
		return route.Force, CheckModel(route.Force)
	case len(route.Names) == 1 && !strings.Contains(route.Names[0], "*"):
		return route.Names[0], CheckModel(route.Names[0])
	case k.NeedsModel:
		return "", fmt.Errorf("agent kind %s does not choose a model by itself: name one with --model, or one alone below `names` of the policy's %s route", k.Name, route.Route)
	}
	return "", nil
}

// Environment is what the agent's command needs beside the usual variables. The
// route is one that Route returned.
func (k Kind) Environment(route policy.Model, model string) map[string]string {
	url := modelURL(route)
	env := map[string]string{"KICK_MODEL_URL": url}
	if model != "" {
		env["KICK_MODEL"] = model
	}
	fill := strings.NewReplacer("{gateway}", gatewayURL, "{url}", url, "{path}", strings.TrimPrefix(url, gatewayURL+"/"), "{model}", model, "{key}", credential.DummyKey)
	for name, v := range k.Env {
		if model == "" && strings.Contains(v, "{model}") {
			continue
		}
		env[name] = fill.Replace(v)
	}
	return env
}

func modelURL(route policy.Model) string { return gatewayURL + "/model/" + route.Route }

// inferenceLocal is a gateway of OpenShell as its sandboxes see it, for calls of
// models: its one route stands for all of a policy's.
const inferenceLocal = "https://inference.local"

var (
	routeURL  = lazyregexp.New(regexp.QuoteMeta(gatewayURL) + `(/model/[A-Za-z0-9._-]+)?`)
	routePath = lazyregexp.New(`^model/[A-Za-z0-9._-]+/`)
)

// ForInferenceLocal is a text of Environment or Home for where models are called at
// OpenShell's gateway instead of kick's.
func ForInferenceLocal(text string) string {
	return routePath.ReplaceAllString(routeURL.ReplaceAllString(text, inferenceLocal), "")
}

// InferenceLocal reports whether OpenShell's gateway answers the kind's calls, if it has
// a route for models.
func (k Kind) InferenceLocal() bool { return k.API != Gemini }

// ForGatewayAt is a text of Environment or Home for where kick's gateway is at another
// loopback port than GatewayPort.
func ForGatewayAt(text string, port int) string {
	return strings.ReplaceAll(text, gatewayURL, fmt.Sprintf("http://127.0.0.1:%d", port))
}

// directly has loopback reached without a proxy.
const directly = "127.0.0.1,localhost,::1"

// WithoutProxy has loopback reached directly, whatever proxy there is.
func WithoutProxy() map[string]string {
	return map[string]string{"NO_PROXY": directly, "no_proxy": directly}
}

// ProxyEnvironment leads every program that knows proxies to the gateway.
// Loopback, the gateway itself too, is reached without one.
func ProxyEnvironment() map[string]string {
	env := WithoutProxy()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		env[name] = gatewayURL
	}
	return env
}
