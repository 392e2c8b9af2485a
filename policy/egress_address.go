package policy

import (
	"net/netip"
	"slices"
)

// neverPrefixes are addresses that no policy opens: what is local to a host or
// a link, metadata services of clouds, and what leads to any address in
// disguise. See the special-purpose registries of IANA (RFC 6890).
var neverPrefixes = prefixes(
	"0.0.0.0/8",          // this network; Linux takes 0.0.0.0 for loopback
	"127.0.0.0/8",        // loopback
	"169.254.0.0/16",     // link-local, metadata of most clouds
	"100.100.100.200/32", // metadata of Alibaba Cloud
	"168.63.129.16/32",   // Azure's platform
	"192.0.0.0/24",       // protocol assignments, metadata of Oracle's classic cloud
	"192.88.99.0/24",     // 6to4 relays
	"224.0.0.0/4",        // multicast
	"240.0.0.0/4",        // reserved, and broadcast
	"::/96",              // unspecified, loopback, IPv4-compatible
	"::ffff:0:0/96",      // IPv4-mapped
	"64:ff9b::/96",       // NAT64: any IPv4 address
	"64:ff9b:1::/48",     // NAT64, local use
	"2001::/32",          // Teredo: any IPv4 address
	"2002::/16",          // 6to4: any IPv4 address
	"fd00:ec2::254/128",  // metadata of AWS
	"fd20:ce::254/128",   // metadata of Google's cloud
	"fe80::/10",          // link-local
	"fec0::/10",          // site-local, deprecated
	"ff00::/8",           // multicast
)

// privatePrefixes are addresses that only a host's own list opens.
var privatePrefixes = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // private
	"100.64.0.0/10",                                     // shared by carriers, and by pods in some clusters
	"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", // documentation
	"198.18.0.0/15", // benchmarks
	"fc00::/7",      // unique local
	"2001:db8::/32", // documentation
	"3fff::/20",     // documentation
	"100::/64",      // discard
	"5f00::/16",     // segment routing
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// AllowsAddress decides about an address that the host of an allowed request
// resolved to: whoever connects resolves once, asks, and connects to that very
// address. rule says what refused it.
func (a Answer) AllowsAddress(ip netip.Addr) (rule string, ok bool) {
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
	}
	switch {
	case !ip.IsValid() || ip.Zone() != "" || in(neverPrefixes):
		return "address-never", false
	case len(a.Addresses) > 0 && !in(a.Addresses):
		return "address-not-listed", false
	case len(a.Addresses) > 0:
		return "", true
	case in(privatePrefixes):
		return "address-private", false
	}
	return "", true
}
