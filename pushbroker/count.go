package pushbroker

import (
	"bytes"
)

// Bounds of line counts, which are for people alone: files up to 1 MiB, 32 MiB
// in all, and an exact comparison where it costs at most a million steps.
const (
	maxCountedFile  = 1 << 20
	maxCountedBytes = 32 << 20
	maxCountedSteps = 1 << 20
)

// countLines counts the lines that base..tip adds and removes in text files.
func (in *inspection) countLines() error {
	var oids []string
	for _, c := range in.h.net {
		for _, side := range []leaf{c.old, c.new} {
			if side.hasContent() {
				oids = append(oids, side.oid)
			}
		}
	}
	infos, err := in.q.objects.infos(oids)
	if err != nil {
		return err
	}
	var total int64
	sizes := make(map[string]int64, len(oids))
	for i, oid := range oids {
		sizes[oid] = infos[i].size
		total += infos[i].size
	}
	if total > maxCountedBytes || len(in.h.net) > in.pol.Changes.Limits.Files {
		in.verdict.Added, in.verdict.Removed = -1, -1
		return nil
	}
	read := func(side leaf) ([]byte, bool, error) {
		if !side.hasContent() {
			return nil, side.mode == 0, nil
		}
		if sizes[side.oid] > maxCountedFile {
			return nil, false, nil
		}
		data, err := in.q.objects.one(side.oid, "blob", maxCountedFile)
		return data, err == nil && !isBinary(data), err
	}
	for _, c := range in.h.net {
		before, ok, err := read(c.old)
		if err != nil {
			return err
		}
		after, ok2, err := read(c.new)
		if err != nil {
			return err
		}
		if ok && ok2 {
			added, removed := lineDelta(before, after)
			in.verdict.Added += added
			in.verdict.Removed += removed
		}
	}
	return nil
}

// lineDelta counts the lines to add and to remove to get from before to after:
// the fewest there are, or, where that costs too much, as if lines could move.
func lineDelta(before, after []byte) (added, removed int) {
	a, b := lines(before), lines(after)
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[0], b[0]) {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && bytes.Equal(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	kept := 0
	if len(a)*len(b) <= maxCountedSteps {
		kept = commonSubsequence(a, b)
	} else {
		have := map[string]int{}
		for _, l := range a {
			have[string(l)]++
		}
		for _, l := range b {
			if have[string(l)] > 0 {
				have[string(l)]--
				kept++
			}
		}
	}
	return len(b) - kept, len(a) - kept
}

func lines(text []byte) [][]byte {
	if len(text) == 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
}

// commonSubsequence returns the length of the longest one.
func commonSubsequence(a, b [][]byte) int {
	row := make([]int, len(b)+1)
	for _, x := range a {
		diagonal := 0
		for j, y := range b {
			up := row[j+1]
			if bytes.Equal(x, y) {
				row[j+1] = diagonal + 1
			} else {
				row[j+1] = max(up, row[j])
			}
			diagonal = up
		}
	}
	return row[len(b)]
}

// isBinary decides as git does, which looks at as many bytes for a NUL:
// buffer_is_binary in its xdiff-interface.c.
func isBinary(data []byte) bool {
	return bytes.IndexByte(data[:min(len(data), 8000)], 0) >= 0
}
