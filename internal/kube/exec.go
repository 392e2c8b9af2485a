package kube

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/url"
	"sync"

	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
)

// The package remotecommand logs each stream that breaks; who uses it is told.
func init() {
	runtime.ErrorHandlers = nil
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Set("stderrthreshold", "FATAL"); err != nil { // errors would go there all the same
		panic(err)
	}
}

// Exec runs a program in a container of a pod. The connection is its standard input
// and output, and what it says of its trouble goes to words. It ends when the
// connection is closed, and the connection ends with it.
func (c *Client) Exec(ctx context.Context, namespace, pod, container string, command []string, words io.Writer) (io.ReadWriteCloser, error) {
	u := c.url(Pods, namespace, pod, "exec")
	u.RawQuery = url.Values{"container": {container}, "command": command, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	e, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return nil, err
	}
	c.calls.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	in, toProgram := io.Pipe()
	fromProgram, out := io.Pipe()
	s := &execStream{Reader: fromProgram, Writer: toProgram, in: in, out: out, cancel: cancel}
	s.running.Go(func() {
		err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: words})
		if err == nil {
			err = errors.New("the program in the pod has ended")
		}
		_ = out.CloseWithError(err) // pipes give no error
		_ = in.CloseWithError(err)
	})
	return s, nil
}

// execStream is the standard input and output of a program in a pod.
type execStream struct {
	io.Reader
	io.Writer
	in      *io.PipeReader
	out     *io.PipeWriter
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Close ends the stream, and with it the program. It does not wait.
func (s *execStream) Close() error {
	s.cancel()
	_ = s.in.CloseWithError(io.ErrClosedPipe)
	return s.out.CloseWithError(io.ErrClosedPipe)
}
