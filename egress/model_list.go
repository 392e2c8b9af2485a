package egress

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxList bounds a provider's list of models, in bytes: OpenRouter's has some
// 700 KB, the longest that is known.
const maxList = 8 << 20

// modelList is a list of models in any of the wire formats. What else stands
// beside the list leads to its next page, which is not asked for.
type modelList struct {
	Object string        `json:"object,omitempty"`
	Data   []listedModel `json:"data,omitzero"`
	Models []listedModel `json:"models,omitzero"` // Gemini's, with "models/" before each name
}

// listedModel is what a provider says of a model.
type listedModel map[string]json.RawMessage

// name is what calls have for it.
func (l listedModel) name() string {
	for _, key := range []string{"id", "name"} {
		var s string
		if json.Unmarshal(l[key], &s) == nil && s != "" {
			return strings.TrimPrefix(s, "models/")
		}
	}
	return ""
}

// deliverList passes on those of a list of models that a call may ask for, and
// nothing of who owns them. It counts among the bodies in memory.
func (c *call) deliverList(x *passage, res *http.Response, key string, end *End) error {
	if c.buf = c.g.newBody(maxList); c.buf == nil {
		return &refusalError{status: http.StatusTooManyRequests, later: true, detail: "Too many large requests are under way. Send fewer at once."}
	}
	got := x.flow(maxList, fmt.Errorf("the list is larger than %d bytes", maxList))
	_, err := c.buf.ReadFrom(got.reader(res.Body))
	end.Got = got.n.Load()
	c.buf.isWhole()
	var list modelList
	if err == nil {
		err = json.Unmarshal(c.buf.Bytes(), &list)
	}
	if err != nil {
		return &refusalError{status: http.StatusBadGateway, detail: "The model's provider did not answer with a list of models.", cause: err}
	}
	for _, models := range []*[]listedModel{&list.Data, &list.Models} {
		*models = slices.DeleteFunc(*models, func(l listedModel) bool {
			delete(l, "owned_by") // may be the operator's organisation
			delete(l, "permission")
			return !c.route.offers(l.name())
		})
	}
	body, err := json.Marshal(list)
	if err != nil || key != "" && strings.Contains(string(body), key) {
		return &refusalError{status: http.StatusBadGateway, detail: "The list of models of the model's provider is not fit to be passed on.", cause: err}
	}
	end.Status = http.StatusOK
	copyAnswerHeader(c.w.Header(), res.Header, key)
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.g.limits.replyTime))
	c.w.WriteHeader(http.StatusOK)
	if _, err := c.w.Write(body); err != nil {
		end.Error = errAgentGone.Error()
	}
	return nil
}

// offers reports whether a call may ask for a model.
func (r *route) offers(name string) bool {
	if r.Force != "" {
		return name == r.Force
	}
	return isModelName(name) && r.AllowsModel(name) && r.mayReachOut(name)
}
