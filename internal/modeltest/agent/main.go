// Command agent is a scripted coding agent for tests. It stands in for the real
// one whose name it is run by (codex, claude, copilot or gemini): it finds its
// model where that one does, offers a shell tool in that one's wire format, runs
// what the model asks for, and ends when the model says that it is done.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	if err := run(filepath.Base(os.Args[0])); err != nil {
		fmt.Fprintln(os.Stderr, "scripted agent:", err)
		os.Exit(1)
	}
}

type object = map[string]any

// wire is how one agent speaks to its model.
type wire struct {
	url    func() string
	header string // of the key
	keyEnv string
	first  func(model, prompt string) object
	// command finds the command that an event of the answer asks for.
	command func(event object) string
	// result adds the command's output to the first request.
	result func(request object, command, output string)
}

var wires = map[string]wire{
	"codex": {
		url: func() string {
			base := regexp.MustCompile(`base_url="([^"]*)"`).FindStringSubmatch(strings.Join(os.Args, " "))
			return base[1] + "/responses"
		},
		header: "Authorization", keyEnv: "OPENAI_API_KEY",
		first: func(model, prompt string) object {
			return object{"model": model, "stream": true, "store": false,
				"tools": []any{object{"type": "function", "name": "exec_command", "parameters": object{"type": "object"}}},
				"input": []any{object{"type": "message", "role": "user", "content": []any{object{"type": "input_text", "text": prompt}}}}}
		},
		command: func(e object) string {
			return argument(at(e, "item", "arguments"), "cmd")
		},
		result: func(r object, command, output string) {
			r["input"] = append(r["input"].([]any),
				object{"type": "function_call", "call_id": "call_1", "name": "exec_command", "arguments": encode(object{"cmd": command})},
				object{"type": "function_call_output", "call_id": "call_1", "output": output})
		},
	},
	"claude": {
		url:    func() string { return os.Getenv("ANTHROPIC_BASE_URL") + "/v1/messages" },
		header: "X-Api-Key", keyEnv: "ANTHROPIC_API_KEY",
		first: func(model, prompt string) object {
			return object{"model": model, "stream": true, "max_tokens": 1000,
				"tools":    []any{object{"name": "Bash", "description": "run", "input_schema": object{"type": "object"}}},
				"messages": []any{object{"role": "user", "content": prompt}}}
		},
		command: func(e object) string {
			return argument(at(e, "delta", "partial_json"), "command")
		},
		result: func(r object, command, output string) {
			r["messages"] = append(r["messages"].([]any),
				object{"role": "assistant", "content": []any{object{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": object{"command": command}}}},
				object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": "toolu_1", "content": output}}})
		},
	},
	"copilot": {
		url:    func() string { return os.Getenv("COPILOT_PROVIDER_BASE_URL") + "/chat/completions" },
		header: "Authorization", keyEnv: "COPILOT_PROVIDER_API_KEY",
		first: func(model, prompt string) object {
			return object{"model": model, "stream": true, "stream_options": object{"include_usage": true},
				"tools":    []any{object{"type": "function", "function": object{"name": "bash", "parameters": object{"type": "object"}}}},
				"messages": []any{object{"role": "user", "content": prompt}}}
		},
		command: func(e object) string {
			return argument(at(e, "choices", 0, "delta", "tool_calls", 0, "function", "arguments"), "command")
		},
		result: func(r object, command, output string) {
			r["messages"] = append(r["messages"].([]any),
				object{"role": "assistant", "content": nil, "tool_calls": []any{object{"id": "call_1", "type": "function",
					"function": object{"name": "bash", "arguments": encode(object{"command": command})}}}},
				object{"role": "tool", "tool_call_id": "call_1", "content": output})
		},
	},
	"gemini": {
		url: func() string {
			return os.Getenv("GOOGLE_GEMINI_BASE_URL") + "/v1beta/models/" + os.Getenv("KICK_MODEL") + ":streamGenerateContent?alt=sse"
		},
		header: "X-Goog-Api-Key", keyEnv: "GEMINI_API_KEY",
		first: func(_, prompt string) object {
			return object{
				"tools":    []any{object{"functionDeclarations": []any{object{"name": "run_shell_command", "description": "run"}}}},
				"contents": []any{object{"role": "user", "parts": []any{object{"text": prompt}}}}}
		},
		command: func(e object) string {
			s, _ := at(e, "candidates", 0, "content", "parts", 0, "functionCall", "args", "command").(string)
			return s
		},
		result: func(r object, command, output string) {
			r["contents"] = append(r["contents"].([]any),
				object{"role": "model", "parts": []any{object{"functionCall": object{"name": "run_shell_command", "args": object{"command": command}}}}},
				object{"role": "user", "parts": []any{object{"functionResponse": object{"name": "run_shell_command", "response": object{"output": output}}}}})
		},
	},
}

func run(name string) error {
	w, ok := wires[name]
	if !ok {
		return fmt.Errorf("no agent is called %q", name)
	}
	prompt, err := os.ReadFile(os.Getenv("KICK_PROMPT_FILE"))
	if err != nil {
		return err
	}
	request := w.first(os.Getenv("KICK_MODEL"), string(prompt))
	command, err := w.ask(request)
	if err != nil {
		return err
	}
	if command == "" {
		return fmt.Errorf("the model asked for no command")
	}
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	w.result(request, command, string(out))
	if command, err = w.ask(request); err == nil && command != "" {
		err = fmt.Errorf("the model asked for a second command: %s", command)
	}
	return err
}

// ask asks the model, and again when the connection or the answer breaks off,
// as the real clients do.
func (w wire) ask(request object) (command string, err error) {
	for range 10 {
		var broken bool
		command, broken, err = w.askOnce(request)
		if !broken {
			return command, err
		}
		fmt.Fprintln(os.Stderr, "scripted agent: broke off, trying again:", err)
		time.Sleep(300 * time.Millisecond)
	}
	return command, err
}

// askOnce sends the request and returns the command that the answer asks for.
func (w wire) askOnce(request object) (command string, broken bool, err error) {
	r, err := http.NewRequest(http.MethodPost, w.url(), strings.NewReader(encode(request)))
	if err != nil {
		return "", false, err
	}
	r.Header.Set("Content-Type", "application/json")
	key := os.Getenv(w.keyEnv)
	if w.header == "Authorization" {
		key = "Bearer " + key
	}
	r.Header.Set(w.header, key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", true, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return "", false, fmt.Errorf("%s: %s: %s", w.url(), resp.Status, body)
	}
	ended := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e object
		if json.Unmarshal(data, &e) != nil {
			continue // [DONE]
		}
		ended = true
		if c := w.command(e); c != "" {
			command = c
		}
	}
	if err := lines.Err(); err != nil {
		return "", true, err
	}
	if !ended {
		return "", false, fmt.Errorf("%s: the answer has no event", w.url())
	}
	return command, false, nil
}

// at follows keys and indices into a decoded value; nil where there is nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			o, _ := v.(object)
			v = o[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// argument returns one of the arguments of a call, which are JSON in a string.
func argument(arguments any, name string) string {
	var a object
	s, _ := arguments.(string)
	if json.Unmarshal([]byte(s), &a) != nil {
		return ""
	}
	v, _ := a[name].(string)
	return v
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain objects of this program
	}
	return string(b)
}
