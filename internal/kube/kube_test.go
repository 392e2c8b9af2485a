package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// What these tests ask of an API server, a real one answers in the packages that
// use this one. Here is what it answers seldom, and when it breaks off.

// Where the API server says that it is, it may say of more networks than one, or of none.
func TestAdvertised(t *testing.T) {
	const one = `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.1:6443"},{"clientCIDR":"10.0.0.0/8","serverAddress":"10.9.9.9:443"}]}`
	for answer, want := range map[string]string{one: "10.0.0.1:6443", `{"kind":"APIVersions"}`: ""} {
		c := script(t, step{request: "GET /api", status: http.StatusInternalServerError, answer: internal}, step{request: "GET /api", answer: answer})
		if got, err := c.Advertised(t.Context()); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	c := script(t, step{request: "GET /api", status: http.StatusForbidden, answer: refused})
	if got, err := c.Advertised(t.Context()); got != "" || !apierrors.IsForbidden(err) {
		t.Errorf("%q, %v", got, err)
	}
}

// step is one request that is to come, and its answer.
type step struct {
	request string // method, path and query
	status  int    // 0 is 200
	answer  string
	cut     bool   // the connection breaks after the answer
	body    string // what the request's body has, if anything
}

// script serves steps, each once and in their order, and holds the client to
// asking for all of them.
func script(t *testing.T, steps ...step) *Client {
	t.Helper()
	var mu sync.Mutex
	next := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		query, err := url.QueryUnescape(r.URL.RawQuery)
		if err != nil {
			t.Error(err)
		}
		got := strings.TrimSuffix(r.Method+" "+r.URL.Path+"?"+query, "?")
		if next == len(steps) {
			t.Errorf("one request too many: %s", got)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		k := steps[next]
		next++
		if got != k.request {
			t.Errorf("request %d is %s, want %s", next, got, k.request)
		}
		if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), k.body) {
			t.Errorf("%v, the body %s lacks %s", err, body, k.body)
		}
		w.WriteHeader(max(k.status, http.StatusOK))
		_, _ = io.WriteString(w, k.answer) // the client may not read all
		if k.cut {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(func() {
		s.Close()
		if next != len(steps) {
			t.Errorf("%d of %d requests came", next, len(steps))
		}
	})
	c, err := New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

const (
	pods  = "/api/v1/namespaces/ns/pods"
	lists = "GET " + pods + "?labelSelector=a=b&limit=500"
	// begins is the request for a watch of all that there is.
	begins = "GET " + pods + "?allowWatchBookmarks=1&labelSelector=a=b&watch=1"
)

// watches is the request for a watch from a version on.
func watches(version int) string {
	return fmt.Sprintf("GET %s?allowWatchBookmarks=1&labelSelector=a=b&resourceVersion=%d&watch=1", pods, version)
}

// status is what the API server says of a call that failed.
func status(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}

// listed is a list at a version.
func listed(version int, next string, names ...string) string {
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":%q}}`, n))
	}
	return fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d","continue":%q},"items":[%s]}`, version, next, strings.Join(items, ","))
}

// event is one of a watch.
func event(kind, name string, version int) string {
	return fmt.Sprintf(`{"type":%q,"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"resourceVersion":"%d"}}}`+"\n", kind, name, version)
}

var (
	expired  = status(http.StatusGone, "Expired", "too old resource version: 10 (99)")
	refused  = status(http.StatusForbidden, "Forbidden", `pods is forbidden: User "kick" cannot do that`)
	internal = status(http.StatusInternalServerError, "InternalError", "etcdserver: leader changed")
	noUser   = status(http.StatusUnauthorized, "Unauthorized", "Unauthorized")
)

// TestFollow: a watch goes on where it was cut, begins anew where the API server
// does not remember, and ends with what is for good, which here is the end of the
// account.
func TestFollow(t *testing.T) {
	t.Parallel()
	end := func(version int) step { return step{request: watches(version), status: 401, answer: noUser} }
	for name, tt := range map[string]struct {
		steps   []step
		onlyNew bool
		noneYet bool
		want    []string // what the follower was told
		err     string
	}{
		"pages, changes and a bookmark": {
			steps: []step{
				{request: lists, answer: listed(10, "more", "a")},
				{request: "GET " + pods + "?continue=more&labelSelector=a=b&limit=500", answer: listed(10, "", "b")},
				{request: watches(10), answer: event("ADDED", "c", 11) + event("MODIFIED", "a", 12) + event("DELETED", "b", 13) + event("BOOKMARK", "", 20)},
				end(20),
			},
			want: []string{"all a b", "changed c", "changed a", "gone b"},
		},
		"cut within an object": {
			steps: []step{
				{request: lists, answer: listed(10, "")},
				{request: watches(10), answer: event("ADDED", "a", 11) + event("MODIFIED", "a", 12)[:40], cut: true},
				{request: watches(11), answer: event("MODIFIED", "a", 12)},
				end(12),
			},
			want: []string{"all", "changed a", "changed a"},
		},
		"cut before anything came": {
			steps: []step{{request: lists, answer: listed(10, "")}, {request: watches(10), cut: true}, end(10)},
			want:  []string{"all"},
		},
		"forgotten, said within the watch": {
			steps: []step{
				{request: lists, answer: listed(10, "", "a")},
				{request: watches(10), answer: `{"type":"ERROR","object":` + expired + `}`},
				{request: lists, answer: listed(99, "", "b")},
				end(99),
			},
			want: []string{"all a", "all b"},
		},
		"forgotten, said at its start": {
			steps: []step{
				{request: lists, answer: listed(10, "", "a")},
				{request: watches(10), status: 410, answer: expired},
				{request: lists, answer: listed(99, "", "b")},
				end(99),
			},
			want: []string{"all a", "all b"},
		},
		"forgotten between two pages": {
			steps: []step{
				{request: lists, answer: listed(10, "more", "a")},
				{request: "GET " + pods + "?continue=more&labelSelector=a=b&limit=500", status: 410, answer: expired},
				{request: lists, answer: listed(99, "", "b")},
				end(99),
			},
			want: []string{"all b"},
		},
		"cannot answer now": {
			steps: []step{
				{request: lists, status: 500, answer: internal},
				{request: lists, status: 503, answer: "<html>no backend</html>"},
				{request: lists, answer: listed(10, "", "a")},
				{request: watches(10), status: 429, answer: status(429, "TooManyRequests", "storage is (re)initializing")},
				{request: watches(10), answer: `{"type":"ERROR","object":` + internal + `}`},
				end(10),
			},
			want: []string{"all a"},
		},
		"only what is new": {
			onlyNew: true,
			steps: []step{
				{request: "GET " + pods + "?labelSelector=a=b&limit=1", answer: listed(10, "more", "a")},
				{request: watches(10), answer: event("ADDED", "b", 11)},
				end(11),
			},
			want: []string{"changed b"},
		},
		"may not list": {
			steps: []step{{request: lists, status: 403, answer: refused}},
			err:   "list pods in namespace ns: pods is forbidden",
		},
		"may not watch": {
			steps: []step{{request: lists, answer: listed(10, "")}, {request: watches(10), status: 403, answer: refused}},
			want:  []string{"all"},
			err:   "watch pods in namespace ns: pods is forbidden",
		},
		"nothing before": {
			steps: []step{
				{request: begins, answer: event("ADDED", "a", 11)},
				{request: watches(11), status: 410, answer: expired},
				{request: lists, answer: listed(99, "", "a")},
				end(99),
			},
			noneYet: true,
			want:    []string{"changed a", "all a"},
		},
		"nothing before, and cut before anything came": {
			steps: []step{
				{request: begins, cut: true},
				{request: lists, answer: listed(10, "", "a")},
				end(10),
			},
			noneYet: true,
			want:    []string{"all a"},
		},
		"refuses before it knows all roles": {
			steps: []step{
				{request: lists, status: 503, answer: "starting"},
				{request: lists, status: 403, answer: refused},
				{request: lists, answer: listed(10, "", "a")},
				{request: watches(10), status: 403, answer: refused},
				end(10),
			},
			want: []string{"all a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := script(t, tt.steps...)
			var told []string
			name := func(p *metav1.PartialObjectMetadata) string { return p.Name }
			err := Follow(t.Context(), c, Selection{Resource: Pods, Namespace: "ns", Labels: "a=b"}, Follower[metav1.PartialObjectMetadata]{
				OnlyNew: tt.onlyNew, NoneYet: tt.noneYet,
				All: func(all []metav1.PartialObjectMetadata) {
					said := "all"
					for i := range all {
						said += " " + name(&all[i])
					}
					told = append(told, said)
				},
				Changed: func(p *metav1.PartialObjectMetadata) { told = append(told, "changed "+name(p)) },
				Gone:    func(p *metav1.PartialObjectMetadata) { told = append(told, "gone "+name(p)) },
			})
			if !slices.Equal(told, tt.want) {
				t.Errorf("told %q, want %q", told, tt.want)
			}
			if tt.err == "" {
				tt.err = "watch pods in namespace ns: Unauthorized"
			}
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("the error is %v, want %s", err, tt.err)
			}
			if _, forbidden := Forbidden(err); forbidden != strings.Contains(tt.err, "forbidden") {
				t.Errorf("forbidden %v: %v", forbidden, err)
			}
		})
	}
}

// A watch that the caller ends is no failure of the API server.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	c := script(t, step{request: lists, answer: listed(10, "")})
	ctx, cancel := context.WithCancel(t.Context())
	err := Follow(ctx, c, Selection{Resource: Pods, Namespace: "ns", Labels: "a=b"}, Follower[metav1.PartialObjectMetadata]{
		All: func([]metav1.PartialObjectMetadata) { cancel() },
	})
	if !errors.Is(err, context.Canceled) || c.Settling() {
		t.Errorf("%v, settling %v", err, c.Settling())
	}
}

// TestCalls: the request of each call, and which answers are its end.
func TestCalls(t *testing.T) {
	t.Parallel()
	type object = metav1.PartialObjectMetadata
	const one, jobs = pods + "/p", "/apis/batch/v1/namespaces/ns/jobs"
	create := func(dryRun bool) func(*Client) error {
		return func(c *Client) error {
			_, err := Create(t.Context(), c, Jobs, "ns", &object{ObjectMeta: metav1.ObjectMeta{Name: "j"}}, dryRun)
			return err
		}
	}
	remove := func(uid string) func(*Client) error {
		return func(c *Client) error { return c.Delete(t.Context(), Pods, "ns", "p", uid) }
	}
	seen := func(want bool) func(*Client) error {
		return func(c *Client) error {
			deleted, err := c.DeleteSeen(t.Context(), Pods, &metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", ResourceVersion: "7"})
			if err == nil && deleted != want {
				err = fmt.Errorf("deleted: %v", deleted)
			}
			return err
		}
	}
	get := func(c *Client) error {
		p, err := Get[object](t.Context(), c, Pods, "ns", "p")
		if err == nil && p.Name != "p" {
			err = fmt.Errorf("it is %q", p.Name)
		}
		return err
	}
	patch := func(c *Client) error {
		_, err := Patch[object](t.Context(), c, Pods, "ns", "p", map[string]any{"metadata": map[string]string{"resourceVersion": "7"}})
		return err
	}
	for name, tt := range map[string]struct {
		call  func(*Client) error
		steps []step
		is    func(error) bool // nil: no error
		says  string
	}{
		"create":     {call: create(false), steps: []step{{request: "POST " + jobs, status: 201, answer: "{}", body: `"name":"j"`}}},
		"try":        {call: create(true), steps: []step{{request: "POST " + jobs + "?dryRun=All", status: 201, answer: "{}"}}},
		"not valid":  {call: create(false), steps: []step{{request: "POST " + jobs, status: 422, answer: status(422, "Invalid", "spec.template: Required value")}}, is: apierrors.IsInvalid, says: "create jobs.batch in namespace ns: spec.template"},
		"not there":  {call: get, steps: []step{{request: "GET " + one, status: 404, answer: status(404, "NotFound", `pods "p" not found`)}}, is: apierrors.IsNotFound, says: `get pods in namespace ns: pods "p" not found`},
		"may not":    {call: create(false), steps: []step{{request: "POST " + jobs, status: 403, answer: refused}}, is: apierrors.IsForbidden, says: "create jobs.batch in namespace ns"},
		"no such":    {call: get, steps: []step{{request: "GET " + one, status: 501, answer: "not implemented"}}, is: func(err error) bool { return err != nil }, says: "get pods in namespace ns"},
		"broken off": {call: get, steps: []step{{request: "GET " + one, answer: `{"metadata":`, cut: true}, {request: "GET " + one, answer: `{"metadata":{"name":"p"}}`}}},
		"away":       {call: get, steps: []step{{request: "GET " + one, status: 502, answer: "bad gateway"}, {request: "GET " + one, answer: `{"metadata":{"name":"p"}}`}}},
		"made, and the answer is lost": {
			call: create(false), is: apierrors.IsAlreadyExists,
			steps: []step{{request: "POST " + jobs, status: 504, answer: status(504, "Timeout", "timed out")}, {request: "POST " + jobs, status: 409, answer: status(409, "AlreadyExists", `jobs.batch "j" already exists`)}},
		},
		"changed meanwhile": {call: patch, steps: []step{{request: "PATCH " + one, body: `"resourceVersion":"7"`, status: 409, answer: status(409, "Conflict", "the object has been modified")}}, is: apierrors.IsConflict},
		"delete":            {call: remove("u1"), steps: []step{{request: "DELETE " + one, answer: "{}", body: `"preconditions":{"uid":"u1"},"propagationPolicy":"Foreground"`}}},
		"deleted already":   {call: remove("u1"), steps: []step{{request: "DELETE " + one, status: 404, answer: status(404, "NotFound", "not found")}}},
		"another is there":  {call: remove("u1"), steps: []step{{request: "DELETE " + one, status: 409, answer: status(409, "Conflict", "the UID in the precondition (u1) does not match")}}},
		"delete as seen":    {call: seen(true), steps: []step{{request: "DELETE " + one, answer: "{}", body: `"preconditions":{"resourceVersion":"7","uid":"u1"},"propagationPolicy":"Foreground"`}}},
		"not as it was":     {call: seen(false), steps: []step{{request: "DELETE " + one, status: 409, answer: status(409, "Conflict", "the ResourceVersion in the precondition (7) does not match")}}},
		"may not delete":    {call: remove(""), steps: []step{{request: "DELETE " + one, status: 403, answer: refused}}, is: apierrors.IsForbidden, says: "delete pods in namespace ns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tt.call(script(t, tt.steps...))
			switch {
			case tt.is == nil && err != nil:
				t.Error(err)
			case tt.is != nil && (!tt.is(err) || !strings.Contains(err.Error(), tt.says)):
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// What stands between kick and the API server may answer anything, and as much as
// it likes.
// No more calls are made at once than an API server has room for. One that gives up
// while it waits is not made.
func TestCallsWait(t *testing.T) {
	t.Parallel()
	var there, most, made atomic.Int64
	full, open := make(chan struct{}), make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		made.Add(1)
		n := there.Add(1)
		defer there.Add(-1)
		most.Store(max(most.Load(), n))
		if n == underWay {
			close(full)
		}
		<-open
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(s.Close)
	c, err := New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	call := func() {
		if _, err := Get[corev1.Pod](t.Context(), c, Pods, "n", "p"); err != nil {
			t.Error(err)
		}
	}
	for range underWay {
		all.Go(call)
	}
	<-full
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("given up"))
	if _, err := Get[corev1.Pod](ctx, c, Pods, "n", "p"); err == nil || !strings.Contains(err.Error(), "given up") || made.Load() != underWay {
		t.Errorf("%v after %d calls", err, made.Load())
	}
	for range 10 {
		all.Go(call)
	}
	close(open)
	all.Wait()
	if most.Load() > underWay || made.Load() != underWay+10 {
		t.Errorf("%d calls at once, %d in all", most.Load(), made.Load())
	}
}

func TestStatusBounded(t *testing.T) {
	t.Parallel()
	c := script(t, step{request: "GET " + pods + "/p", status: 400, answer: strings.Repeat("<", 1<<20)})
	_, err := Get[json.RawMessage](t.Context(), c, Pods, "ns", "p")
	if err == nil || len(err.Error()) > 2*maxStatus {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}

// May asks for exactly what is meant.
func TestMay(t *testing.T) {
	t.Parallel()
	const reviews = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	for _, allowed := range []bool{true, false} {
		c := script(t, step{
			request: reviews, status: 201, answer: fmt.Sprintf(`{"status":{"allowed":%v}}`, allowed),
			body: `"resourceAttributes":{"namespace":"ns","verb":"create","resource":"pods","subresource":"exec"}`,
		})
		if got, err := c.May(t.Context(), "ns", "create", "", "pods", "exec"); err != nil || got != allowed {
			t.Errorf("%v, %v; want %v", got, err, allowed)
		}
	}
}

// TestNow: what time it is for the API server is known from its answers, whatever this
// host believes.
func TestNow(t *testing.T) {
	t.Parallel()
	c := script(t, step{request: "GET " + pods + "/a", answer: `{"metadata":{"name":"a"}}`})
	c.Clock = func() time.Time { return time.Now().Add(-time.Hour) }
	if off := time.Since(c.Now()); off < 59*time.Minute {
		t.Errorf("before any answer it is %v ago", off)
	}
	if _, err := Get[metav1.PartialObjectMetadata](t.Context(), c, Pods, "ns", "a"); err != nil {
		t.Fatal(err)
	}
	if off := time.Since(c.Now()).Abs(); off > time.Minute {
		t.Errorf("after the API server's answer it is off by %v", off)
	}
}
