package config

// kind is a coding agent whose command line is known.
type kind struct {
	// script runs under sh -c in the workspace and gives the agent the prompt.
	script string
	// env keeps the agent from calling home or updating itself, which a
	// sandbox without a network only makes slow.
	env map[string]string
}

const defaultKind = "claude"

// The agents were each tried with no network but a model endpoint on loopback.
// A prompt that has to be an argument is limited to 128 KiB by Linux; the
// agents that read standard input take one of any size.
var kinds = map[string]kind{
	"claude": {
		script: "exec claude -p --output-format stream-json --verbose --dangerously-skip-permissions < .hive/kick-prompt.txt",
		env: map[string]string{
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
			"DISABLE_TELEMETRY":                        "1",
			"DISABLE_ERROR_REPORTING":                  "1",
			"DISABLE_AUTOUPDATER":                      "1",
		},
	},
	"codex": {
		script: "exec codex exec --json --ephemeral --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox" +
			" -c analytics.enabled=false -c check_for_update_on_startup=false -c feedback.enabled=false" +
			" --disable plugins --disable apps - < .hive/kick-prompt.txt",
	},
	"copilot": {
		script: `exec copilot --allow-all-tools --no-color --log-level none --no-auto-update --prompt="$(cat .hive/kick-prompt.txt)"`,
		env:    map[string]string{"COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false"},
	},
	"gemini": {
		script: `exec gemini --yolo --output-format json --prompt="$(cat .hive/kick-prompt.txt)"`,
	},
	"opencode": {
		script: `exec opencode run --pure --title kick --format json --auto -- "$(cat .hive/kick-prompt.txt)"`,
		env: map[string]string{
			"OPENCODE_DISABLE_AUTOUPDATE":      "1",
			"OPENCODE_DISABLE_MODELS_FETCH":    "1",
			"OPENCODE_DISABLE_LSP_DOWNLOAD":    "1",
			"OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		},
	},
}

func (k kind) command() []string { return []string{"sh", "-c", k.script} }
