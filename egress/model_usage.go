package egress

import (
	"bytes"
	"encoding/json"
)

// tokens is what a provider says that an answer cost.
type tokens struct {
	input, output         int64 // cached ones among the input
	cacheRead, cacheWrite int64 // parts of input
}

// meter finds the usage in an answer that it sees pass. It keeps one line of an
// event stream, or a JSON answer whole, up to maxMetered bytes.
type meter struct {
	format *format
	sse    bool
	line   []byte
	lost   bool // the line is longer than maxMetered
	seen   tokens
	some   bool // seen is something
	final  bool // seen is all
}

const maxMetered = 8 << 20

// keptLine is how much memory a stream keeps from one line to the next.
const keptLine = 16 << 10

// see takes the next part of the answer.
func (m *meter) see(p []byte) {
	for m.sse {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			break
		}
		line := p[:i]
		if len(m.line) > 0 || m.lost {
			m.keep(line)
			line = m.line
		}
		if !m.lost {
			m.event(line)
		}
		m.reset()
		p = p[i+1:]
	}
	m.keep(p)
}

func (m *meter) keep(p []byte) {
	if m.lost || len(m.line)+len(p) > maxMetered {
		m.lost = true
		return
	}
	m.line = append(m.line, p...)
}

func (m *meter) reset() {
	m.lost = false
	if cap(m.line) > keptLine {
		m.line = nil
	}
	m.line = m.line[:0]
}

// end tells that the answer is whole.
func (m *meter) end() {
	if m.sse {
		m.event(m.line)
	} else if !m.lost {
		m.count(m.line)
	}
	m.final = m.final || m.some && m.format.each
}

func (m *meter) event(line []byte) {
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && bytes.Contains(data, m.format.usageKey) {
		m.count(data)
	}
}

func (m *meter) count(data []byte) {
	t, final, ok := m.format.usage(data)
	if !ok {
		return
	}
	s := &m.seen
	s.input, s.output = max(s.input, t.input), max(s.output, t.output)
	s.cacheRead, s.cacheWrite = max(s.cacheRead, t.cacheRead), max(s.cacheWrite, t.cacheWrite)
	m.some, m.final = true, m.final || final
}

// valid refuses numbers that no provider means.
func (t tokens) valid() bool {
	const most = 1 << 40
	for _, n := range []int64{t.input, t.output, t.cacheRead, t.cacheWrite} {
		if n < 0 || n > most {
			return false
		}
	}
	return t.cacheRead+t.cacheWrite <= t.input
}

type anthropicUsage struct {
	Input      int64 `json:"input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	Output     int64 `json:"output_tokens"`
	// Iterations are all that is charged, where the provider shortened the
	// conversation itself; what that took is not in the sums above.
	Iterations []anthropicUsage `json:"iterations"`
}

func (u anthropicUsage) tokens() tokens {
	sum := tokens{input: u.Input + u.CacheWrite + u.CacheRead, output: u.Output, cacheRead: u.CacheRead, cacheWrite: u.CacheWrite}
	var all tokens
	for _, i := range u.Iterations {
		one := i.tokens()
		if !one.valid() {
			return one
		}
		all = tokens{all.input + one.input, all.output + one.output, all.cacheRead + one.cacheRead, all.cacheWrite + one.cacheWrite}
	}
	if all.input+all.output > sum.input+sum.output {
		return all
	}
	return sum
}

func anthropicTokens(data []byte) (t tokens, final, ok bool) {
	var v struct {
		Type    string          `json:"type"`
		Usage   *anthropicUsage `json:"usage"`
		Message struct {
			Usage *anthropicUsage `json:"usage"`
		} `json:"message"`
	}
	if json.Unmarshal(data, &v) != nil {
		return t, false, false
	}
	u := v.Usage
	if v.Type == "message_start" {
		u = v.Message.Usage
	}
	if u == nil {
		return t, false, false
	}
	t = u.tokens()
	return t, v.Type != "message_start", t.valid()
}

type responsesUsage struct {
	Input   int64 `json:"input_tokens"`
	Output  int64 `json:"output_tokens"`
	Details *struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

func responsesTokens(data []byte) (t tokens, final, ok bool) {
	var v struct {
		Usage    *responsesUsage `json:"usage"`
		Response struct {
			Usage *responsesUsage `json:"usage"`
		} `json:"response"`
	}
	if json.Unmarshal(data, &v) != nil {
		return t, false, false
	}
	u := v.Usage
	if u == nil {
		u = v.Response.Usage
	}
	if u == nil {
		return t, false, false
	}
	t = tokens{input: u.Input, output: u.Output}
	if u.Details != nil {
		t.cacheRead = u.Details.Cached
	}
	return t, true, t.valid()
}

func chatTokens(data []byte) (t tokens, final, ok bool) {
	var v struct {
		Usage *struct {
			Input   int64 `json:"prompt_tokens"`
			Output  int64 `json:"completion_tokens"`
			Details *struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if json.Unmarshal(data, &v) != nil || v.Usage == nil {
		return t, false, false
	}
	t = tokens{input: v.Usage.Input, output: v.Usage.Output}
	if v.Usage.Details != nil {
		t.cacheRead = v.Usage.Details.Cached
	}
	return t, false, t.valid() // some servers count in each event
}

func geminiTokens(data []byte) (t tokens, final, ok bool) {
	var v struct {
		Usage *struct {
			Prompt    int64 `json:"promptTokenCount"`
			ToolUse   int64 `json:"toolUsePromptTokenCount"`
			Candidate int64 `json:"candidatesTokenCount"`
			Thoughts  int64 `json:"thoughtsTokenCount"`
			Cached    int64 `json:"cachedContentTokenCount"`
		} `json:"usageMetadata"`
	}
	if json.Unmarshal(data, &v) != nil || v.Usage == nil {
		return t, false, false
	}
	u := v.Usage
	t = tokens{input: u.Prompt + u.ToolUse, output: u.Candidate + u.Thoughts, cacheRead: u.Cached}
	return t, false, t.valid()
}
