package modeltest

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
)

// request is what is read of a request, whatever its format.
type request struct {
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	Tools  []tool `json:"tools"`
}

type tool struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Function struct {
		Name string `json:"name"`
	} `json:"function"`
	Declarations []struct {
		Name string `json:"name"`
	} `json:"functionDeclarations"`
}

// offered returns the first of the names that the request has as a tool.
func (q request) offered(names ...string) string {
	has := map[string]bool{}
	for _, t := range q.Tools {
		has[t.Name], has[t.Function.Name] = true, true
		for _, d := range t.Declarations {
			has[d.Name] = true
		}
	}
	if i := slices.IndexFunc(names, func(n string) bool { return has[n] }); i >= 0 {
		return names[i]
	}
	return ""
}

// format is one wire format.
type format struct {
	wire   Wire
	result string // stands in a request that brings a command's result
	// tool makes the call of the agent's shell tool; nil if it has none.
	tool func(q request, command string) object
	// answer sends the call, or "done" if it is nil.
	answer func(w http.ResponseWriter, q request, call object, stream bool)
}

var formats = map[Wire]*format{
	Responses: {Responses, "call_output", responsesTool, answerResponses},
	Chat:      {Chat, `"tool_call_id"`, chatTool, answerChat},
	Messages:  {Messages, `"tool_result"`, messagesTool, answerMessages},
	Gemini:    {Gemini, `"functionResponse"`, geminiTool, answerGemini},
}

func formatOf(path string) *format {
	switch {
	case strings.HasSuffix(path, "/responses"):
		return formats[Responses]
	case strings.HasSuffix(path, "/chat/completions"):
		return formats[Chat]
	case strings.HasSuffix(path, "/messages"), strings.HasSuffix(path, "/messages/count_tokens"):
		return formats[Messages]
	case strings.HasSuffix(path, ":generateContent"), strings.HasSuffix(path, ":streamGenerateContent"):
		return formats[Gemini]
	}
	return nil
}

// Every answer costs the same.
const inputTokens, outputTokens = 10, 5

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain objects of this package
	}
	return string(b)
}

func responsesTool(q request, command string) object {
	call := func(name string, arguments object) object {
		return object{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": text(arguments)}
	}
	switch q.offered("exec_command", "shell_command", "shell") {
	case "exec_command":
		return call("exec_command", object{"cmd": command})
	case "shell_command":
		return call("shell_command", object{"command": command})
	case "shell":
		return call("shell", object{"command": []string{"sh", "-c", command}})
	}
	return nil
}

func answerResponses(w http.ResponseWriter, q request, call object, stream bool) {
	item := call
	if item == nil {
		item = object{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
			"content": []object{{"type": "output_text", "text": "done", "annotations": []object{}}}}
	}
	response := object{"id": "resp_1", "object": "response", "model": q.Model, "status": "completed", "output": []object{item},
		"usage": object{"input_tokens": inputTokens, "output_tokens": outputTokens, "total_tokens": inputTokens + outputTokens}}
	if !stream {
		answer(w, response)
		return
	}
	for _, e := range []object{
		{"type": "response.created", "response": object{"id": "resp_1", "model": q.Model}},
		{"type": "response.output_item.done", "output_index": 0, "item": item},
		{"type": "response.completed", "response": response},
	} {
		event(w, e["type"].(string), e)
	}
}

func chatTool(q request, command string) object {
	name := q.offered("bash", "shell", "run_shell_command", "developer__shell")
	if name == "" {
		return nil
	}
	return object{"index": 0, "id": "call_1", "type": "function", "function": object{"name": name,
		"arguments": text(object{"command": command, "description": "do the task"})}}
}

func answerChat(w http.ResponseWriter, q request, call object, stream bool) {
	message, reason := object{"role": "assistant", "content": "done"}, "stop"
	if call != nil {
		message, reason = object{"role": "assistant", "content": nil, "tool_calls": []object{call}}, "tool_calls"
	}
	usage := object{"prompt_tokens": inputTokens, "completion_tokens": outputTokens, "total_tokens": inputTokens + outputTokens}
	head := func(kind string, choice object) object {
		choice["index"] = 0
		return object{"id": "chat_1", "object": kind, "created": 1, "model": q.Model, "choices": []object{choice}}
	}
	if !stream {
		whole := head("chat.completion", object{"message": message, "finish_reason": reason})
		whole["usage"] = usage
		answer(w, whole)
		return
	}
	event(w, "", head("chat.completion.chunk", object{"delta": message, "finish_reason": nil}))
	last := head("chat.completion.chunk", object{"delta": object{}, "finish_reason": reason})
	last["usage"] = usage
	event(w, "", last)
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

func messagesTool(q request, command string) object {
	name := q.offered("Bash")
	if name == "" {
		return nil
	}
	return object{"type": "tool_use", "id": "toolu_1", "name": name, "input": object{"command": command, "description": "do the task"}}
}

func answerMessages(w http.ResponseWriter, q request, call object, stream bool) {
	block, reason := object{"type": "text", "text": "done"}, "end_turn"
	if call != nil {
		block, reason = call, "tool_use"
	}
	message := object{"id": "msg_1", "type": "message", "role": "assistant", "model": q.Model, "content": []object{block},
		"stop_reason": reason, "stop_sequence": nil, "usage": object{"input_tokens": inputTokens, "output_tokens": outputTokens}}
	if !stream {
		answer(w, message)
		return
	}
	start, delta := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": "done"}
	if call != nil {
		start = object{"type": "tool_use", "id": call["id"], "name": call["name"], "input": object{}}
		delta = object{"type": "input_json_delta", "partial_json": text(call["input"])}
	}
	for _, e := range []object{
		{"type": "message_start", "message": object{"id": "msg_1", "type": "message", "role": "assistant", "model": q.Model, "content": []object{},
			"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": inputTokens, "output_tokens": 1}}},
		{"type": "content_block_start", "index": 0, "content_block": start},
		{"type": "content_block_delta", "index": 0, "delta": delta},
		{"type": "content_block_stop", "index": 0},
		{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": object{"output_tokens": outputTokens}},
		{"type": "message_stop"},
	} {
		event(w, e["type"].(string), e)
	}
}

func geminiTool(q request, command string) object {
	name := q.offered("run_shell_command")
	if name == "" {
		return nil
	}
	return object{"functionCall": object{"name": name, "args": object{"command": command, "description": "do the task"}}}
}

func answerGemini(w http.ResponseWriter, _ request, call object, stream bool) {
	part := call
	if part == nil {
		part = object{"text": "done"}
	}
	whole := object{
		"candidates": []object{{"index": 0, "finishReason": "STOP", "content": object{"role": "model", "parts": []object{part}}}},
		"usageMetadata": object{"promptTokenCount": inputTokens, "candidatesTokenCount": outputTokens,
			"totalTokenCount": inputTokens + outputTokens},
	}
	if stream {
		event(w, "", whole)
		return
	}
	answer(w, whole)
}
