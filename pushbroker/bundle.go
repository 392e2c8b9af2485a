package pushbroker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
)

// BundleHeader is the header of a git bundle, version 2.
type BundleHeader struct {
	Prerequisites []string // ids of commits that a receiver must have
	Ref           string   // the only ref: HEAD, or one below refs/
	Tip           string   // its id
	Size          int64    // bytes of the header, up to and with the empty line
	PackObjects   uint32   // object count that the pack's own header claims
}

// Caps of a bundle header. git writes the prerequisite's subject behind its
// id, and one prerequisite for each boundary commit.
const (
	maxBundleLine          = 4 << 10
	maxBundlePrerequisites = 1000
	packHeaderSize         = 12
)

var bundleMagic = []byte("# v2 git bundle\n")

// ParseBundleHeader reads a bundle's header, and the first 12 bytes of the
// pack behind it, from r. It is strict: one ref, no tag, SHA-1 ids, no
// capability. https://git-scm.com/docs/gitformat-bundle
func ParseBundleHeader(r *bufio.Reader) (BundleHeader, error) {
	var h BundleHeader
	magic, err := readBundleLine(r, &h)
	switch {
	case err != nil:
		return h, fmt.Errorf("first line: %w", err)
	case string(magic) == "# v3 git bundle":
		return h, errors.New("it has version 3, for repositories with SHA-256 ids or partial history, which kick does not take")
	case !bytes.Equal(append(magic, '\n'), bundleMagic):
		return h, errors.New("it does not begin with \"# v2 git bundle\"")
	}
	for {
		line, err := readBundleLine(r, &h)
		if err != nil {
			return h, err
		}
		if len(line) == 0 {
			break
		}
		if err := h.addLine(line); err != nil {
			return h, err
		}
	}
	if h.Tip == "" {
		return h, errors.New("it names no ref")
	}
	var pack [packHeaderSize]byte
	if _, err := io.ReadFull(r, pack[:]); err != nil {
		return h, fmt.Errorf("pack header: %w", noEOF(err))
	}
	if string(pack[:4]) != "PACK" || binary.BigEndian.Uint32(pack[4:]) != 2 {
		return h, errors.New("no pack of version 2 follows the header")
	}
	h.PackObjects = binary.BigEndian.Uint32(pack[8:])
	return h, nil
}

func readBundleLine(r *bufio.Reader, h *BundleHeader) ([]byte, error) {
	var line []byte
	for {
		c, err := r.ReadByte()
		if err != nil {
			return nil, fmt.Errorf("the header breaks off: %w", noEOF(err))
		}
		h.Size++
		if c == '\n' {
			return line, nil
		}
		if c == 0 {
			return nil, errors.New("the header has a NUL byte")
		}
		if line = append(line, c); len(line) > maxBundleLine {
			return nil, fmt.Errorf("a header line is longer than %d bytes", maxBundleLine)
		}
	}
}

func (h *BundleHeader) addLine(line []byte) error {
	if id, ok := bytes.CutPrefix(line, []byte("-")); ok {
		id, _, _ = bytes.Cut(id, []byte(" "))
		if !gitcmd.IsOID(string(id)) {
			return errors.New("a prerequisite is no full lower-case id")
		}
		if h.Tip != "" {
			return errors.New("a prerequisite stands behind a ref")
		}
		if len(h.Prerequisites) >= maxBundlePrerequisites {
			return fmt.Errorf("it has more than %d prerequisites", maxBundlePrerequisites)
		}
		h.Prerequisites = append(h.Prerequisites, string(id))
		return nil
	}
	id, ref, ok := strings.Cut(string(line), " ")
	switch {
	case !ok || !gitcmd.IsOID(id):
		return errors.New("a header line is neither a prerequisite nor a ref")
	case h.Tip != "":
		return errors.New("it has more than one ref")
	case ref != "HEAD" && !plainRef(ref):
		return errors.New("its ref is neither HEAD nor a plain name below refs/")
	}
	h.Tip, h.Ref = id, ref
	return nil
}

// plainRef is stricter than git check-ref-format: the name is used nowhere,
// so there is no need for odd ones.
func plainRef(ref string) bool {
	if !strings.HasPrefix(ref, "refs/") || len(ref) > 512 || strings.Contains(ref, "..") || strings.Contains(ref, "@{") {
		return false
	}
	for part := range strings.SplitSeq(ref, "/") {
		if part == "" || part[0] == '.' || part[0] == '-' || strings.HasSuffix(part, ".lock") || strings.HasSuffix(part, ".") {
			return false
		}
	}
	for i := 0; i < len(ref); i++ {
		if c := ref[i]; c <= ' ' || c == 0x7F || strings.IndexByte(`~^:?*[\`, c) >= 0 {
			return false
		}
	}
	return true
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
