package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kickhq/kick/internal/frame"
	"github.com/kickhq/kick/internal/openshelltest/relay"
)

// serveNetwork lets listed programs through to the gateway's proxy, which knows
// hosts, methods and paths, and tells of each connection.
func serveNetwork(l net.Listener, q relay.Request, w *frame.Writer) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = serveConnection(c.(*net.TCPConn), q, w) // the client sees its connection end
		}()
	}
}

func serveConnection(c *net.TCPConn, q relay.Request, w *frame.Writer) error {
	paths, err := programs(c)
	if err != nil {
		return err
	}
	r := bufio.NewReader(c)
	first, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	reach := relay.Reach{Binary: paths[0], Target: strings.TrimSpace(first), Denied: denied(q.Rules, targetOf(first), paths)}
	if err := w.WriteJSON(relay.Reached, reach); err != nil {
		return err
	}
	if reach.Denied {
		body := `{"error":"policy_denied","detail":"the program is not listed"}`
		_, err := fmt.Fprintf(c, "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
		return err
	}
	if target := targetOf(first); strings.HasPrefix(first, "CONNECT ") && relayed(q.Rules, target) {
		return tunnel(c, r, target)
	}
	out, err := net.Dial("unix", q.ProxySocket)
	if err != nil {
		return err
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, io.MultiReader(strings.NewReader(first), r))
		_ = out.(*net.UnixConn).CloseWrite()
	}()
	_, err = io.Copy(c, out)
	return err
}

func relayed(rules []relay.Rule, target string) bool {
	return slices.ContainsFunc(rules, func(r relay.Rule) bool { return slices.Contains(r.Relayed, target) })
}

// tunnel answers a CONNECT for a target whose connections are passed on as they are.
func tunnel(c *net.TCPConn, r *bufio.Reader, target string) error {
	for line := "-"; strings.TrimSpace(line) != ""; {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			return err
		}
	}
	up, _, _, err := dial(relay.Tunnel, target)
	if err != nil {
		return err
	}
	defer up.Close()
	if _, err := io.ReadFull(up, make([]byte, 1)); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.(*net.UnixConn).CloseWrite()
	}()
	_, err = io.Copy(c, up)
	return err
}

// targetOf is the host and port of a request to a proxy, by its first line.
func targetOf(first string) string {
	method, rest, _ := strings.Cut(first, " ")
	target, _, _ := strings.Cut(rest, " ")
	if method == "CONNECT" {
		return target
	}
	u, err := url.Parse(target)
	if err != nil {
		return ""
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "80")
	}
	return u.Host
}

// denied reports whether no rule lets any of the programs reach the target. A target
// that no rule has is the gateway's to deny, for a program that some rule has.
func denied(rules []relay.Rule, target string, programs []string) bool {
	has := func(patterns []string, names ...string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			return slices.ContainsFunc(names, func(name string) bool { return matches(p, name) })
		})
	}
	known, listed := false, false
	for _, r := range rules {
		at, by := has(r.Targets, target), has(r.Binaries, programs...)
		if at && by {
			return false
		}
		known, listed = known || at, listed || by
	}
	return known || !listed
}

// matches reports whether a path, or a host and port, is one of a pattern's: "*" is
// within a segment of a path, "**" across.
func matches(pattern, path string) bool {
	e := regexp.QuoteMeta(pattern)
	e = strings.ReplaceAll(strings.ReplaceAll(e, `\*\*`, ".*"), `\*`, "[^/]*")
	ok, err := regexp.MatchString("^"+e+"$", path)
	return ok && err == nil
}

// programs are the real paths of the program at the other end and of its
// ancestors.
func programs(c *net.TCPConn) ([]string, error) {
	inode, err := socketOf(c.RemoteAddr().(*net.TCPAddr))
	if err != nil {
		return nil, err
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
			return ancestry(strings.Split(fd, "/")[2]), nil
		}
	}
	return nil, errors.New("nobody has the socket")
}

func ancestry(pid string) (paths []string) {
	for pid != "0" && pid != "" {
		exe, err := os.Readlink("/proc/" + pid + "/exe")
		if err != nil {
			exe = "unknown"
		}
		paths = append(paths, exe)
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		_, rest, ok := bytes.Cut(b, []byte(") ")) // a name with ")" in it only ends the chain early
		fields := bytes.Fields(rest)
		if err != nil || !ok || len(fields) < 2 {
			return paths
		}
		pid = string(fields[1])
	}
	return paths
}

// socketOf finds the inode of the socket that is bound to an address.
func socketOf(a *net.TCPAddr) (string, error) {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	want := fmt.Sprintf("%08X:%04X", binary.LittleEndian.Uint32(a.IP.To4()), a.Port)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == want {
			if _, err := strconv.ParseUint(f[9], 10, 64); err == nil {
				return f[9], nil
			}
		}
	}
	return "", fmt.Errorf("no socket at %s", a)
}
