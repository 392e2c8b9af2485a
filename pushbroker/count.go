package pushbroker

import (
	"bytes"
	"context"
	"strconv"
)

// startCount has git count the changed lines of base..tip while the rest is
// inspected. The counts are for people alone; if git cannot make them in
// time, they are -1.
func (in *inspection) startCount(ctx context.Context) func() (added, removed int) {
	var bytesNew int64
	for _, oid := range in.q.Objects {
		bytesNew += in.h.info[oid].size
	}
	lim := in.pol.Changes.Limits
	if bytesNew > lim.TotalBytes || len(in.h.net) > lim.Files {
		return func() (int, int) { return -1, -1 }
	}
	type counts struct{ added, removed int }
	done := make(chan counts, 1)
	go func() {
		out, err := in.git.Output(ctx, nil, "diff-tree", "-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", in.q.BaseOID, in.q.Tip)
		if err != nil {
			done <- counts{-1, -1}
			return
		}
		var c counts
		for rec := range bytes.SplitSeq(out, []byte{0}) {
			fields := bytes.SplitN(rec, []byte("\t"), 3)
			if len(fields) != 3 {
				continue
			}
			a, aerr := strconv.Atoi(string(fields[0])) // "-" for a binary file
			r, rerr := strconv.Atoi(string(fields[1]))
			if aerr == nil && rerr == nil {
				c.added += a
				c.removed += r
			}
		}
		done <- c
	}()
	return func() (int, int) {
		c := <-done
		return c.added, c.removed
	}
}
