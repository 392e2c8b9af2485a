package policy

import (
	"slices"
	"strings"
)

// GitHosts returns the hosts of the repositories that may be fetched, in order.
func (r *Reach) GitHosts() []string {
	var hosts []string
	for _, g := range r.git {
		host, _, _ := strings.Cut(g.pattern, "/")
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
