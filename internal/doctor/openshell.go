package doctor

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/kickhq/kick/sandbox"
)

// openShell proves the properties of a sandbox of an OpenShell gateway on a live one,
// and finds in it what a kick needs of the image.
func openShell(ctx context.Context, o Options) []Check {
	const name = "openshell sandbox"
	c, err := o.OpenShell.Found()
	gateway := Check{Name: "openshell gateway", OK: err == nil, Found: c.Endpoint}
	if err != nil {
		gateway.Found, gateway.Remedy = err.Error(), "Choose one with `openshell gateway select`, or pass --openshell-gateway."
		return []Check{gateway}
	}
	if o.Image == "" {
		return []Check{gateway, {Name: name, Isolation: true, Found: "no image, so no sandbox was looked into", Remedy: "Pass --image with an image by its digest, NAME@sha256:…"}}
	}
	l, err := sandbox.NewOpenShell(sandbox.OpenShellConfig{Shim: func() (io.ReadCloser, error) { return again(o.Shim) }, Image: o.Image})
	if err != nil {
		return []Check{gateway, notProved(name, err)}
	}
	return append([]Check{gateway}, provedOnce(ctx, name, l.With(o.OpenShell))...)
}

// again reads the shim from its beginning.
func again(shim fs.File) (io.ReadCloser, error) {
	s, ok := shim.(io.ReadSeeker)
	if !ok {
		return nil, errors.New("the shim cannot be read twice")
	}
	_, err := s.Seek(0, io.SeekStart)
	return io.NopCloser(s), err
}
