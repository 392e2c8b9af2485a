package smallfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(in("fits"), []byte("0123456789abcdef"), 0o600))
	must(os.WriteFile(in("long"), []byte("0123456789abcdefg"), 0o600))
	must(os.WriteFile(in("sparse"), nil, 0o600))
	must(os.Truncate(in("sparse"), 1<<40))
	must(os.Symlink("fits", in("link")))
	must(os.Symlink("loop", in("loop")))
	must(syscall.Mkfifo(in("pipe"), 0o600))
	ln, err := net.Listen("unix", in("socket"))
	must(err)
	defer ln.Close()
	for _, tc := range []struct{ path, want, says string }{
		{path: in("fits"), want: "0123456789abcdef"},
		{path: in("link"), want: "0123456789abcdef"},
		{path: in("long"), says: "long is larger than 16 bytes: shorten it"},
		{path: in("sparse"), says: "sparse is larger than 16 bytes"},
		{path: in("pipe"), says: "pipe is a pipe: name a regular file"},
		{path: in("socket"), says: "socket is a socket or a device: name a regular file"},
		{path: dir, says: "is a directory: name a regular file"},
		{path: "/dev/zero", says: "/dev/zero is a device: name a regular file"},
		{path: "/dev/tty", says: "device"},
		{path: "/proc/self/status", says: "larger than"}, // which says that it has no bytes
		{path: in("loop"), says: "too many levels of symbolic links"},
		{path: in("fits/x"), says: "not a directory"},
	} {
		got, err := Read(tc.path, 16)
		if tc.says == "" && (err != nil || string(got) != tc.want) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %q, %v; want %q, %q", tc.path, got, err, tc.want, tc.says)
		}
	}
	if _, err := Read(in("missing"), 16); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for limit, want := range map[int64]string{1 << 20: "larger than 1 MiB", 64 << 10: "larger than 64 KiB"} {
		if _, err := Read(in("sparse"), limit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
