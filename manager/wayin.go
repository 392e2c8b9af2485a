package manager

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/policy"
	"github.com/kickhq/kick/sandbox"
)

// waysIn are the ports at which the gateways of this process are reached by TCP, by
// what the operator chose from.
// All kicks at once share one; the secret that each brings tells them apart.
var waysIn = struct {
	mu   sync.Mutex
	open map[string]*wayIn
}{open: map[string]*wayIn{}}

type wayIn struct {
	tcp   *egress.TCP
	at    string // where sandboxes reach it
	users int
}

// openWayIn opens a port of an address at which sandboxes reach this host, or joins
// those who have one of these open. gateway is as in sandbox.KubernetesChoice.
func openWayIn(gateway string) (*wayIn, func() error, error) {
	w := &waysIn
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.open[gateway]
	if in == nil {
		var err error
		if in, err = listenFor(gateway); err != nil {
			return nil, nil, &sandbox.Error{Kind: sandbox.ErrSpec, Op: "open the egress gateway to sandboxes", Err: err,
				Remedy: "Set kubernetes.gateway in kick.yaml or --gateway, or openshell.egress_gateway for OpenShell, to the address at which sandboxes reach this host and to ports of which one is free, as in 10.1.2.3:8377-8392 (each process of kick has its own), or use network mode none"}
		}
		w.open[gateway] = in
	}
	in.users++
	return in, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if in.users--; in.users > 0 {
			return nil
		}
		delete(w.open, gateway)
		return in.tcp.Close()
	}, nil
}

// listenFor listens at the first port that is free. A port that another process has
// is never shared with it: the sandboxes of each would come to the other.
func listenFor(gateway string) (*wayIn, error) {
	host, text, err := net.SplitHostPort(gateway)
	if err != nil {
		return nil, fmt.Errorf("%q is no address and port", gateway)
	}
	ports, err := policy.ParsePorts(text)
	if err != nil {
		return nil, err
	}
	own, err := listenHost(host)
	if err != nil {
		return nil, err
	}
	for port := ports.First; ; port++ {
		tcp, err := egress.ListenTCP(net.JoinHostPort(own, strconv.Itoa(port)))
		switch {
		case err == nil:
			_, port, err := net.SplitHostPort(tcp.Address())
			return &wayIn{tcp: tcp, at: net.JoinHostPort(host, port)}, err
		case !errors.Is(err, syscall.EADDRINUSE) || port == ports.Last:
			return nil, err
		}
	}
}

// listenHost returns where to listen for what sandboxes reach at a host: there, if
// it is an address of this one's own, and else, where a network rewrites it, at
// every one.
func listenHost(host string) (string, error) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("look at this host's addresses: %w", err)
	}
	ip := net.ParseIP(host)
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && ip != nil && n.IP.Equal(ip) {
			return ip.String(), nil
		}
	}
	return "", nil
}

// strangersNote tells who was refused since there were so many: a sandbox that does not
// get through may be among them, under an address that is not its own. Empty: nobody.
func strangersNote(way *egress.TCP, before int) string {
	n, last := way.Refused()
	if n == before {
		return ""
	}
	return fmt.Sprintf("the egress gateway at %s refused connections from where it knows no sandbox (%d, the last from %s): if that is a node's address, the cluster rewrites the pods' on their way, see \"What does not work\" in docs/kubernetes.md; on OpenShell, openshell.egress_from may be another network than theirs", way.Address(), n-before, last)
}

// TryWayIn opens a port of the gateway for an address at which sandboxes reach this host,
// and closes it again. It returns where it listened. Whether sandboxes get there, the
// first kick finds out.
func TryWayIn(gateway string) (string, error) {
	way, close, err := openWayIn(gateway)
	if err != nil {
		return "", err
	}
	return way.tcp.Address(), close()
}

// journaled is a choice as the journal has it.
func journaled[T sandbox.KubernetesChoice | sandbox.KubeVirtChoice](c T) string {
	b, _ := json.Marshal(c) // it has nothing that could not be marshalled
	return string(b)
}
