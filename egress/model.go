package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/policy"
)

// model answers a request below modelPrefix: a model call. The path names the
// route; what follows is the provider's own path, and goes to the provider with
// the operator's key if it is an operation that the gateway knows, with a body
// that it knows all of, for a model that the route allows and within its
// budgets. Nothing is tried a second time.
func (g *Gateway) model(w http.ResponseWriter, r *http.Request, req Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(req.Path, modelPrefix), "/")
	rt := g.routes[name]
	if rt == nil {
		g.deny(w, req, Decision{Rule: "model-no-route", Detail: g.noRoute(name)})
		return
	}
	c := &call{g: g, route: rt, w: w, r: r, req: req, format: rt.ownFormat(), read: path == ""}
	defer func() { release(c.buf) }()
	if path == "" && (r.Method == http.MethodHead || r.Method == http.MethodGet) && r.ContentLength == 0 {
		c.alive()
		return
	}
	if err := c.prepare("/" + path); err != nil {
		c.refuse(err)
		return
	}
	if err := c.forward(); err != nil {
		c.refuse(err)
	}
}

func (g *Gateway) noRoute(name string) string {
	names := strings.Join(slices.Sorted(maps.Keys(g.routes)), ", ")
	if names == "" {
		names = "none"
	}
	return fmt.Sprintf("There is no model route %q; there is %s. The operator of this sandbox may add one under egress.models of the policy.", cut(name), names)
}

// call is one model call.
type call struct {
	g      *Gateway
	route  *route
	w      http.ResponseWriter
	r      *http.Request
	req    Request
	format *format
	read   bool // the request's body was read to its end

	op     operation
	query  string
	buf    *bodyBuffer // that body, or a list that is the answer, is in
	body   *body
	name   string // the model that answers
	most   policy.Budget
	broken bool // a part of an answer was sent
}

// ownFormat is the format of errors about what is no operation.
func (r *route) ownFormat() *format {
	switch r.Provider {
	case policy.Anthropic:
		return anthropicFormat
	case policy.Gemini:
		return geminiFormat
	}
	return chatFormat
}

// alive answers those who look whether there is somebody.
func (c *call) alive() {
	rec, d := c.g.log.decided(c.req, Decision{Allow: true, Rule: "model-route:" + c.route.Route})
	if !d.Allow {
		refuse(c.w, d)
		return
	}
	c.w.WriteHeader(http.StatusOK)
	c.g.log.done(rec, End{Status: http.StatusOK})
}

// prepare checks everything that can be checked before anything is spent.
func (c *call) prepare(path string) error {
	op, model, ok := match(c.route.Provider, c.r.Method, path)
	if !ok {
		return denied("model-path", "%s %s is no operation of %s that this gateway knows. It passes on %s.", c.r.Method, cut(path), c.route.Provider, c.route.known())
	}
	c.op = op
	if op.format != nil {
		c.format = op.format
	}
	if c.query, ok = op.allowsQuery(c.r.URL.RawQuery); !ok {
		return denied("model-query", "The query of %s %s has something that this gateway does not know. Leave it out.", c.r.Method, op.path)
	}
	if op.shape == nil {
		if c.r.ContentLength != 0 {
			return denied("model-body", "%s %s has no body.", c.r.Method, op.path)
		}
		c.read = true
		return nil
	}
	if err := c.readBody(); err != nil {
		return err
	}
	if model == "" {
		model = c.body.model
	}
	if model == "" {
		return &refusalError{status: http.StatusBadRequest, detail: "The body names no model."}
	}
	return c.settings(model)
}

func (r *route) known() string {
	var all []string
	for _, op := range operations[r.Provider] {
		all = append(all, op.method+" "+op.path)
	}
	return strings.Join(all, ", ")
}

func (c *call) readBody() error {
	if enc := c.r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &refusalError{status: http.StatusUnsupportedMediaType, detail: "The body is compressed, and this gateway has to read it. Send it as it is."}
	}
	tooLarge := &refusalError{status: http.StatusRequestEntityTooLarge, detail: fmt.Sprintf("The body is larger than %d bytes.", c.g.limits.bodyBytes)}
	length := c.r.ContentLength
	if length > c.g.limits.bodyBytes {
		return tooLarge
	}
	if length < 0 {
		length = c.g.limits.bodyBytes
	}
	if c.buf = c.g.newBody(length); c.buf == nil {
		return &refusalError{status: http.StatusTooManyRequests, later: true, detail: "Too many large requests are under way. Send fewer at once."}
	}
	if c.r.ContentLength > 0 {
		c.buf.Grow(int(min(c.r.ContentLength, 1<<20)) + bytes.MinRead)
	}
	n, err := c.buf.ReadFrom(io.LimitReader(c.r.Body, c.g.limits.bodyBytes+1))
	switch {
	case err != nil:
		return &refusalError{status: http.StatusBadRequest, detail: "The body did not arrive whole.", cause: err}
	case n > c.g.limits.bodyBytes:
		return tooLarge
	}
	c.read = true
	c.buf.isWhole()
	if c.body, err = checkBody(c.buf.Bytes(), c.op.shape, c.route.Allow); err != nil {
		var be *bodyError
		if errors.As(err, &be) && be.rule != "" {
			return denied(be.rule, "%s", be.detail)
		}
		return &refusalError{status: http.StatusBadRequest, detail: err.Error()}
	}
	c.body.stream = c.body.stream || c.op.stream
	return nil
}

// settings applies the route's: the model, what is not to be stored, what is
// needed to count, and what the call may cost.
func (c *call) settings(asked string) error {
	b, rt := c.body, c.route
	c.name = asked
	if rt.Force != "" {
		c.name = rt.Force
		if b.model != "" {
			b.edit = append(b.edit, edit{b.modelAt.from, b.modelAt.to, strconv.Quote(rt.Force)})
		}
	} else if !rt.AllowsModel(asked) {
		return denied("model-name", "The model %q is not one that route %s allows: %s. Ask for one of those, or the operator of this sandbox adds it to `names`.",
			cut(asked), rt.Route, strings.Join(rt.Names, ", "))
	} else if !rt.mayReachOut(asked) {
		return denied("model-web-search", "The model %q searches the web by itself. Ask for another one, or the operator of this sandbox adds \"web-search\" to `allow` of the model's route, or that very name to `names`.", cut(asked))
	}
	if c.format == responsesFormat && string(b.storeAt.raw) != "false" && !slices.Contains(rt.Allow, "stored") {
		b.set(b.storeAt, b.top(), "store", "false") // the provider's default is to store
	}
	if c.format == chatFormat && b.stream && string(b.usageAt.raw) != "true" {
		b.setIn(b.streamOpt, "stream_options", b.usageAt, "include_usage", "true")
	}
	c.most = policy.Budget{Requests: 1}
	if !c.op.spends {
		return nil
	}
	if !rt.Limited() {
		return nil
	}
	prices := rt.PricesOf(c.name)
	if len(prices) == 0 && (rt.Money > 0 || rt.Day.Money > 0) {
		return denied("model-no-price", "Route %s has a budget of money and no price for %q. The operator of this sandbox adds it to `prices`.", rt.Route, cut(c.name))
	}
	if b.maxOutput == 0 {
		b.maxOutput = rt.MaxOutput
		value := strconv.FormatInt(rt.MaxOutput, 10)
		if c.format == geminiFormat {
			b.setIn(b.genConfig, "generationConfig", b.maxAt, c.format.maxField, value)
		} else {
			b.set(b.maxAt, b.top(), c.format.maxField, value)
		}
	}
	// A token is a byte or more; 2,000 are for what the provider adds itself.
	input := int64(len(b.raw)) + b.media + 2000
	output := b.maxOutput * max(b.answers, 1)
	if b.compacts {
		input, output = 2*input, 2*output
	}
	c.most.Tokens = input + output
	for _, p := range prices { // the dearest that may hold
		if input > p.AboveTokens {
			c.most.Money = max(c.most.Money, (float64(input)*max(p.Input, p.CacheWrite, p.CacheRead)+float64(output)*p.Output)/1e6)
		}
	}
	return nil
}

// mayReachOut reports whether a model does not search the web by itself, or may.
func (r *route) mayReachOut(model string) bool {
	return !searches(model) || slices.Contains(r.Names, model) || slices.Contains(r.Allow, "web-search")
}

// searchWords tell in a model's name that it searches the web whatever the body
// says: those of OpenAI and others have "search" or "research" in it, Perplexity's
// are "sonar", Groq's "compound", and any at OpenRouter may have ":online" behind
// its name. The rest are what such a model would be called.
var searchWords = []string{"sonar", "compound", "online", "web", "browse", "browser", "browsing", "internet", "grounded", "grounding"}

func searches(model string) bool {
	model = strings.ToLower(model)
	return strings.Contains(model, "search") || slices.ContainsFunc(strings.FieldsFunc(model, func(r rune) bool { return strings.ContainsRune("._:/@-", r) }), func(word string) bool {
		return slices.Contains(searchWords, word)
	})
}

// forward sends the request, and the answer back. Its errors are from before
// anything of the answer went to the agent.
func (c *call) forward() error {
	held, err := c.route.budget.reserve(c.most)
	var ob *overBudget
	if errors.As(err, &ob) {
		return &refusalError{status: http.StatusTooManyRequests, rule: "model-budget", detail: ob.detail, later: ob.later}
	}
	if err != nil {
		return &refusalError{status: http.StatusServiceUnavailable, rule: "model-budget", detail: "The budget could not be kept, so nothing is spent. The operator of this sandbox has to look at it.", cause: err}
	}
	rec, d := c.g.log.decided(c.req, Decision{Allow: true, Rule: "model-route:" + c.route.Route})
	if !d.Allow {
		err := held.settle(policy.Budget{})
		return &refusalError{status: http.StatusForbidden, rule: d.Rule, detail: d.Detail, cause: err}
	}
	end := End{Model: c.name}
	cost := policy.Budget{Requests: 1}
	err = c.exchange(&end, &cost)
	if end.Usage == nil && cost.Tokens > 0 { // there was no answer that says
		c.charge(&meter{}, &end, &cost)
	}
	if serr := held.settle(cost); serr != nil {
		end.Error = join2(end.Error, serr.Error())
	}
	var re *refusalError
	if errors.As(err, &re) {
		end.Status, end.Error = re.status, join2(re.detail, fmt.Sprint(re.cause))
		c.answer(re)
	}
	c.g.log.done(rec, end)
	if c.broken {
		panic(http.ErrAbortHandler) // ends the connection without the mark of a whole answer
	}
	return nil
}

func join2(a, b string) string {
	if a == "" || b == "" || b == "<nil>" {
		return strings.TrimSuffix(a+b, "<nil>")
	}
	return a + ": " + b
}

func (c *call) exchange(end *End, cost *policy.Budget) error {
	key, err := c.route.key.read(c.r.Context())
	if err != nil {
		return &refusalError{status: http.StatusServiceUnavailable, detail: "The operator's key for this route could not be read.", cause: err}
	}
	x := newPassage(c.r.Context(), c.g.limits.modelTime, c.g.limits.answerTime)
	defer x.end()
	res, err := c.send(x.ctx, key, end, cost)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := c.checkAnswer(res, key, cost); err != nil {
		return err
	}
	x.allow(c.g.limits.silence)
	if c.op.lists && res.StatusCode == http.StatusOK {
		return c.deliverList(x, res, key, end)
	}
	c.deliver(x, res, key, end, cost)
	return nil
}

func (c *call) send(ctx context.Context, key string, end *End, cost *policy.Budget) (*http.Response, error) {
	out, err := http.NewRequestWithContext(ctx, c.r.Method, "", http.NoBody)
	if err != nil {
		return nil, &refusalError{status: http.StatusBadGateway, detail: "The request could not be made.", cause: err}
	}
	out.URL = c.route.target(c.op, c.name)
	out.URL.RawQuery = c.query
	out.Host = out.URL.Host
	out.Header = c.route.header(c.r.Header)
	c.route.authorize(out.Header, key)
	if c.body != nil {
		body := &sentBody{parts: c.body.parts(), buf: c.buf}
		c.body, c.buf = nil, nil // an answer takes minutes, in which they are not kept
		end.Sent = body.length()
		out.Header.Set("Content-Type", "application/json")
		out.ContentLength = end.Sent
		out.Body = body
	}
	connected := false
	out = out.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}))
	res, err := c.route.transport.RoundTrip(out)
	if connected {
		*cost = c.most // it may have arrived, and cost
	}
	if err != nil {
		e := &refusalError{status: http.StatusBadGateway, detail: "The model's provider could not be reached, or did not answer.", cause: err}
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			e.status = http.StatusGatewayTimeout
		}
		return nil, e
	}
	return res, nil
}

// checkAnswer refuses what the gateway does not pass on, and replaces what could
// tell of the key or the operator.
func (c *call) checkAnswer(res *http.Response, key string, cost *policy.Budget) error {
	if res.StatusCode >= 300 {
		*cost = policy.Budget{Requests: 1} // an error is not charged
	}
	switch {
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden && key != "" && c.quotesKey(res, key):
		c.route.key.refused(key)
		return &refusalError{status: http.StatusUnauthorized, detail: fmt.Sprintf("The model's provider refused the operator's key for route %s.", c.route.Route)}
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return &refusalError{status: http.StatusBadGateway, detail: "The model's provider answers with a redirect, which is not followed. The operator of this sandbox corrects `endpoint`."}
	case res.StatusCode < 200:
		return &refusalError{status: http.StatusBadGateway, detail: "The model's provider switches protocols, which was not asked for."}
	case res.Header.Get("Content-Encoding") != "" && res.Header.Get("Content-Encoding") != "identity":
		return &refusalError{status: http.StatusBadGateway, detail: "The model's provider compressed its answer, which was not asked for."}
	}
	if res.StatusCode == http.StatusForbidden {
		c.route.key.refused(key)
	}
	return nil
}

// quotesKey reports whether an error's body has a part of the key, and puts the
// body back.
func (c *call) quotesKey(res *http.Response, key string) bool {
	const most = 64 << 10
	b, _ := io.ReadAll(io.LimitReader(res.Body, most))
	res.Body = readCloser{io.MultiReader(bytes.NewReader(b), res.Body), res.Body}
	part := key[:min(len(key), 12)]
	return bytes.Contains(b, []byte(part))
}

type readCloser struct {
	io.Reader
	io.Closer
}
