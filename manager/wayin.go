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
			Remedy: "Set kubernetes.gateway in kick.yaml or --gateway to the address and port at which pods reach this host, or use network mode none"}
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fail(fmt.Errorf("%q is no address and port", address))
	}
	w := &waysIn
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.open[port]
	if in == nil {
		tcp, err := egress.ListenTCP(":" + port)
		if err != nil {
			return fail(err)
		}
		in = &wayIn{tcp: tcp}
		w.open[port] = in
	}
	in.users++
	return in.tcp, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if in.users--; in.users > 0 {
			return nil
		}
		delete(w.open, port)
		return in.tcp.Close()
	}, nil
}

// journaled is a choice as the journal has it.
func journaled(c sandbox.KubernetesChoice) string {
	b, _ := json.Marshal(c) // it has nothing that could not be marshalled
	return string(b)
}
