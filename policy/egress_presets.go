package policy

import (
	"maps"
	"slices"
)

// presets are named destinations to read from. Their TLS is terminated, since
// a connection that passes through could write as well.
var presets = map[string]Egress{
	// Fetches of every repository, and reading of the API.
	"github-read": {Hosts: readFrom("api.github.com"), Git: []string{"github.com/*/*"}},
	"npm":         {Hosts: readFrom("registry.npmjs.org")},
	"pypi":        {Hosts: readFrom("pypi.org", "files.pythonhosted.org")},
	// The proxy has the toolchains too.
	"go":     {Hosts: readFrom("proxy.golang.org", "sum.golang.org")},
	"crates": {Hosts: readFrom("crates.io", "index.crates.io", "static.crates.io")},
	"debian": {Hosts: append(readFrom("deb.debian.org", "security.debian.org"),
		Host{Host: "deb.debian.org", Scheme: SchemeHTTP}, Host{Host: "security.debian.org", Scheme: SchemeHTTP})},
}

func readFrom(hosts ...string) []Host {
	out := make([]Host, len(hosts))
	for i, h := range hosts {
		out[i] = Host{Host: h, Terminate: true}
	}
	return out
}

// Presets returns the names of the presets, in order.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// sharedFronts are content networks that serve many sites under one
// certificate or address: what a TLS connection asks for inside may be another
// site than its name says. The list knows the widespread ones.
var sharedFronts = []string{
	"akamaized.net", "akamaihd.net", "azureedge.net", "azurefd.net", "b-cdn.net", "cdn77.org", "cloudflare.net", "cloudfront.net",
	"edgekey.net", "edgesuite.net", "fastly.net", "fastlylb.net", "gcdn.co", "global.ssl.fastly.net", "googleusercontent.com",
	"jsdelivr.net", "pages.dev", "r2.dev", "stackpathdns.com", "trafficmanager.net", "vercel.app", "workers.dev",
}
