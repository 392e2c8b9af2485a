package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// How long the network of a new pod may be open, and how an attempt to reach
// something through it goes. Plugins were measured to close it 1 to 3 s after the
// pod's start.
const (
	confinedWithin = 10 * time.Second
	dialMost       = time.Second
	dialPause      = 50 * time.Millisecond
	refusals       = 3 // in a row
)

// confinement waits until none of the addresses can be reached, and says which one
// still can be otherwise.
func confinement(addresses []string) string {
	problems := make([]error, len(addresses))
	var all sync.WaitGroup
	for i, a := range addresses {
		all.Go(func() { problems[i] = unreachable(a, time.Now().Add(confinedWithin)) })
	}
	all.Wait()
	if err := errors.Join(problems...); err != nil {
		return err.Error()
	}
	return ""
}

func unreachable(address string, until time.Time) error {
	for refused := 0; ; time.Sleep(dialPause) {
		c, err := net.DialTimeout("tcp", address, dialMost)
		switch {
		case err == nil:
			c.Close()
			refused = 0
			err = errors.New("it answers")
		case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded): // the dialer's two ways to say so
			return nil // dropped, for as long as an answer could take
		case isRefusal(err):
			if refused++; refused == refusals {
				return nil
			}
			continue
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s can be reached after %v: %w", address, confinedWithin, err)
		}
	}
}

// isRefusal tells an address that cannot be reached from an attempt that was none.
func isRefusal(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
