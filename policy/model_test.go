package policy

import (
	"strings"
	"testing"
)

func TestPrices(t *testing.T) {
	t.Parallel()
	const head = "version: 1\negress:\n  models:\n    - provider: anthropic\n      prices:\n"
	for prices, want := range map[string]string{
		`        - {model: "a*", above_tokens: 9, input: 2, output: 2}
        - {model: "a*", above_tokens: 5, input: 1, output: 1}
        - {model: "*", input: 0, output: 0}`: "",
		`        - {model: "a", input: 1, output: 1}
        - {model: "a", above_tokens: 9, input: 2, output: 2}`: `the one above 9 tokens is never reached`,
		`        - {model: "a", above_tokens: 5, input: 1, output: 1}
        - {model: "a", above_tokens: 9, input: 2, output: 2}
        - {model: "a", input: 1, output: 1}`: `the one above 9 tokens is never reached`,
		`        - {model: "a", above_tokens: 5, input: 1, output: 1}`:  `above 5 tokens alone`,
		`        - {model: "a", above_tokens: -5, input: 1, output: 1}`: "above_tokens",
	} {
		p, err := Parse("p.yaml", []byte(head+prices+"\n"))
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "p.yaml:") {
				t.Errorf("%s\n%v, want %q", prices, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s\n%v", prices, err)
		}
		m := p.Egress.Models[0]
		for input, want := range map[int64]float64{0: 0, 5: 0, 6: 1, 9: 1, 10: 2} {
			if got, ok := m.PriceOf("a1", input); !ok || got.Input != want {
				t.Errorf("%d tokens: %v %t, want %v", input, got, ok, want)
			}
		}
	}
}
