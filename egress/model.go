package egress

import "net/http"

// model answers a request below modelPrefix: a model call.
func (g *Gateway) model(w http.ResponseWriter, _ *http.Request, req Request) {
	g.deny(w, req, denyByDefault(req))
}
