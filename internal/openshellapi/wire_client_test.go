//go:build !openshellsdk

package openshellapi

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kickhq/kick/internal/openshellapi/wire"
)

type healthy struct {
	wire.UnimplementedOpenShellServer
}

func (healthy) Health(context.Context, *wire.HealthRequest) (*wire.HealthResponse, error) {
	return &wire.HealthResponse{Version: "0.1.0"}, nil
}

// A gateway that was away for almost as long as a launcher waits is there again at once.
func TestConnectsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const away = 115 * time.Second
		l := bufconn.Listen(1 << 16)
		s := grpc.NewServer()
		wire.RegisterOpenShellServer(s, healthy{})
		go func() { _ = s.Serve(l) }() // it ends with Stop
		defer s.Stop()
		began := time.Now()
		g, err := dial(Connection{Endpoint: "http://127.0.0.1:1"}, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if time.Since(began) < away {
				return nil, errors.New("the gateway is away")
			}
			return l.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for {
			_, err := g.Health(t.Context())
			if err == nil {
				break
			}
			if e := (&Error{}); !errors.As(err, &e) || e.Code != CodeUnavailable || e.Text != "the gateway is away" {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took > away+10*time.Second {
			t.Errorf("it was away for %v, and found after %v", away, took)
		}
	})
}
