package egress

import "net/http"

// gitRead answers a request below gitPrefix: a fetch from a repository.
func (g *Gateway) gitRead(w http.ResponseWriter, _ *http.Request, req Request) {
	g.deny(w, req, denyByDefault(req))
}
