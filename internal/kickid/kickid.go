// Package kickid makes kick ids: "k" and 13 characters of lower-case
// base32hex, ordered by time. An id is a DNS label and names the sandbox, the
// branch's tail and the journal.
package kickid

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// Len is the length of an id.
const Len = 14

var encoding = base32.HexEncoding.WithPadding(base32.NoPadding)

// New returns a new id: 42 bits of Unix time in milliseconds, which lasts until
// 2109, and 22 random bits.
func New() string { return at(time.Now()) }

func at(t time.Time) string {
	var b [8]byte
	if _, err := rand.Read(b[4:]); err != nil {
		panic(err) // crypto/rand never fails on Linux
	}
	random := uint64(binary.BigEndian.Uint32(b[4:])) & (1<<22 - 1)
	binary.BigEndian.PutUint64(b[:], uint64(t.UnixMilli())<<22|random)
	return "k" + strings.ToLower(encoding.EncodeToString(b[:]))
}

// Valid reports whether s has the form of an id.
func Valid(s string) bool {
	_, err := Time(s)
	return err == nil
}

// Time returns when the id was made.
func Time(s string) (time.Time, error) {
	bad := fmt.Errorf("%q is not a kick id: want k and 13 characters of 0-9 and a-v", s)
	if len(s) != Len || s[0] != 'k' || strings.ToLower(s) != s {
		return time.Time{}, bad
	}
	b, err := encoding.DecodeString(strings.ToUpper(s[1:]))
	if err != nil || len(b) != 8 {
		return time.Time{}, bad
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b) >> 22)), nil
}
