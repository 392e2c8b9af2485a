package egress

import "net/http"

// forward answers a proxy request: CONNECT, or one in absolute form.
func (g *Gateway) forward(w http.ResponseWriter, _ *http.Request, req Request) {
	g.deny(w, req, denyByDefault(req))
}
