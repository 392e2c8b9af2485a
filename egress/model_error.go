package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// refusalError is why the agent gets no answer from the provider, in the provider's
// own form.
type refusalError struct {
	status int
	rule   string // empty: the agent's mistake or a fault, no matter of policy
	detail string
	later  bool // it may work in a moment
	cause  error
}

func (e *refusalError) Error() string { return e.detail }
func (e *refusalError) Unwrap() error { return e.cause }

func denied(rule, format string, args ...any) error {
	return &refusalError{status: http.StatusForbidden, rule: rule, detail: fmt.Sprintf(format, args...)}
}

// refuse writes down and answers what did not get to the provider.
func (c *call) refuse(err error) {
	var re *refusalError
	if !errors.As(err, &re) {
		re = &refusalError{status: http.StatusBadGateway, detail: err.Error()}
	}
	rule := re.rule
	if rule == "" {
		rule = "model-bad-request"
	}
	_, d := c.g.log.decided(c.req, Decision{Rule: rule, Detail: re.detail})
	if d.Rule != rule {
		re = &refusalError{status: http.StatusForbidden, rule: d.Rule, detail: d.Detail}
	}
	c.answer(re)
}

// answer tells the agent in its provider's own words for errors, so that it
// neither takes it for a fault nor tries again in vain.
func (c *call) answer(e *refusalError) {
	message := "kick: " + strings.ToValidUTF8(e.detail, "?")
	if e.rule != "" {
		message += " (rule " + e.rule + ")"
	}
	body, err := json.Marshal(c.format.errorBody(e, message))
	if err != nil {
		panic(http.ErrAbortHandler) // texts always marshal
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	h.Set("X-Content-Type-Options", "nosniff")
	// Both companies' clients go by it.
	h.Set("X-Should-Retry", strconv.FormatBool(e.later))
	if e.later {
		h.Set("Retry-After", "5")
	}
	if !c.read {
		h.Set("Connection", "close")
	}
	c.w.WriteHeader(e.status)
	_, _ = c.w.Write(append(body, '\n'))
}

// errorBody is an error as the provider's clients read it.
func (f *format) errorBody(e *refusalError, message string) any {
	type object = map[string]any
	switch f {
	case anthropicFormat:
		kind := map[int]string{
			400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
		}[e.status]
		if kind == "" {
			kind = "api_error"
		}
		return object{"type": "error", "error": object{"type": kind, "message": message}}
	case geminiFormat:
		status := map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}[e.status]
		if status == "" {
			status = "INTERNAL"
		}
		inner := object{"code": e.status, "message": message, "status": status}
		if e.status == 429 && !e.later { // a daily quota is one that waiting does not help
			inner["details"] = []object{{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []object{{"quotaId": "KickBudgetPerDay", "description": message}}}}
		}
		return object{"error": inner}
	}
	kind, code := "server_error", "kick_fault"
	switch {
	case e.status == 429 && e.later:
		kind, code = "requests", "rate_limit_exceeded"
	case e.status == 429:
		kind, code = "insufficient_quota", "insufficient_quota"
	case e.status == 401:
		kind, code = "invalid_request_error", "invalid_api_key"
	case e.status == 403:
		kind, code = "invalid_request_error", "policy_denied"
	case e.status < 500:
		kind, code = "invalid_request_error", "invalid_request"
	}
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": code}}
}
