package manager

import (
	"encoding/json"
	"fmt"
	"net"
	"sync"

	"github.com/kickhq/kick/egress"
	"github.com/kickhq/kick/sandbox"
)

// waysIn are the ports at which the gateways of this process are reached by TCP.
// All kicks at once share one; the secret that each brings tells them apart.
var waysIn = struct {
	mu   sync.Mutex
	open map[string]*wayIn
}{open: map[string]*wayIn{}}

type wayIn struct {
	tcp   *egress.TCP
	users int
}

// openWayIn opens the port of an address at which sandboxes reach this host, or joins
// those who have it open.
func openWayIn(address string) (*egress.TCP, func() error, error) {
	fail := func(err error) (*egress.TCP, func() error, error) {
		return nil, nil, &sandbox.Error{Kind: sandbox.ErrSpec, Op: "open the egress gateway to pods", Err: err,
			Remedy: "Set kubernetes.gateway in kick.yaml or --gateway to the address and a free port at which pods reach this host (each process of kick has its own), or use network mode none"}
	}
	at, err := listenAt(address)
	if err != nil {
		return fail(err)
	}
	w := &waysIn
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.open[at]
	if in == nil {
		tcp, err := egress.ListenTCP(at)
		if err != nil {
			return fail(err)
		}
		in = &wayIn{tcp: tcp}
		w.open[at] = in
	}
	in.users++
	return in.tcp, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if in.users--; in.users > 0 {
			return nil
		}
		delete(w.open, at)
		return in.tcp.Close()
	}, nil
}

// listenAt returns where to listen for what sandboxes reach at an address: there, if
// it is one of this host's own, and else, where a network rewrites it, at every one.
func listenAt(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%q is no address and port", address)
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("look at this host's addresses: %w", err)
	}
	ip := net.ParseIP(host)
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && ip != nil && n.IP.Equal(ip) {
			return net.JoinHostPort(ip.String(), port), nil
		}
	}
	return ":" + port, nil
}

// strangersNote tells who was refused since there were so many: a sandbox that does not
// get through may be among them, under an address that is not its own. Empty: nobody.
func strangersNote(way *egress.TCP, before int) string {
	n, last := way.Refused()
	if n == before {
		return ""
	}
	return fmt.Sprintf("the egress gateway at %s refused connections from where it knows no sandbox (%d, the last from %s): if that is a node's address, the cluster rewrites the pods' on their way, see \"What does not work\" in docs/kubernetes.md", way.Address(), n-before, last)
}

// TryWayIn opens the gateway's port for an address at which sandboxes reach this host,
// and closes it again. It returns where it listened. Whether sandboxes get there, the
// first kick finds out.
func TryWayIn(address string) (string, error) {
	way, close, err := openWayIn(address)
	if err != nil {
		return "", err
	}
	return way.Address(), close()
}

// journaled is a choice as the journal has it.
func journaled(c sandbox.KubernetesChoice) string {
	b, _ := json.Marshal(c) // it has nothing that could not be marshalled
	return string(b)
}
