package pushbroker

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
)

// packEntry is one object of a pack, with where it begins there.
type packEntry struct {
	oid    string
	offset uint64
}

// readPackIndex lists the objects of a pack from its index, version 2, as the
// host's git has just written it. https://git-scm.com/docs/gitformat-pack
func readPackIndex(path string, maxObjects int) ([]packEntry, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// Header, fan-out, then id, CRC, offset and at most a long offset each, two sums.
	if limit := int64(8+256*4+40) + int64(maxObjects)*(20+4+4+8); st.Size() > limit {
		return nil, errTooManyObjects
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parsePackIndex(b)
}

var errTooManyObjects = errors.New("too many objects")

func parsePackIndex(b []byte) ([]packEntry, error) {
	const head = 8 + 256*4
	if len(b) < head+40 || string(b[:4]) != "\xfftOc" || binary.BigEndian.Uint32(b[4:]) != 2 {
		return nil, errors.New("not a pack index of version 2")
	}
	n := int(binary.BigEndian.Uint32(b[head-4:]))
	oids, offsets := head, head+n*24
	long := offsets + n*4
	if n < 0 || n > len(b)/28 || long+40 > len(b) {
		return nil, fmt.Errorf("a pack index of %d bytes cannot hold %d objects", len(b), n)
	}
	longs := (len(b) - 40 - long) / 8
	entries := make([]packEntry, n)
	for i := range entries {
		off := uint64(binary.BigEndian.Uint32(b[offsets+i*4:]))
		if off&(1<<31) != 0 {
			j := int(off &^ (1 << 31))
			if j >= longs {
				return nil, errors.New("a pack index names a long offset that it does not have")
			}
			off = binary.BigEndian.Uint64(b[long+j*8:])
		}
		entries[i] = packEntry{oid: hex.EncodeToString(b[oids+i*20 : oids+i*20+20]), offset: off}
	}
	return entries, nil
}
