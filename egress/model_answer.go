package egress

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kickhq/kick/policy"
)

// deliver passes the answer on as it comes, and counts. It ends when either
// side does, when nothing came for too long, or when there was too much.
func (c *call) deliver(x *passage, res *http.Response, key string, end *End, cost *policy.Budget) {
	end.Status = res.StatusCode
	copyAnswerHeader(c.w.Header(), res.Header, key)
	m := &meter{format: c.format, sse: isEventStream(res.Header)}
	if !m.sse && res.ContentLength >= 0 {
		c.w.Header().Set("Content-Length", strconv.FormatInt(res.ContentLength, 10))
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // else its end would end the answer
	_ = rc.SetWriteDeadline(time.Now().Add(c.g.limits.replyTime))
	c.w.WriteHeader(res.StatusCode)
	if m.sse {
		_ = rc.Flush()
	}
	got := x.flow(c.g.limits.answerBytes, fmt.Errorf("the answer is larger than %d bytes, and was cut", c.g.limits.answerBytes))
	answer := got.reader(res.Body)
	guard := &keyGuard{key: []byte(key)}
	counts := c.op.spends && res.StatusCode < 400
	err := relay(answer, func(p []byte) error {
		if counts {
			m.see(p)
		}
		if !guard.passes(p) {
			return errKeyInAnswer
		}
		_ = rc.SetWriteDeadline(time.Now().Add(c.g.limits.replyTime))
		_, err := c.w.Write(p)
		if err == nil && m.sse {
			err = rc.Flush()
		}
		if err != nil {
			return errAgentGone
		}
		return nil
	})
	switch {
	case err == nil:
		m.end()
	case errors.Is(err, errKeyInAnswer), errors.Is(err, errAgentGone):
		end.Error = err.Error()
	default:
		end.Error = "the answer broke off: " + err.Error()
	}
	end.Got = got.n.Load()
	if counts {
		c.charge(m, end, cost)
	}
	if end.Error != "" { // not to be taken for whole
		c.broken = true
	}
}

var (
	errKeyInAnswer = errors.New("the provider's answer has the operator's key, and was cut")
	errAgentGone   = errors.New("the agent went away")
)

func isEventStream(h http.Header) bool {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}

// charge turns what the provider said into what the call cost. If it did not
// say, what was set aside counts.
func (c *call) charge(m *meter, end *End, cost *policy.Budget) {
	u := &Usage{}
	end.Usage = u
	if !m.final {
		u.Reserved = true
		u.Input, u.Output = m.seen.input, m.seen.output
		if c.most.Tokens > 0 {
			u.Input, u.Output = c.most.Tokens, 0
		}
		u.Money = c.most.Money
		return
	}
	t := m.seen
	u.Input, u.Output = t.input, t.output
	if p, ok := c.route.PriceOf(c.name, t.input); ok {
		fresh := t.input - t.cacheRead - t.cacheWrite
		u.Money = (float64(fresh)*p.Input + float64(t.cacheRead)*p.CacheRead + float64(t.cacheWrite)*p.CacheWrite + float64(t.output)*p.Output) / 1e6
	}
	*cost = policy.Budget{Requests: 1, Tokens: u.Input + u.Output, Money: u.Money}
}

// keyGuard looks for the key in an answer. A part of the key at the end of what
// it saw is remembered; the agent has that part by then, and never the whole.
type keyGuard struct{ key, tail []byte }

func (k *keyGuard) passes(p []byte) bool {
	if len(k.key) == 0 || len(p) == 0 {
		return true
	}
	if bytes.Contains(p, k.key) {
		return false
	}
	most := len(k.key) - 1
	k.tail = append(k.tail, p[:min(len(p), most)]...)
	if bytes.Contains(k.tail, k.key) {
		return false
	}
	if len(p) >= most {
		k.tail = append(k.tail[:0], p[len(p)-most:]...)
	} else if over := len(k.tail) - most; over > 0 {
		k.tail = append(k.tail[:0], k.tail[over:]...)
	}
	return true
}
