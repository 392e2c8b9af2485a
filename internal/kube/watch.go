package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selection says which objects of a kind are meant.
type Selection struct {
	Resource  Resource
	Namespace string
	Labels    string // a label selector
	Fields    string // a field selector
}

func (s Selection) query() url.Values {
	q := url.Values{}
	if s.Labels != "" {
		q.Set("labelSelector", s.Labels)
	}
	if s.Fields != "" {
		q.Set("fieldSelector", s.Fields)
	}
	return q
}

// list is a list of any kind.
type list[T any] struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []T             `json:"items"`
}

// pageSize is how many objects an answer has.
const pageSize = 500

// List reads all objects of a selection.
func List[T any](ctx context.Context, c *Client, s Selection) (items []T, version string, err error) {
	q := s.query()
	q.Set("limit", fmt.Sprint(pageSize))
	for {
		var l list[T]
		if err := c.do(ctx, call{verb: "list", method: http.MethodGet, resource: s.Resource, namespace: s.Namespace, query: q}, &l); err != nil {
			return nil, "", err
		}
		items = append(items, l.Items...)
		if l.Metadata.Continue == "" {
			return items, l.Metadata.ResourceVersion, nil
		}
		q.Set("continue", l.Metadata.Continue)
	}
}

// Follower is told of the objects of a selection, from one goroutine.
type Follower[T any] struct {
	// All is what there was when the watch began, or when too much was missed.
	// What is not among it is gone.
	All func([]T)
	// Changed is an object as it is now.
	Changed func(*T)
	// Gone is an object as it was last.
	Gone func(*T)
	// OnlyNew tells that what there was before the watch does not matter.
	OnlyNew bool
	// NoneYet tells that there was nothing before the watch. So it begins without a
	// list, and All is called only where too much was missed.
	NoneYet bool
}

// Follow watches until ctx ends, resumes where a watch was cut, and begins anew
// where the API server does not remember so far back. The error is what makes it
// impossible, as a right that is missing.
func Follow[T any](ctx context.Context, c *Client, s Selection, f Follower[T]) error {
	version, pause := "", pauseFirst
	for noneYet := f.NoneYet; ctx.Err() == nil; noneYet = false {
		if version == "" && !noneYet {
			var items []T
			var err error
			if f.OnlyNew {
				version, err = latest(ctx, c, s)
			} else if items, version, err = List[T](ctx, c, s); err == nil {
				f.All(items)
			}
			// A list of many pages expires too.
			if err != nil && !Transient(err) && !apierrors.IsResourceExpired(err) {
				return err
			}
		}
		begun := time.Now()
		if version != "" || noneYet {
			last, err := follow(ctx, c, s, version, f)
			version = last
			switch {
			case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
				version = ""
			case err != nil && !Transient(err) && ctx.Err() == nil:
				return err
			}
		}
		if time.Since(begun) > time.Second {
			pause = pauseFirst // it was a watch, and no attempt
		}
		Pause(ctx, pause)
		pause = min(2*pause, pauseMost)
	}
	return context.Cause(ctx)
}

// latest is the version from which on a watch brings what is new.
func latest(ctx context.Context, c *Client, s Selection) (string, error) {
	var l list[json.RawMessage]
	q := s.query()
	q.Set("limit", "1")
	err := c.do(ctx, call{verb: "list", method: http.MethodGet, resource: s.Resource, namespace: s.Namespace, query: q}, &l)
	return l.Metadata.ResourceVersion, err
}

// follow is one watch. last is where another one begins. Without a version it begins
// with all that there is.
func follow[T any](ctx context.Context, c *Client, s Selection, version string, f Follower[T]) (last string, err error) {
	q := s.query()
	q.Set("watch", "1")
	q.Set("allowWatchBookmarks", "1")
	if version != "" {
		q.Set("resourceVersion", version)
	}
	k := call{verb: "watch", method: http.MethodGet, resource: s.Resource, namespace: s.Namespace, query: q}
	body, err := c.open(ctx, k)
	if err != nil {
		return version, err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var e struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := d.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil // the API server ends every watch after a while
			}
			return version, err
		}
		if e.Type == "ERROR" {
			s := &apierrors.StatusError{}
			if err := json.Unmarshal(e.Object, &s.ErrStatus); err != nil {
				return version, c.fail(k, err)
			}
			return version, c.fail(k, s)
		}
		var meta struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		if err := json.Unmarshal(e.Object, &meta); err != nil {
			return version, c.fail(k, err)
		}
		version = meta.Metadata.ResourceVersion
		if e.Type == "BOOKMARK" {
			continue
		}
		o := new(T)
		if err := json.Unmarshal(e.Object, o); err != nil {
			return version, c.fail(k, err)
		}
		if e.Type == "DELETED" {
			if f.Gone != nil {
				f.Gone(o)
			}
			continue
		}
		f.Changed(o)
	}
}
