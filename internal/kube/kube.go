// Package kube speaks with a Kubernetes API server: the few calls that running a
// kick as a Job takes, and watches that survive what cuts them. Configuration,
// authentication, types and the streams of exec are client-go's; its clientset is
// not used, since it would bring every kind of object into every start of kick.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Resource is a kind of object, as the API server's paths have it.
type Resource struct{ Group, Version, Name string }

// The kinds that are used.
var (
	Jobs    = Resource{"batch", "v1", "jobs"}
	Pods    = Resource{"", "v1", "pods"}
	Events  = Resource{"", "v1", "events"}
	Claims  = Resource{"", "v1", "persistentvolumeclaims"}
	Quotas  = Resource{"", "v1", "resourcequotas"}
	Secrets = Resource{"", "v1", "secrets"}
	Reviews = Resource{"authorization.k8s.io", "v1", "selfsubjectaccessreviews"}

	// These are agent-sandbox's.
	SandboxClaims    = Resource{"extensions.agents.x-k8s.io", "v1beta1", "sandboxclaims"}
	SandboxWarmPools = Resource{"extensions.agents.x-k8s.io", "v1beta1", "sandboxwarmpools"}
)

// Client asks one API server. It may be used at once.
type Client struct {
	// Server is the API server's URL.
	Server *url.URL
	// Clock is this host's. Tests set it; otherwise it is time.Now.
	Clock  func() time.Time
	config *rest.Config
	http   *http.Client
	calls  atomic.Int64
	turns  chan struct{} // has one for each call under way
	// away is when the API server did not answer last, or could not, in
	// nanoseconds since 1970.
	away atomic.Int64
	// ahead is the API server's clock before this host's, in nanoseconds.
	ahead atomic.Int64
}

// Where says which API server, and as whom.
type Where struct {
	Kubeconfig string // path; empty: $KUBECONFIG, ~/.kube/config, or the account of the pod that kick runs in
	Context    string // in the kubeconfig; empty: its current one
}

// Load reads a configuration. namespace is what it says, "default" if nothing.
func Load(w Where) (config *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = w.Kubeconfig
	rules.WarnIfAllMissing = false
	c := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: w.Context})
	if namespace, _, err = c.Namespace(); err == nil {
		config, err = c.ClientConfig()
	}
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("there is no kubeconfig, and this is no pod with an account")
	}
	return config, namespace, err
}

// New returns a client. It asks nothing yet.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "kick"
	c := &Client{Clock: time.Now, config: config, turns: make(chan struct{}, underWay)}
	var err error
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	host := config.Host
	if !bytes.Contains([]byte(host), []byte("://")) {
		host = "https://" + host
	}
	c.Server, err = url.Parse(host)
	return c, err
}

// Close frees idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Now is what time it is for the API server, to a second or two, which is what the
// times in its objects are to be compared with. Before its first answer it is this
// host's.
func (c *Client) Now() time.Time { return c.Clock().Add(time.Duration(c.ahead.Load())) }

// Calls is how many requests were made, those of watches and execs included.
func (c *Client) Calls() int64 { return c.calls.Load() }

// url is the address of a kind in a namespace, or of one object and what is below.
func (c *Client) url(r Resource, namespace string, names ...string) *url.URL {
	u := *c.Server
	p := []string{u.Path, "api", r.Version}
	if r.Group != "" {
		p = []string{u.Path, "apis", r.Group, r.Version}
	}
	if namespace != "" {
		p = append(p, "namespaces", namespace)
	}
	u.Path = path.Join(append(append(p, r.Name), names...)...)
	return &u
}

// Error is a call that failed.
type Error struct {
	Verb      string // as in a Role: "create", "watch", ...
	Resource  string // "jobs.batch"
	Namespace string
	Err       error // *apierrors.StatusError where the API server has answered

	settling bool // the API server was away a moment ago
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s in namespace %s: %v", e.Verb, e.Resource, e.Namespace, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Forbidden returns the call that the account may not make, if that is what an
// error is about.
func Forbidden(err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) && apierrors.IsForbidden(e.Err) {
		return e, true
	}
	return nil, false
}

// call is one request.
type call struct {
	verb, method string
	resource     Resource
	namespace    string
	names        []string
	query        url.Values
	content      string // of the body
	body         any
}

func (c *Client) fail(k call, err error) error {
	name := k.resource.Name
	if len(k.names) > 1 {
		name += "/" + k.names[1]
	}
	if k.resource.Group != "" {
		name += "." + k.resource.Group
	}
	if !apierrors.IsForbidden(err) && Transient(err) {
		c.away.Store(time.Now().UnixNano())
	}
	return &Error{Verb: k.verb, Resource: name, Namespace: k.namespace, Err: err, settling: c.Settling()}
}

// settles is how long an API server that was away may refuse what it allows: it
// answers before it knows all roles, for about a second, and more under load.
const settles = 30 * time.Second

// Settling tells that the API server was away a moment ago, so that a refusal may
// not be meant.
func (c *Client) Settling() bool { return time.Since(time.Unix(0, c.away.Load())) < settles }

// open makes a request and returns the body of its answer.
func (c *Client) open(ctx context.Context, k call) (io.ReadCloser, error) {
	var body io.Reader
	if k.body != nil {
		b, err := json.Marshal(k.body)
		if err != nil {
			return nil, c.fail(k, err)
		}
		body = bytes.NewReader(b)
	}
	u := c.url(k.resource, k.namespace, k.names...)
	u.RawQuery = k.query.Encode()
	req, err := http.NewRequestWithContext(ctx, k.method, u.String(), body)
	if err != nil {
		return nil, c.fail(k, err)
	}
	req.Header.Set("Accept", "application/json")
	if k.body != nil {
		req.Header.Set("Content-Type", k.content)
	}
	c.calls.Add(1)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.fail(k, err)
	}
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		c.ahead.Store(int64(date.Sub(c.Clock())))
	}
	if res.StatusCode < 300 {
		return res.Body, nil
	}
	defer res.Body.Close()
	return nil, c.fail(k, statusError(res))
}

// maxStatus bounds the answer of a call that failed, in bytes.
const maxStatus = 64 << 10

func statusError(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxStatus)) // what came is what there is to say
	s := &apierrors.StatusError{}
	if json.Unmarshal(b, &s.ErrStatus) == nil && s.ErrStatus.Kind == "Status" && s.ErrStatus.Code != 0 {
		return s
	}
	s = apierrors.NewGenericServerResponse(res.StatusCode, "", schema.GroupResource{}, "", string(b), 0, false)
	if after, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		s.ErrStatus.Details.RetryAfterSeconds = int32(after)
	}
	return s
}

// maxAnswer bounds the answer of a call that went well, in bytes. The largest is a
// list of pods.
const maxAnswer = 256 << 20

// underWay is how many calls are made at once; watches and execs are not among them.
// More wait their turn here: an API server refuses what it has no room for in its
// queues, and would have to be asked again.
const underWay = 64

func (c *Client) do(ctx context.Context, k call, into any) error {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// A call takes ten times the stack that its caller has, who would keep that while
	// it waits for what comes of it: thousands do.
	called := make(chan error)
	go func() { called <- Again(ctx, func() error { return c.once(ctx, k, into) }) }()
	return <-called
}

// once makes a call once.
func (c *Client) once(ctx context.Context, k call, into any) error {
	body, err := c.open(ctx, k)
	if err != nil {
		return err
	}
	defer body.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(into); err != nil {
		return c.fail(k, err)
	}
	return nil
}

// How long a call is made again where the API server does not answer or says that
// it cannot now, and the pauses between. An API server that restarts is back in 3
// to 20 s.
const (
	patience   = time.Minute
	pauseFirst = 50 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// Again does f until it goes well, fails for good, or patience ends.
func Again(ctx context.Context, f func() error) error {
	until := time.Now().Add(patience)
	for pause := pauseFirst; ; pause = min(2*pause, pauseMost) {
		err := f()
		if err == nil || !Transient(err) || time.Now().Add(pause).After(until) {
			return err
		}
		if !Pause(ctx, pause) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Pause waits for about so long, and reports whether ctx has not ended meanwhile.
// It is not the same for all, so that many clients do not come back at once.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Transient tells an error that may be gone when the call is made again: the API
// server is not there, cannot answer now, or refuses what it may allow as soon as it
// knows all roles.
func Transient(err error) bool {
	if e, ok := Forbidden(err); ok {
		return e.settling
	}
	var s *apierrors.StatusError
	if !errors.As(err, &s) {
		return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
	code := s.ErrStatus.Code
	return code == http.StatusTooManyRequests || code >= 500 && code != http.StatusNotImplemented
}

// Create makes an object. A call that broke off may have made it: then the error
// of the next one is that it exists.
func Create[T any](ctx context.Context, c *Client, r Resource, namespace string, o *T, dryRun bool) (*T, error) {
	made := new(T)
	q := url.Values{}
	if dryRun {
		q.Set("dryRun", "All")
	}
	err := c.do(ctx, call{verb: "create", method: http.MethodPost, resource: r, namespace: namespace, query: q, content: "application/json", body: o}, made)
	return made, err
}

// Get reads one object.
func Get[T any](ctx context.Context, c *Client, r Resource, namespace, name string) (*T, error) {
	o := new(T)
	return o, c.do(ctx, call{verb: "get", method: http.MethodGet, resource: r, namespace: namespace, names: []string{name}}, o)
}

// Patch changes one object by a JSON merge patch and returns it. If the patch names
// a resourceVersion, the object is changed if it still has that, and the error is a
// conflict otherwise; it is one too if a call that broke off has changed it.
func Patch[T any](ctx context.Context, c *Client, r Resource, namespace, name string, patch any) (*T, error) {
	o := new(T)
	return o, c.do(ctx, call{verb: "patch", method: http.MethodPatch, resource: r, namespace: namespace, names: []string{name}, content: "application/merge-patch+json", body: patch}, o)
}

// Delete deletes one object and what it owns, foreground: it stays until all of
// that is gone. uid is the one that is meant. That it is gone already is no error.
func (c *Client) Delete(ctx context.Context, r Resource, namespace, name, uid string) error {
	var only map[string]string
	if uid != "" {
		only = map[string]string{"uid": uid}
	}
	_, err := c.deleteIf(ctx, r, namespace, name, only)
	return err
}

// DeleteSeen deletes one object as Delete does, if nobody has changed it since it was
// seen, and tells whether it was so.
func (c *Client) DeleteSeen(ctx context.Context, r Resource, seen *metav1.ObjectMeta) (deleted bool, err error) {
	return c.deleteIf(ctx, r, seen.Namespace, seen.Name, map[string]string{"uid": string(seen.UID), "resourceVersion": seen.ResourceVersion})
}

func (c *Client) deleteIf(ctx context.Context, r Resource, namespace, name string, only map[string]string) (deleted bool, err error) {
	options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
	if only != nil {
		options["preconditions"] = only
	}
	err = c.do(ctx, call{verb: "delete", method: http.MethodDelete, resource: r, namespace: namespace, names: []string{name}, content: "application/json", body: options}, nil)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil // another one of that name is not meant
	}
	return err == nil, err
}

// May asks whether the account may do something.
func (c *Client) May(ctx context.Context, namespace, verb, group, resource, sub string) (bool, error) {
	type attributes struct {
		Namespace   string `json:"namespace"`
		Verb        string `json:"verb"`
		Group       string `json:"group,omitempty"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource,omitempty"`
	}
	type review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			ResourceAttributes attributes `json:"resourceAttributes"`
		} `json:"spec"`
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	r := &review{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
	r.Spec.ResourceAttributes = attributes{namespace, verb, group, resource, sub}
	r, err := Create(ctx, c, Reviews, "", r, false)
	return r.Status.Allowed, err
}

// Version is what the API server says that it is, as "v1.34.4".
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	err := c.ask(ctx, "version", &v)
	return v.GitVersion, err
}

// Advertised is where the API server says that it is reached within the cluster, as
// HOST:PORT; empty, if it does not say.
func (c *Client) Advertised(ctx context.Context) (string, error) {
	var v metav1.APIVersions
	err := Again(ctx, func() error { return c.ask(ctx, "api", &v) })
	for _, a := range v.ServerAddressByClientCIDRs {
		return a.ServerAddress, err // the first is for everybody who is of no other network
	}
	return "", err
}

// ask reads what is no object.
func (c *Client) ask(ctx context.Context, name string, into any) error {
	u := *c.Server
	u.Path = path.Join(u.Path, name)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	c.calls.Add(1)
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return statusError(res)
	}
	return json.NewDecoder(io.LimitReader(res.Body, maxStatus)).Decode(into)
}
