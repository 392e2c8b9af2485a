package podman

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// serve answers one request on a Unix socket with the bytes of answer.
func serve(t *testing.T, answer string) *Client {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.WriteString(conn, answer)
		}
	}()
	c := New(l.Addr().String())
	t.Cleanup(c.Close)
	return c
}

// piece is a part of a stream as Podman sends it.
func piece(stream byte, text string) string {
	n := len(text)
	return string([]byte{stream, 0, 0, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + text
}

const upgraded = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

func TestStream(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, said, stdout, stderr, failure string
	}{
		{"both streams", piece(1, "a") + piece(2, "b") + piece(1, "") + piece(1, "c"), "ac", "b", ""},
		{"nothing", "", "", "", ""},
		{"a piece that breaks off", piece(1, "abc")[:10], "ab", "", "EOF"},
		{"a header that breaks off", piece(1, "abc")[:5], "", "", "EOF"},
		{"words of the service", piece(1, "a") + piece(3, "no space left"), "a", "", "no space left"},
		{"an unknown stream", piece(9, "a"), "", "", "stream 9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := serve(t, upgraded+tt.said).Attach(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var out, errs bytes.Buffer
			err = s.Copy(&out, &errs)
			if out.String() != tt.stdout || errs.String() != tt.stderr || (err == nil) != (tt.failure == "") || err != nil && !strings.Contains(err.Error(), tt.failure) {
				t.Errorf("stdout %q, stderr %q, %v", out.String(), errs.String(), err)
			}
		})
	}
}

func TestAttachRefused(t *testing.T) {
	t.Parallel()
	body := `{"cause":"x","message":"no such container","response":404}`
	_, err := serve(t, fmt.Sprintf("HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s", len(body), body)).Attach(t.Context(), "x")
	if !IsStatus(err, 404) || !strings.Contains(err.Error(), "no such container") {
		t.Errorf("a refusal: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, "") // which says nothing
	cancel()
	if _, err := c.Attach(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

func TestNotPodman(t *testing.T) {
	t.Parallel()
	if _, err := serve(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK").Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "not Podman") {
		t.Errorf("another service: %v", err)
	}
	huge := strings.Repeat(" ", maxAnswer+1)
	if _, err := serve(t, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(huge), huge)).Info(t.Context()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("an answer without end: %v", err)
	}
}

func TestSocket(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"/run/podman/podman.sock": "/run/podman/podman.sock", "unix:///run/user/1000/podman/podman.sock": "/run/user/1000/podman/podman.sock",
		"": "", "ssh://core@localhost/run/podman.sock": "", "tcp://127.0.0.1:8080": "", "unix://run/x": "", "podman.sock": "",
	} {
		if got, err := Socket(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
	}
}

// FuzzStream reads arbitrary bytes as a stream: it ends, and passes on no more
// than came.
func FuzzStream(f *testing.F) {
	f.Add([]byte(piece(1, "a") + piece(2, "b")))
	f.Add([]byte(piece(3, "x")))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		s := &Stream{r: bufio.NewReader(bytes.NewReader(b))}
		_ = s.Copy(&out, &out)
		if out.Len() > len(b) {
			t.Errorf("%d bytes became %d", len(b), out.Len())
		}
	})
}
