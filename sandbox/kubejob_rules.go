package sandbox

import (
	"slices"
	"strings"
)

// KubernetesRule is what kick's account may do with one kind of object in the
// namespace of its sandboxes.
type KubernetesRule struct {
	Group    string // of the API; empty is the core
	Resource string
	Verbs    []string
	For      string // why, in a few words
}

// KubernetesRules is all that the launcher of Kubernetes Jobs asks of the API
// server. The Role that `kick manifests kubernetes` writes has exactly these.
var KubernetesRules = []KubernetesRule{
	{"batch", "jobs", []string{"create", "get", "list", "watch", "delete"}, "one Job for each kick; get is for those that a dead kick has left"},
	{"", "pods", []string{"list", "watch"}, "the Job's pod: its state, and its end"},
	{"", "pods/exec", []string{"get", "create"}, "the line to the shim; newer API servers want create too"},
	{"", "events", []string{"list", "watch"}, "why a pod does not start"},
}

// Rules is all that a launcher of this choice asks of the API server.
func (c KubernetesChoice) Rules() []KubernetesRule {
	if c.WarmPool != "" {
		return KubernetesWarmRules
	}
	rules := slices.Clone(KubernetesRules)
	if c.Claim != "" {
		rules = append(rules, KubernetesClaimRules...)
	}
	if c.Pool != "" {
		rules = append(rules, KubernetesPoolRules...)
	}
	return rules
}

// split takes what is below a kind apart, as in "pods/exec".
func (r KubernetesRule) split() (resource, sub string) {
	resource, sub, _ = strings.Cut(r.Resource, "/")
	return resource, sub
}
