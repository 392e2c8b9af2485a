// Package podman is a client of Podman's own REST API (libpod) on a Unix socket:
// the few calls that a launcher makes, each bounded by its context. The types
// hold the fields that kick uses and no others.
package podman

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The API's versions, which are Podman's own. Every 4.x and 5.x server speaks
// the oldest of them.
const (
	apiVersion = "4.0.0"
	apiRoot    = "/v" + apiVersion + "/libpod"
)

// maxAnswer bounds what is read of an answer, in bytes. That of an inspection
// has some ten thousand.
const maxAnswer = 8 << 20

// Client speaks to one service. Its methods may be called at once.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client of the service that listens on a Unix socket.
func New(socket string) *Client {
	c := &Client{socket: socket}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		DisableCompression: true,
		IdleConnTimeout:    time.Minute,
	}}
	return c
}

// Close frees the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", c.socket)
}

// Error is a service's refusal.
type Error struct {
	Status  int    `json:"response"`
	Message string `json:"message"`
	Cause   string `json:"cause"`
}

func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("Podman answered %d %s", e.Status, http.StatusText(e.Status))
	}
	return "Podman: " + e.Message
}

// IsStatus reports whether err is a refusal with that HTTP status.
func IsStatus(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// call makes one request and decodes the answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, body, out any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://podman"+path, r)
	if err != nil {
		return err
	}
	req.URL.RawQuery = query.Encode()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // the URL says nothing, the cause does
		}
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(b) > maxAnswer:
		return fmt.Errorf("the answer of Podman to %s has more than %d bytes", path, maxAnswer)
	case resp.StatusCode >= 300:
		return refusal(resp.StatusCode, b)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("the answer of Podman to %s: %w", path, err)
	}
	return nil
}

func refusal(status int, body []byte) error {
	e := &Error{}
	_ = json.Unmarshal(body, e) // whatever it says, it is a refusal
	e.Status = status
	return e
}

// Ping returns the version of the service, e.g. "5.8.3".
func (c *Client) Ping(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podman"+apiRoot+"/_ping", nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return "", err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // so that the connection can be used again
	v := resp.Header.Get("Libpod-API-Version")
	if v == "" {
		return "", errors.New("what listens there is not Podman: its answer has no Libpod-API-Version (Docker has none)")
	}
	return v, nil
}

// Info is what a service says of its host.
type Info struct {
	Host struct {
		CgroupVersion     string   `json:"cgroupVersion"` // "v1" or "v2"
		CgroupControllers []string `json:"cgroupControllers"`
		OCIRuntime        struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"ociRuntime"`
		Security struct {
			Rootless        bool `json:"rootless"`
			SeccompEnabled  bool `json:"seccompEnabled"`
			SELinuxEnabled  bool `json:"selinuxEnabled"`
			AppArmorEnabled bool `json:"apparmorEnabled"`
		} `json:"security"`
		IDMappings struct {
			UIDMap []IDMap `json:"uidmap"`
			GIDMap []IDMap `json:"gidmap"`
		} `json:"idMappings"`
	} `json:"host"`
	Store struct {
		GraphDriverName string `json:"graphDriverName"`
	} `json:"store"`
	Version struct {
		Version string `json:"Version"`
	} `json:"version"`
}

// CountIDs counts the ids of a mapping.
func CountIDs(maps []IDMap) int {
	n := 0
	for _, m := range maps {
		n += m.Size
	}
	return n
}

// Info asks the service about its host. It is slow: Podman asks its runtimes in
// turn.
func (c *Client) Info(ctx context.Context) (Info, error) {
	var i Info
	return i, c.call(ctx, http.MethodGet, apiRoot+"/info", nil, nil, &i)
}

// Image is one image of the service's storage.
type Image struct {
	ID     string `json:"Id"`     // hex, of the configuration
	Digest string `json:"Digest"` // "sha256:…", of the manifest
	Config struct {
		Volumes map[string]struct{} `json:"Volumes"`
	} `json:"Config"`
}

// Image looks an image up by name, id or digest. It never pulls.
func (c *Client) Image(ctx context.Context, name string) (Image, error) {
	var i Image
	return i, c.call(ctx, http.MethodGet, apiRoot+"/images/"+url.PathEscape(name)+"/json", nil, nil, &i)
}

// Network is a network of the service.
type Network struct {
	Name     string `json:"name"`
	Driver   string `json:"driver"`
	Internal bool   `json:"internal"` // without a way out
}

// Network looks a network up by its name.
func (c *Client) Network(ctx context.Context, name string) (Network, error) {
	var n Network
	return n, c.call(ctx, http.MethodGet, apiRoot+"/networks/"+url.PathEscape(name)+"/json", nil, nil, &n)
}

// Created is a new container.
type Created struct {
	ID       string   `json:"Id"`
	Warnings []string `json:"Warnings"`
}

// Create makes a container, and starts nothing.
func (c *Client) Create(ctx context.Context, s Spec) (Created, error) {
	var r Created
	return r, c.call(ctx, http.MethodPost, apiRoot+"/containers/create", nil, s, &r)
}

// Container is what is known of a container.
type Container struct {
	ID         string `json:"Id"`
	OCIRuntime string `json:"OCIRuntime"`
	State      struct {
		Status    string `json:"Status"`
		Pid       int    `json:"Pid"`
		OOMKilled bool   `json:"OOMKilled"` // Podman 4 always says false
		ExitCode  int    `json:"ExitCode"`
		Error     string `json:"Error"`
	} `json:"State"`
	Config struct {
		Labels map[string]string `json:"Labels"`
	} `json:"Config"`
}

// Inspect looks a container up by name or id.
func (c *Client) Inspect(ctx context.Context, name string) (Container, error) {
	var r Container
	return r, c.call(ctx, http.MethodGet, apiRoot+"/containers/"+url.PathEscape(name)+"/json", nil, nil, &r)
}

// Start starts what Attach has prepared.
func (c *Client) Start(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, apiRoot+"/containers/"+url.PathEscape(name)+"/start", nil, nil, nil)
}

// Pause stops a container's processes where they are. kick never does; its tests
// do.
func (c *Client) Pause(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, apiRoot+"/containers/"+url.PathEscape(name)+"/pause", nil, nil, nil)
}

// Remove kills a container and removes it with its volumes. One that is gone is
// no error.
func (c *Client) Remove(ctx context.Context, name string) error {
	q := url.Values{"force": {"true"}, "v": {"true"}, "timeout": {"0"}, "ignore": {"true"}}
	err := c.call(ctx, http.MethodDelete, apiRoot+"/containers/"+url.PathEscape(name), q, nil, nil)
	if IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// Listed is a container in a list.
type Listed struct {
	ID     string            `json:"Id"`
	Names  []string          `json:"Names"`
	Labels map[string]string `json:"Labels"`
	State  string            `json:"State"`
}

// List lists all containers that have a label, running or not.
func (c *Client) List(ctx context.Context, label string) ([]Listed, error) {
	filters, err := json.Marshal(map[string][]string{"label": {label}})
	if err != nil {
		return nil, err
	}
	var l []Listed
	q := url.Values{"all": {"true"}, "filters": {string(filters)}}
	return l, c.call(ctx, http.MethodGet, apiRoot+"/containers/json", q, nil, &l)
}

// Socket returns the path of a service's Unix socket from its address, which is
// a path or a URL with the scheme unix.
func Socket(address string) (string, error) {
	if strings.HasPrefix(address, "/") {
		return address, nil
	}
	u, err := url.Parse(address)
	if err == nil && u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/") {
		return u.Path, nil
	}
	return "", fmt.Errorf("the Podman address %q is no Unix socket: kick starts sandboxes on its own host only; name a socket as unix:///path", address)
}
