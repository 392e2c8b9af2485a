// Package spelling finds what a misspelt name may have meant.
package spelling

import "slices"

// tooLong bounds the work on names that come from elsewhere.
const tooLong = 256

// Distance is the number of bytes to insert, remove or change that makes a into
// b (Levenshtein). Longer names than 256 bytes are as far apart as they are
// long, unless they are equal.
func Distance(a, b string) int {
	if a == b {
		return 0
	}
	if len(a) > tooLong || len(b) > tooLong {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Sort sorts names by their distance from what was wanted, the nearest first,
// and leaves those that are as near in their order.
func Sort(wanted string, names []string) {
	dist := make(map[string]int, len(names))
	for _, name := range names {
		dist[name] = Distance(wanted, name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return dist[a] - dist[b] })
}

// Nearest returns the name that a slip or two away was meant, or "". More than
// two slips, or half of the name, is another word.
func Nearest(wanted string, names []string) string {
	best, least := "", 3
	for _, name := range names {
		if n := Distance(wanted, name); n < least && n < len(name)/2+1 {
			best, least = name, n
		}
	}
	return best
}
