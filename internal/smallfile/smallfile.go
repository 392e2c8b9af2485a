// Package smallfile reads the small files that an operator names: a policy, a
// configuration, a key, a prompt. What is no regular file is refused in words,
// where a read would wait for a writer or never end.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Read returns the content of the regular file at path, which a link may lead
// to, if it is not longer than limit bytes. An error names the file and says
// what to do, but for those of the system, which are *fs.PathError.
func Read(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK, a named pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if errors.Is(err, syscall.ENXIO) { // a socket
		return nil, notRegular(path, "a socket or a device")
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if kind := kindOf(info.Mode()); kind != "" {
		return nil, notRegular(path, kind)
	}
	// The size is of use for what is huge; it may be wrong, as below /proc.
	if info.Size() > limit {
		return nil, tooLong(path, limit)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, tooLong(path, limit)
	}
	return data, nil
}

// kindOf says what a file is that is no regular one; empty for a regular one.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return ""
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	}
	return "a device"
}

func notRegular(path, kind string) error {
	return fmt.Errorf("%s is %s: name a regular file", path, kind)
}

func tooLong(path string, limit int64) error {
	size := fmt.Sprintf("%d bytes", limit)
	switch {
	case limit%(1<<20) == 0:
		size = fmt.Sprintf("%d MiB", limit>>20)
	case limit%(1<<10) == 0:
		size = fmt.Sprintf("%d KiB", limit>>10)
	}
	return fmt.Errorf("%s is larger than %s: shorten it, or name another file", path, size)
}
