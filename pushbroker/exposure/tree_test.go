package exposure

import (
	"context"
	"slices"
	"strings"
)

// memory is a tree in memory, by path.
type memory map[string][]byte

func (f memory) List(_ context.Context, dir string) ([]string, error) {
	var names []string
	for p := range f {
		rest := p
		if dir != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(p, dir+"/"); !ok {
				continue
			}
		}
		name, _, _ := strings.Cut(rest, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (f memory) Read(_ context.Context, path string) ([]byte, bool, error) {
	data, ok := f[path]
	return data, ok, nil
}
