package agents

// The kinds that have a Tested version were each run with no network but a
// model endpoint on loopback, and the hosts that they tried to reach without
// their quiet settings are the reason for these.
var kinds = []Kind{
	{
		Name: "aider", Product: "Aider (PyPI aider-chat)", API: OpenAIChat,
		Script: `exec aider --yes-always --no-pretty --no-stream --no-gitignore --no-check-update --no-show-release-notes --no-show-model-warnings` +
			` --no-suggest-shell-commands --analytics-disable --chat-history-file /tmp/aider.chat.md --input-history-file /tmp/aider.input` +
			` --model "openai/$KICK_MODEL" --message-file .hive/kick-prompt.txt`,
		Env: map[string]string{
			"OPENAI_API_BASE":              "{url}/v1",
			"OPENAI_API_KEY":               "{key}",
			"LITELLM_LOCAL_MODEL_COST_MAP": "True",
		},
		NeedsModel: true,
	},
	{
		Name: "claude", Product: "Claude Code (npm @anthropic-ai/claude-code)", API: AnthropicMessages,
		Script: `exec claude -p --output-format stream-json --verbose --dangerously-skip-permissions ${KICK_MODEL:+--model "$KICK_MODEL"} < .hive/kick-prompt.txt`,
		Env: map[string]string{
			"ANTHROPIC_BASE_URL":                       "{url}",
			"ANTHROPIC_API_KEY":                        "{key}",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
			"DISABLE_TELEMETRY":                        "1",
			"DISABLE_ERROR_REPORTING":                  "1",
			"DISABLE_AUTOUPDATER":                      "1",
		},
		Tested: "2.1.332",
		NPM:    NPM{Spec: "@anthropic-ai/claude-code-linux-{cpu}@{version}", Program: "claude"},
	},
	{
		Name: "codex", Product: "Codex (npm @openai/codex)", API: OpenAIResponses,
		Script: `exec codex exec --json --ephemeral --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox` +
			` --disable plugins --disable apps -c analytics.enabled=false -c check_for_update_on_startup=false -c feedback.enabled=false -c web_search=disabled` +
			` -c model_provider=kick -c "model_providers.kick={name=\"kick\",base_url=\"$KICK_MODEL_URL/v1\",wire_api=\"responses\",env_key=\"OPENAI_API_KEY\",supports_websockets=false}"` +
			` ${KICK_MODEL:+-m "$KICK_MODEL"} - < .hive/kick-prompt.txt`,
		Env:    map[string]string{"OPENAI_API_KEY": "{key}"},
		Tested: "0.171.0",
		NPM:    NPM{Spec: "@openai/codex@{version}-linux-{cpu}", Program: "vendor/{arch}-unknown-linux-musl/bin/codex"},
	},
	{
		Name: "copilot", Product: "Copilot CLI (npm @github/copilot)", API: OpenAIChat,
		Script: `exec copilot --allow-all-tools --no-color --log-level none --no-auto-update --prompt="$(cat .hive/kick-prompt.txt)"`,
		Env: map[string]string{
			"COPILOT_PROVIDER_BASE_URL": "{url}/v1",
			"COPILOT_PROVIDER_TYPE":     "openai",
			"COPILOT_PROVIDER_API_KEY":  "{key}",
			"COPILOT_MODEL":             "{model}",
			"COPILOT_OFFLINE":           "true",
			"COPILOT_AUTO_UPDATE":       "false",
		},
		NeedsModel: true, MaxPrompt: maxArgument,
		Tested: "1.0.102",
		NPM:    NPM{Spec: "@github/copilot-linux-{cpu}@{version}", Program: "copilot"},
	},
	{
		Name: "gemini", Product: "Gemini CLI (npm @google/gemini-cli)", API: Gemini,
		Script: `exec gemini --yolo --output-format json ${KICK_MODEL:+-m "$KICK_MODEL"} --prompt="$(cat .hive/kick-prompt.txt)"`,
		Env: map[string]string{
			"GOOGLE_GEMINI_BASE_URL":     "{url}",
			"GEMINI_API_KEY":             "{key}",
			"GEMINI_TELEMETRY_ENABLED":   "false",
			"GEMINI_CLI_TRUST_WORKSPACE": "true",
			"NO_UPDATE_NOTIFIER":         "1",
		},
		Home: map[string]string{".gemini/settings.json": `{
  "general": {"disableAutoUpdate": true, "disableUpdateNag": true},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}}
}
`},
		MaxPrompt: maxArgument,
		Tested:    "0.61.0",
		NPM:       NPM{Spec: "@google/gemini-cli@{version}", Program: "bundle/gemini.js", Script: true},
	},
	{
		Name: "goose", Product: "goose (block/goose)", API: OpenAIChat,
		Script: `exec goose run --no-session --with-builtin developer -i .hive/kick-prompt.txt`,
		Env: map[string]string{
			"GOOSE_PROVIDER":          "openai",
			"GOOSE_MODEL":             "{model}",
			"GOOSE_MODE":              "auto",
			"GOOSE_DISABLE_KEYRING":   "1",
			"GOOSE_TELEMETRY_ENABLED": "false",
			"OPENAI_HOST":             "{gateway}",
			"OPENAI_BASE_PATH":        "{path}/v1/chat/completions",
			"OPENAI_API_KEY":          "{key}",
		},
		NeedsModel: true,
		Tested:     "1.52.0",
		NPM:        NPM{Spec: "@aaif/goose-binary-linux-{cpu}@{version}", Program: "bin/goose"},
	},
	{
		Name: "opencode", Product: "OpenCode (npm opencode-ai)", API: OpenAIChat,
		Script: `exec opencode run --pure --title kick --format json -m "kick/$KICK_MODEL" -- "$(cat .hive/kick-prompt.txt)"`,
		Env: map[string]string{
			"OPENCODE_CONFIG_CONTENT": `{"share":"disabled","autoupdate":false,"permission":{"*":"allow"},` +
				`"provider":{"kick":{"npm":"@ai-sdk/openai-compatible","name":"kick","options":{"baseURL":"{url}/v1","apiKey":"{key}"},"models":{"{model}":{}}}}}`,
			"OPENCODE_DISABLE_AUTOUPDATE":      "1",
			"OPENCODE_DISABLE_MODELS_FETCH":    "1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD":    "1",
			"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
			"OPENCODE_PURE":                    "1",
			// It asks for a plugin's package in any case; this is answered at once.
			"NPM_CONFIG_REGISTRY": "{gateway}/",
			"BUN_CONFIG_REGISTRY": "{gateway}/",
		},
		NeedsModel: true, MaxPrompt: maxArgument,
		Tested: "1.18.33",
		NPM:    NPM{Spec: "opencode-linux-{cpu}@{version}", Program: "bin/opencode"},
	},
}

// maxArgument is MAX_ARG_STRLEN less room for the option before the prompt.
const maxArgument = 127 << 10
