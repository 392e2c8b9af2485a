package egress

import "maps"

// The shapes of the bodies that agents send, by wire format. What is not here
// is refused; the policy's allow lets it pass by name.

// Weights are upper bounds of what a part costs in tokens beyond its bytes: the
// largest image costs below 20,000 at every provider, and a document of 1,000
// pages is the most that one takes, at up to 3,000 a page.
const (
	imageWeight    = 20_000
	documentWeight = 3_000_000
)

var (
	anything = &shape{any: true}
	plain    = &shape{plain: true}
)

// audio is base64 as it stands; some servers also fetch it from a URL.
var audio = object(map[string]*shape{"format": plain, "data": {inline: true, bare: true}})

func object(keys map[string]*shape) *shape { return &shape{keys: keys} }

// fields gives several keys one shape.
func fields(sh *shape, names ...string) map[string]*shape {
	m := make(map[string]*shape, len(names))
	for _, n := range names {
		m[n] = sh
	}
	return m
}

func join(parts ...map[string]*shape) map[string]*shape {
	m := map[string]*shape{}
	for _, p := range parts {
		maps.Copy(m, p)
	}
	return m
}

// only is a value for which a feature has to be allowed.
func only(feature string) *shape { return &shape{any: true, feature: feature} }

// words makes the values of a tag: those without a feature first.
func words(kind string, free []string, bound map[string]string) *shape {
	m := maps.Clone(bound)
	if m == nil {
		m = map[string]string{}
	}
	for _, w := range free {
		m[w] = ""
	}
	return &shape{words: m, kind: kind}
}

// weigh is words of which one is heavy.
func weigh(heavy, kind string, free []string, bound map[string]string) *shape {
	sh := words(kind, free, bound)
	sh.weights = map[string]int64{heavy: documentWeight}
	return sh
}

// tier leaves out the tiers that cost more than the price table says.
var tier = words("part", []string{"auto", "default", "flex", "standard", "standard_only"}, nil)

var anthropicBody = func() *shape {
	part := &shape{plain: true}
	parts := &shape{plain: true, items: part}
	part.keys = join(
		fields(plain, "text", "title", "context", "id", "name", "tool_use_id", "is_error", "thinking", "signature", "data", "tool_name", "encrypted_content"),
		fields(anything, "cache_control", "citations", "input", "caller"),
		map[string]*shape{
			"type": weigh("document", "part", []string{"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", "search_result", "tool_reference",
				"server_tool_use", "tool_search_tool_result", "tool_search_tool_search_result", "compaction"}, map[string]string{
				"web_search_tool_result": "web-search", "web_search_result": "web-search", "web_fetch_tool_result": "web-fetch", "web_fetch_result": "web-fetch",
				"code_execution_tool_result": "code-execution", "bash_code_execution_tool_result": "code-execution", "text_editor_code_execution_tool_result": "code-execution",
				"mcp_tool_use": "mcp", "mcp_tool_result": "mcp", "container_upload": "file-store",
			}),
			"content":         parts,
			"tool_references": parts,
			"file_id":         only("file-store"),
			"server_name":     only("mcp"),
			"url":             only("web-search"), "page_age": only("web-search"), "retrieved_at": only("web-fetch"),
			"source": {plain: true, keys: join(fields(plain, "media_type"), map[string]*shape{
				"type":    words("part", []string{"base64", "text", "content"}, map[string]string{"url": "remote-files", "file": "file-store"}),
				"data":    {plain: true, weight: imageWeight},
				"content": parts,
				"url":     only("remote-files"),
				"file_id": only("file-store"),
			})},
		},
	)
	parts.keys = part.keys
	tool := object(join(
		fields(plain, "name", "description", "strict", "defer_loading", "eager_input_streaming", "display_width_px", "display_height_px", "display_number", "enable_zoom", "max_characters"),
		fields(anything, "input_schema", "cache_control", "input_examples", "allowed_callers"),
		fields(only("web-search"), "max_uses", "allowed_domains", "blocked_domains", "user_location"),
		fields(only("web-fetch"), "citations", "max_content_tokens"),
		fields(only("mcp"), "mcp_server_name", "default_config", "configs"),
		map[string]*shape{"type": words("tool", []string{"custom", "bash*", "text_editor*", "computer*", "memory*", "tool_search_tool_regex*", "tool_search_tool_bm*"}, map[string]string{
			"web_search*": "web-search", "web_fetch*": "web-fetch", "code_execution*": "code-execution", "mcp_toolset": "mcp", "mcp_toolset*": "mcp",
		})},
	))
	return object(join(
		fields(plain, "temperature", "top_p", "top_k"),
		fields(anything, "tool_choice", "stop_sequences", "metadata", "thinking", "output_config", "output_format", "cache_control"),
		map[string]*shape{
			"model":              {mark: markModel},
			"max_tokens":         {mark: markMax},
			"stream":             {mark: markStream},
			"service_tier":       tier,
			"context_management": {any: true, mark: markCompaction},
			"system":             parts,
			"messages":           {items: object(map[string]*shape{"role": plain, "content": parts})},
			"tools":              {items: tool},
			"container":          only("code-execution"),
			"mcp_servers":        only("mcp"),
		},
	))
}()

var chatBody = func() *shape {
	image := &shape{inline: true, weight: imageWeight}
	part := &shape{plain: true, keys: join(fields(plain, "text", "refusal", "thinking", "signature"), fields(anything, "cache_control"), map[string]*shape{
		"input_audio": audio,
		"type":        words("part", []string{"text", "image_url", "input_audio", "file", "refusal", "thinking"}, nil),
		"image_url":   {inline: true, weight: imageWeight, keys: map[string]*shape{"url": image, "detail": plain}},
		"file":        object(map[string]*shape{"filename": plain, "file_data": {inline: true, weight: documentWeight}, "file_id": only("file-store")}),
	})}
	message := object(join(
		fields(plain, "role", "name", "tool_call_id", "refusal", "reasoning_content", "reasoning", "reasoning_text", "reasoning_opaque", "prefix"),
		fields(anything, "tool_calls", "function_call", "annotations", "reasoning_details", "cache_control", "copilot_cache_control"),
		map[string]*shape{"content": {plain: true, items: part}, "audio": only("stored")},
	))
	return object(join(
		fields(plain, "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs", "seed", "user",
			"parallel_tool_calls", "reasoning_effort", "verbosity", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "enable_thinking"),
		fields(anything, "tool_choice", "function_call", "functions", "stop", "logit_bias", "response_format", "metadata", "prediction", "reasoning", "thinking"),
		map[string]*shape{
			"model":                 {mark: markModel},
			"messages":              {items: message},
			"max_tokens":            {mark: markMax},
			"max_completion_tokens": {mark: markMax},
			"n":                     {mark: markAnswers},
			"stream":                {mark: markStream},
			"stream_options":        {mark: markStreamOptions, keys: map[string]*shape{"include_usage": {mark: markIncludeUsage}, "include_obfuscation": plain}},
			"service_tier":          tier,
			"store":                 {any: true, feature: "stored"},
			"chat_template_kwargs":  object(fields(plain, "enable_thinking", "thinking", "preserve_thinking", "clear_thinking", "reasoning_effort", "thinking_budget")), // a template is a program
			"modalities":            {items: words("part", []string{"text"}, map[string]string{"audio": "image-generation", "image": "image-generation"})},
			"audio":                 only("image-generation"),
			"web_search_options":    only("web-search"),
			"tools": {items: object(map[string]*shape{
				"type":          words("tool", []string{"function", "custom"}, map[string]string{"web_search*": "web-search", "mcp": "mcp", "code_interpreter": "code-execution"}),
				"function":      anything,
				"custom":        anything,
				"cache_control": anything,
			})},
		},
	))
}()

var responsesBody = func() *shape {
	part := &shape{plain: true}
	parts := &shape{plain: true, items: part}
	part.keys = join(
		fields(plain, "text", "refusal", "detail", "filename", "encrypted_content"),
		fields(anything, "annotations", "logprobs", "stdout", "stderr", "outcome"),
		map[string]*shape{
			"input_audio": audio,
			"type": words("part", []string{"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal", "input_image", "input_file", "input_audio",
				"computer_screenshot", "encrypted_content"}, nil),
			"image_url": {inline: true, weight: imageWeight},
			"file_data": {inline: true, weight: documentWeight},
			"file_url":  only("remote-files"),
			"file_id":   only("file-store"),
		},
	)
	tool := &shape{}
	tools := &shape{items: tool}
	tool.keys = join(
		fields(plain, "name", "description", "strict", "defer_loading", "display_width", "display_height", "execution"),
		fields(anything, "parameters", "format", "output_schema"),
		fields(only("web-search"), "external_web_access", "search_context_size", "search_content_types", "user_location", "filters", "return_token_budget", "indexed_web_access"),
		fields(only("file-store"), "vector_store_ids", "max_num_results", "ranking_options"),
		fields(only("code-execution"), "container"),
		fields(only("mcp"), "server_url", "server_label", "server_description", "connector_id", "authorization", "headers", "allowed_tools", "require_approval"),
		fields(only("image-generation"), "background", "input_fidelity", "input_image_mask", "model", "moderation", "output_compression", "output_format", "partial_images", "quality", "size", "action"),
		map[string]*shape{
			"tools":       tools, // of a namespace
			"environment": {plain: true, keys: map[string]*shape{"type": words("part", []string{"local"}, map[string]string{"container_auto": "code-execution", "container_reference": "code-execution"})}},
			"type": words("tool", []string{"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview", "namespace", "tool_search"}, map[string]string{
				"web_search*": "web-search", "web_search_preview*": "web-search", "file_search": "file-store", "code_interpreter": "code-execution", "shell": "code-execution",
				"mcp": "mcp", "image_generation": "image-generation",
			}),
		},
	)
	item := &shape{plain: true, untyped: []string{"role", "content"}, keys: join( // else an id alone is a reference
		fields(plain, "id", "role", "status", "call_id", "name", "namespace", "encrypted_content", "input", "phase", "execution", "max_output_length", "end_turn", "created_by"),
		fields(anything, "arguments", "action", "operation", "acknowledged_safety_checks", "pending_safety_checks", "internal_chat_message_metadata_passthrough", "metadata"),
		fields(only("web-search"), "queries", "results"),
		fields(only("code-execution"), "container_id", "code", "outputs"),
		fields(only("mcp"), "server_label", "approval_request_id", "approve", "reason", "error"),
		fields(only("image-generation"), "result"),
		map[string]*shape{
			"content": parts,
			"summary": parts,
			"output":  {plain: true, items: part, keys: part.keys},
			"tools":   tools, // that a search found
			"type": words("part", []string{"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
				"local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output",
				"tool_search_call", "tool_search_output", "compaction", "compaction_summary", "compaction_trigger"}, map[string]string{
				"item_reference": "stored", "web_search_call": "web-search", "file_search_call": "file-store", "code_interpreter_call": "code-execution",
				"mcp_call": "mcp", "mcp_list_tools": "mcp", "mcp_approval_request": "mcp", "mcp_approval_response": "mcp", "image_generation_call": "image-generation",
			}),
		},
	)}
	return object(join(
		fields(plain, "instructions", "parallel_tool_calls", "max_tool_calls", "temperature", "top_p", "top_logprobs", "truncation", "user",
			"prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
		fields(anything, "tool_choice", "reasoning", "text", "include", "metadata", "stream_options", "client_metadata"),
		map[string]*shape{
			"model":                {mark: markModel},
			"input":                {plain: true, items: item},
			"tools":                tools,
			"stream":               {mark: markStream},
			"max_output_tokens":    {mark: markMax},
			"store":                {mark: markStore, feature: "stored"},
			"service_tier":         tier,
			"context_management":   {any: true, mark: markCompaction},
			"previous_response_id": only("stored"),
			"conversation":         only("stored"),
			"prompt":               only("stored"),
			"background":           only("background"),
		},
	))
}()

// Gemini takes each name in two spellings; those in snake case are here where
// clients send them and nothing is counted by them.
var geminiBody = func() *shape {
	data := object(map[string]*shape{"mimeType": {mark: markType}, "mime_type": {mark: markType}, "displayName": plain, "data": {plain: true, weight: imageWeight}})
	part := &shape{}
	part.keys = join(
		fields(plain, "text", "thought", "thoughtSignature", "thought_signature"),
		fields(anything, "functionCall", "function_call", "videoMetadata", "mediaResolution", "partMetadata"),
		fields(data, "inlineData", "inline_data"),
		fields(only("remote-files"), "fileData", "file_data"),
		fields(only("code-execution"), "executableCode", "codeExecutionResult", "executable_code", "code_execution_result"),
		fields(object(join(fields(plain, "id", "name", "willContinue", "scheduling"), map[string]*shape{"response": anything, "parts": {items: part}})), "functionResponse", "function_response"),
	)
	content := object(map[string]*shape{"role": plain, "parts": {items: part, keys: part.keys}})
	tool := object(join(
		fields(anything, "functionDeclarations", "function_declarations", "computerUse"),
		fields(only("web-search"), "googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval", "googleMaps", "google_maps", "enterpriseWebSearch"),
		fields(only("web-fetch"), "urlContext", "url_context"),
		fields(only("code-execution"), "codeExecution", "code_execution"),
		fields(only("file-store"), "fileSearch", "file_search", "retrieval"),
		fields(only("mcp"), "mcpServers", "mcp_servers"),
	))
	return object(join(
		fields(anything, "toolConfig", "tool_config", "safetySettings", "safety_settings", "labels"),
		fields(only("stored"), "cachedContent", "cached_content", "store"),
		fields(content, "systemInstruction", "system_instruction"),
		map[string]*shape{
			"contents": {items: content, keys: content.keys},
			"tools":    {items: tool, keys: tool.keys},
			"generationConfig": {mark: markGenConfig, keys: join(
				fields(anything, "temperature", "topP", "topK", "stopSequences", "responseMimeType", "responseSchema", "responseJsonSchema", "presencePenalty", "frequencyPenalty",
					"seed", "responseLogprobs", "logprobs", "thinkingConfig", "mediaResolution", "routingConfig", "audioTimestamp"),
				fields(only("image-generation"), "imageConfig", "speechConfig"),
				map[string]*shape{
					"maxOutputTokens": {mark: markMax},
					"candidateCount":  {mark: markAnswers},
					"responseModalities": {items: words("part", []string{"TEXT"}, map[string]string{
						"IMAGE": "image-generation", "AUDIO": "image-generation", "Image": "image-generation", "Text": "",
					})},
				},
			)},
		},
	))
}()
