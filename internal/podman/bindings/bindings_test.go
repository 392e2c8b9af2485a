//go:build remote && containers_image_openpgp

// Package bindings holds kick's client of Podman against Podman's own Go
// bindings. It is a module of its own, so that the bindings are no dependency of
// kick (ADR 24).
package bindings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/containers/podman/v5/pkg/bindings"
	"github.com/containers/podman/v5/pkg/bindings/containers"
	"github.com/containers/podman/v5/pkg/bindings/images"
	"github.com/containers/podman/v5/pkg/specgen"

	"github.com/kickhq/kick/internal/podman"
)

// TestSpec: each field that kick's specification can have is one of Podman's
// own SpecGenerator, and Podman reads the value that kick wrote.
func TestSpec(t *testing.T) {
	var ours podman.Spec
	n := 0
	fill(t, reflect.ValueOf(&ours).Elem(), &n)
	sent, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	var theirs specgen.SpecGenerator
	d := json.NewDecoder(bytes.NewReader(sent))
	d.DisallowUnknownFields()
	if err := d.Decode(&theirs); err != nil {
		t.Fatalf("Podman does not take %s: %v", sent, err)
	}
	read, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := json.Unmarshal(sent, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(read, &got); err != nil {
		t.Fatal(err)
	}
	if missing := lost("", want, got); len(missing) > 0 {
		t.Errorf("Podman reads less than kick wrote: %s", strings.Join(missing, ", "))
	}
	if n < 60 {
		t.Errorf("%d values were compared, there are more fields than that", n)
	}
}

// fill gives every field a value that is not zero and not another field's.
func fill(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint, reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0), n)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, k, n)
		fill(t, e, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	default:
		t.Fatalf("a field of kind %s: teach this test about it", v.Kind())
	}
}

// lost lists what of want is not in got.
func lost(path string, want, got any) []string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{path}
		}
		var out []string
		for k, v := range w {
			out = append(out, lost(path+"."+k, v, g[k])...)
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return []string{path}
		}
		var out []string
		for i := range w {
			out = append(out, lost(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
		return out
	}
	if !reflect.DeepEqual(want, got) {
		return []string{fmt.Sprintf("%s: %v became %v", path, want, got)}
	}
	return nil
}

// TestService: on a real service, the bindings see what kick's client made, and
// the client reads of it what the bindings read.
func TestService(t *testing.T) {
	address, image := os.Getenv("CONTAINER_HOST"), os.Getenv("KICK_TEST_PODMAN_IMAGE")
	if address == "" || image == "" {
		t.Skip("CONTAINER_HOST and KICK_TEST_PODMAN_IMAGE name no service")
	}
	socket, err := podman.Socket(address)
	if err != nil {
		t.Fatal(err)
	}
	c := podman.New(socket)
	defer c.Close()
	ctx, err := bindings.NewConnection(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := c.Image(ctx, image)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := images.GetImage(ctx, image, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ours.ID != theirs.ID || ours.Digest != theirs.Digest.String() {
		t.Errorf("the image is %s %s to kick and %s %s to the bindings", ours.ID, ours.Digest, theirs.ID, theirs.Digest)
	}
	no := false
	made, err := c.Create(ctx, podman.Spec{
		Name: "kick-bindings", Image: ours.ID, Entrypoint: []string{"/bin/true"}, Labels: map[string]string{"kick.bindings": "yes"},
		NetNS: podman.Namespace{Mode: "none"}, Log: podman.LogConfig{Driver: "none"}, Remove: &no,
		Rlimits: []podman.Rlimit{{Type: "nofile", Soft: 1024, Hard: 1024}, {Type: "nproc", Soft: 1024, Hard: 1024}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Remove(ctx, made.ID); err != nil {
			t.Error(err)
		}
		if there, err := containers.Exists(ctx, made.ID, nil); err != nil || there {
			t.Errorf("after its removal the container is there: %v, %v", there, err)
		}
	}()
	a, err := c.Inspect(ctx, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	b, err := containers.Inspect(ctx, made.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID != b.ID || a.OCIRuntime != b.OCIRuntime || a.State.Status != b.State.Status || a.State.Pid != b.State.Pid || !reflect.DeepEqual(a.Config.Labels, b.Config.Labels) {
		t.Errorf("the container is %+v to kick and %+v to the bindings", a, b)
	}
	list, err := c.List(ctx, "kick.bindings")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := containers.List(ctx, new(containers.ListOptions).WithAll(true).WithFilters(map[string][]string{"label": {"kick.bindings"}}))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || len(listed) != 1 || list[0].ID != listed[0].ID || !reflect.DeepEqual(list[0].Names, listed[0].Names) || list[0].State != listed[0].State {
		t.Errorf("kick lists %+v and the bindings %+v", list, listed)
	}
	if _, err := c.Inspect(ctx, "kick-bindings-none"); !podman.IsStatus(err, 404) {
		t.Errorf("a container that is not there: %v", err)
	}
}
