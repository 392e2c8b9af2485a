package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kickhq/kick/policy"
)

// budget keeps what a route may spend. Before a request leaves, the most that
// it can cost is set aside; afterwards that is replaced by what it did cost.
// So no number of requests at once can spend more than there is.
type budget struct {
	kick policy.Budget
	day  *ledger // nil: the day is not bounded

	mu    sync.Mutex
	spent policy.Budget
	held  policy.Budget
}

func newBudget(m policy.Model, dir, agent string) *budget {
	b := &budget{kick: m.Budget}
	if m.Day != (policy.Budget{}) {
		b.day = &ledger{limit: m.Day, path: filepath.Join(dir, agent+"."+m.Route+".json"), now: time.Now}
	}
	return b
}

// overBudget tells that a request would cost more than is left.
type overBudget struct {
	detail string
	// Later tells that it may fit when requests under way have ended.
	later bool
}

func (e *overBudget) Error() string { return e.detail }

// reserve sets aside what a request may cost, or returns an *overBudget.
func (b *budget) reserve(most policy.Budget) (*reservation, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if what := exceeds(b.kick, sum(b.spent, most)); what != "" {
		return nil, &overBudget{detail: over("this kick's", what, b.kick, b.spent, most)}
	}
	if what := exceeds(b.kick, sum(sum(b.spent, b.held), most)); what != "" {
		return nil, &overBudget{detail: over("this kick's", what, b.kick, sum(b.spent, b.held), most), later: true}
	}
	r := &reservation{b: b, most: most}
	if b.day != nil {
		var err error
		if r.day, err = b.day.add(most); err != nil {
			return nil, err
		}
	}
	b.held = sum(b.held, most)
	return r, nil
}

// reservation is what one request may cost.
type reservation struct {
	b    *budget
	most policy.Budget
	day  string
}

// settle replaces the reservation by what the request did cost.
func (r *reservation) settle(cost policy.Budget) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.b.held = sum(r.b.held, neg(r.most))
	r.b.spent = sum(r.b.spent, cost)
	if r.b.day == nil || cost == r.most {
		return nil
	}
	return r.b.day.correct(r.day, sum(cost, neg(r.most)))
}

func sum(x, y policy.Budget) policy.Budget {
	return policy.Budget{Requests: x.Requests + y.Requests, Tokens: x.Tokens + y.Tokens, Money: x.Money + y.Money}
}

func neg(x policy.Budget) policy.Budget {
	return policy.Budget{Requests: -x.Requests, Tokens: -x.Tokens, Money: -x.Money}
}

// exceeds names what is above a limit.
func exceeds(limit, x policy.Budget) string {
	const grain = 1e-9 // what adding and taking away leaves behind
	switch {
	case limit.Requests > 0 && x.Requests > limit.Requests:
		return "requests"
	case limit.Tokens > 0 && x.Tokens > limit.Tokens:
		return "tokens"
	case limit.Money > 0 && x.Money > limit.Money+grain:
		return "money"
	}
	return ""
}

func over(whose, what string, limit, spent, most policy.Budget) string {
	var text string
	switch what {
	case "requests":
		text = fmt.Sprintf("%d of %d requests are used", spent.Requests, limit.Requests)
	case "tokens":
		text = fmt.Sprintf("%d of %d tokens are used or set aside, and this request may cost up to %d", spent.Tokens, limit.Tokens, most.Tokens)
	case "money":
		text = fmt.Sprintf("%.2f of %.2f are used or set aside, and this request may cost up to %.2f", spent.Money, limit.Money, most.Money)
	}
	return fmt.Sprintf("%s budget of %s is used up: %s. Finish with what there is.", whose, what, text)
}

// ledger keeps what an agent spent on a day in a file that its kicks share.
// What a kick that died had set aside stays spent.
type ledger struct {
	limit policy.Budget
	path  string
	now   func() time.Time
}

type ledgerPage struct {
	Day   string        `json:"day"`
	Spent policy.Budget `json:"spent"`
}

// add spends, and returns the day on which.
func (l *ledger) add(most policy.Budget) (string, error) {
	today := l.now().UTC().Format(time.DateOnly)
	return today, l.change(func(p *ledgerPage) error {
		if p.Day != today {
			*p = ledgerPage{Day: today}
		}
		if what := exceeds(l.limit, sum(p.Spent, most)); what != "" {
			return &overBudget{detail: over("this agent's daily", what, l.limit, p.Spent, most)}
		}
		p.Spent = sum(p.Spent, most)
		return nil
	})
}

// correct changes what was spent on a day that may be over.
func (l *ledger) correct(day string, by policy.Budget) error {
	return l.change(func(p *ledgerPage) error {
		if p.Day == day {
			p.Spent = sum(p.Spent, by)
		}
		return nil
	})
}

func (l *ledger) change(f func(p *ledgerPage) error) (err error) {
	fail := func(err error) error { return fmt.Errorf("budget in %s: %w", l.path, err) }
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return fail(err)
	}
	lock, err := os.OpenFile(l.path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fail(err)
	}
	defer lock.Close() // which lets go of it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fail(err)
	}
	var p ledgerPage
	data, err := os.ReadFile(l.path)
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(fmt.Errorf("%w: correct or remove the file", err))
	}
	if err := f(&p); err != nil {
		return err
	}
	if data, err = json.Marshal(p); err != nil {
		return fail(err)
	}
	if err := os.WriteFile(l.path+".new", append(data, '\n'), 0o600); err != nil {
		return fail(err)
	}
	if err := os.Rename(l.path+".new", l.path); err != nil {
		return fail(err)
	}
	return nil
}
