package pushbroker

import (
	"bufio"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
)

// Entry types of a pack. https://git-scm.com/docs/gitformat-pack
const (
	packCommit = 1
	packTree   = 2
	packBlob   = 3
	packTag    = 4
	packOffset = 6 // a delta against an earlier entry
	packRef    = 7 // a delta against an object by id
)

// scanPack reads a pack's entries, behind its header of 12 bytes, and holds
// the caps on single and total inflated size by what each entry's head says
// of it, so that a bomb is refused before anything inflates it. git refuses
// an entry that inflates to another size than it says. r must end with the
// pack's sum of 20 bytes.
func scanPack(r *bufio.Reader, objects uint32, lim IngestLimits) error {
	var z io.ReadCloser
	var total int64
	inflated := bufio.NewReader(nil)
	for i := range objects {
		kind, size, err := packEntryHead(r)
		if err != nil {
			return packBroken(i, err)
		}
		if err := packCaps(size, &total, lim); err != nil {
			return err
		}
		if z == nil {
			z, err = zlib.NewReader(r)
		} else {
			err = z.(zlib.Resetter).Reset(r, nil)
		}
		if err != nil {
			return packBroken(i, err)
		}
		inflated.Reset(z)
		body := countingReader{r: inflated}
		if kind == packOffset || kind == packRef {
			if _, err = body.varint(); err != nil {
				return packBroken(i, err)
			}
			result, err := body.varint()
			if err != nil {
				return packBroken(i, err)
			}
			if err := packCaps(result, &total, lim); err != nil {
				return err
			}
		}
		rest, err := io.Copy(io.Discard, io.LimitReader(body.r, size-body.n+1))
		if err != nil {
			return packBroken(i, err)
		}
		if body.n+rest != size {
			return packBroken(i, errors.New("it has another size than it says"))
		}
	}
	n, err := io.Copy(io.Discard, io.LimitReader(r, 21))
	if err != nil {
		return fmt.Errorf("read pack: %w", err)
	}
	switch {
	case n < 20:
		return refuse("bundle-format", "the pack breaks off")
	case n > 20:
		return refuse("bundle-format", "something follows the pack")
	}
	return nil
}

func packCaps(size int64, total *int64, lim IngestLimits) error {
	if size > lim.ObjectBytes {
		return refuse("limit-ingest", "an object has %d bytes, more than %d", size, lim.ObjectBytes)
	}
	// Size is at most ObjectBytes, so the sum does not overflow.
	if *total += size; *total > 2*lim.TotalBytes {
		return refuse("limit-ingest", "the objects have more than %d bytes, inflated", lim.TotalBytes)
	}
	return nil
}

func packBroken(i uint32, err error) error {
	return refuse("bundle-format", "entry %d of the pack: %v", i+1, noEOF(err))
}

// packEntryHead reads type and inflated size, and what stands before the
// compressed bytes.
func packEntryHead(r *bufio.Reader) (kind int, size int64, err error) {
	c, err := r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size = int(c>>4&7), int64(c&15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = r.ReadByte(); err != nil {
			return 0, 0, err
		}
		if shift > 50 {
			return 0, 0, errors.New("its size is too long")
		}
		size |= int64(c&0x7F) << shift
	}
	switch kind {
	case packCommit, packTree, packBlob, packTag:
	case packRef:
		_, err = r.Discard(20)
	case packOffset:
		for i := 0; ; i++ {
			c, err = r.ReadByte()
			if err != nil || c&0x80 == 0 {
				break
			}
			if i > 8 {
				return 0, 0, errors.New("its offset is too long")
			}
		}
	default:
		return 0, 0, fmt.Errorf("it has type %d", kind)
	}
	return kind, size, err
}

// countingReader reads the head of an inflated delta.
type countingReader struct {
	r *bufio.Reader
	n int64
}

func (c *countingReader) varint() (int64, error) {
	var v int64
	for shift := 0; ; shift += 7 {
		b, err := c.r.ReadByte()
		if err != nil {
			return 0, err
		}
		c.n++
		if shift > 50 {
			return 0, errors.New("a size in its delta is too long")
		}
		if v |= int64(b&0x7F) << shift; b&0x80 == 0 {
			return v, nil
		}
	}
}
