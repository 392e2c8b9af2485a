package exposure

// certainty is what is known of a question. What cannot be decided from the
// repository's files is maybe, and counts as yes wherever that is the worse.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

func certain(b bool) certainty {
	if b {
		return yes
	}
	return no
}

func (c certainty) not() certainty { return yes - c }
