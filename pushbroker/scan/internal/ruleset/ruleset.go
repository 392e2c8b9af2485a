// Package ruleset holds kick's own secret rules. The generator compiles them,
// together with the rules of gitleaks, into the scanner's table; the kick
// binary carries that table alone.
package ruleset

// Grade says how sure a strike is.
type Grade string

// The grades.
const (
	Certain  Grade = "certain"  // blocks the push
	Possible Grade = "possible" // asks a person
)

// Rule is one rule with its own examples. Examples are templates, see Expand:
// so this file holds nothing that looks like a secret.
type Rule struct {
	ID      string
	What    string // completes "this is …"
	Expr    string // the secret is the first group, or the whole match
	Grade   Grade
	Entropy float64 // Shannon entropy in bits a byte that the secret must exceed; 0: not asked
	// Verify names a check in the scanner's verify.go that a match must pass.
	Verify  string
	Assign  bool // the literal that a match holds is part of a name, and an operator and the value follow
	Matches []string
	Misses  []string
	// Supersedes are ids of gitleaks' rules that this rule covers wholly.
	Supersedes []string
}

// Own are kick's rules.
var Own = []Rule{
	{
		ID: "github-token", What: "a GitHub token", Grade: Certain, Entropy: 3,
		Expr:       `gh[pousr]_[A-Za-z0-9]{36,255}`,
		Matches:    []string{"ghp_{an:36}", "x=gho_{an:36};", "ghu_{an:36}", "ghs_{an:36}", "GHR:ghr_{an:76}", "prefixghp_{an:36}"},
		Misses:     []string{"ghp_{an:35}", "ghp_{x:36}", "ghx_{an:36}", "GHP_{an:36}"},
		Supersedes: []string{"github-pat", "github-oauth", "github-app-token", "github-refresh-token"},
	},
	{
		ID: "github-installation-token", What: "a GitHub App installation token", Grade: Certain, Entropy: 3,
		// The form since 2026: ghs_<app id>_<JWT>, about 520 characters, two dots.
		Expr:    `ghs_[A-Za-z0-9._-]{36,}`,
		Matches: []string{"ghs_{d:7}_eyJ{an:30}.eyJ{an:180}.{u:86}", "token: ghs_{d:6}_{u:40}"},
		Misses:  []string{"ghs_{an:20}", "ghs_ {an:40}"},
	},
	{
		ID: "github-fine-grained-token", What: "a GitHub fine-grained personal access token", Grade: Certain, Entropy: 3,
		Expr:       `github_pat_[A-Za-z0-9_]{36,255}`,
		Matches:    []string{"github_pat_{an:22}_{an:59}"},
		Misses:     []string{"github_pat_token", "github_pat_{x:82}"},
		Supersedes: []string{"github-fine-grained-pat"},
	},
	{
		ID: "gitlab-token", What: "a GitLab token", Grade: Certain, Entropy: 3,
		Expr:    `gl(?:pat|dt|rt|rtr|ft|soat|cbt|ptt|imt|agent|oas|ffct|wt)-[A-Za-z0-9_.-]{20,300}`,
		Matches: []string{"glpat-{an:20}", "glrt-t1_{an:27}.01.{d:9}", "gldt-{an:20}"},
		Misses:  []string{"glpat-{an:12}", "glxx-{an:20}"},
		Supersedes: []string{"gitlab-pat", "gitlab-deploy-token", "gitlab-feed-token", "gitlab-incoming-mail-token",
			"gitlab-kubernetes-agent-token", "gitlab-oauth-app-secret", "gitlab-pat-routable", "gitlab-ptt",
			"gitlab-runner-authentication-token", "gitlab-runner-authentication-token-routable", "gitlab-scim-token",
			"gitlab-feature-flag-client-token"},
	},
	{
		ID: "url-password", What: "a URL with a password in it", Grade: Certain, Verify: "userinfo",
		Expr: `://[^\s:/@"'<>\x60]{0,128}:([^\s/@"'<>\x60]{4,512})@[A-Za-z0-9\[._-]`,
		Matches: []string{"https://bot:{an:20}@git.acme.io/x", "postgres://app:{an:16}@db.internal:5432/app", "redis://:{an:24}@cache:6379",
			"https://x-access-token:{an:40}@github.com/a/b"},
		Misses: []string{"http://user:password@host/", "https://${USER}:${PASSWORD}@host", "https://user:%s@host",
			"see https://host:8080/a@b", "http://a:b@c"},
	},
	{
		ID: "aws-access-key-id", What: "an AWS access key id", Grade: Certain, Entropy: 2.5,
		Expr:    `(?:^|[^A-Za-z0-9])((?:AKIA|ASIA)[A-Z0-9]{16})(?:[^A-Za-z0-9]|$)`,
		Matches: []string{"AKIA{AN:16}", "key_ASIA{AN:16}\n"},
		Misses:  []string{"AKIA{AN:15}", "AKIA{an:12}", "AKIAIOSFODNN7" + "EXAMPLE", "XAKIA{AN:16}"},
	},
	{
		ID: "aws-secret-key", What: "an AWS secret access key", Grade: Certain, Entropy: 3.8, Verify: "mixed", Assign: true,
		Expr:    `(?i)aws[_.-]{0,2}(?:session[_.-]{0,2})?secret[\w.-]{0,20}["'\s]{0,3}[=:>]{1,3}["'\s]{0,3}([a-z0-9/+]{40})(?:[^a-z0-9/+=]|$)`,
		Matches: []string{"aws_secret_access_key = {b64:40}", `"awsSecretKey": "{b64:40}"`, "AWS_SECRET={b64:40}"},
		Misses:  []string{"aws_secret_access_key = {hex:40}", "aws_secret = {b64:39}"},
	},
	{
		ID: "aws-secret-key-after-id", What: "an AWS secret access key beside its id", Grade: Certain, Entropy: 3.8, Verify: "mixed",
		Expr:    `(?:AKIA|ASIA)[A-Z0-9]{16}(?s:.){1,200}?[^A-Za-z0-9/+=]([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|$)`,
		Matches: []string{"AKIA{AN:16}\n{b64:40}\n", `id="AKIA{AN:16}", key="{b64:40}"`},
		Misses:  []string{"AKIA{AN:16} {hex:40}"},
	},
	{
		ID: "aws-secret-key-before-id", What: "an AWS secret access key beside its id", Grade: Certain, Entropy: 3.8, Verify: "mixed",
		Expr:    `(?:^|[^A-Za-z0-9/+=])([A-Za-z0-9/+]{40})[^A-Za-z0-9/+=](?s:.){0,200}?(?:AKIA|ASIA)[A-Z0-9]{16}`,
		Matches: []string{"{b64:40}\nAKIA{AN:16}\n"},
		Misses:  []string{"{hex:40} AKIA{AN:16}"},
	},
	{
		ID: "aws-session-token", What: "an AWS session token", Grade: Certain, Entropy: 4, Assign: true,
		Expr:    `(?i)aws[_.-]{0,2}session[_.-]{0,2}token["'\s]{0,3}[=:>]{1,3}["'\s]{0,3}([a-z0-9/+=]{100,})`,
		Matches: []string{"aws_session_token={b64:300}"},
		Misses:  []string{"aws_session_token={an:20}"},
	},
	{
		ID: "private-key", What: "a private key", Grade: Certain, Verify: "pem",
		Expr: `(?i)-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----`,
		Matches: []string{
			"-----BEGIN RSA PRIV{}ATE KEY-----\n{b64:64}\n{b64:64}\n-----END RSA PRIV{}ATE KEY-----",
			`"-----BEGIN PRIV{}ATE KEY-----\n{b64:64}\n{b64:40}\n-----END PRIV{}ATE KEY-----\n"`,
			"-----BEGIN OPENSSH PRIV{}ATE KEY----- {b64:200} -----END OPENSSH PRIV{}ATE KEY-----",
			"-----BEGIN RSA PRIV{}ATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{HEX:32}\n\n{b64:64}\n{b64:64}\n",
			"-----BEGIN PGP PRIV{}ATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{b64:64}\n{b64:64}\n=abcd\n-----END PGP PRIV{}ATE KEY BLOCK-----",
			"\"-----BEGIN EC PRIV{}ATE KEY-----\\n\" +\n\t\"{b64:64}\\n\" +\n\t\"{b64:64}\\n\"",
			"-----BEGIN ENCRYPTED PRIV{}ATE KEY-----\r\n{b64:20}\r\n{b64:20}\r\n{b64:20}\r\n{b64:20}\r\n",
		},
		Misses: []string{
			"-----BEGIN PRIV{}ATE KEY-----\n...\n-----END PRIV{}ATE KEY-----",
			`strings.Contains(s, "-----BEGIN PRIV{}ATE KEY-----") // see the loader`,
			"-----BEGIN PUBLIC KEY-----\n{b64:64}\n{b64:64}\n-----END PUBLIC KEY-----",
		},
		Supersedes: []string{"private-key"},
	},
	{
		ID: "putty-private-key", What: "a PuTTY private key", Grade: Certain,
		Expr:    `PuTTY-User-Key-File-\d: [\w@.-]{3,60}\r?\n(?s:.){1,1000}?Private-Lines: \d`,
		Matches: []string{"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 2\n{b64:64}\nPrivate-Lines: 1\n{b64:64}"},
		Misses:  []string{"PuTTY-User-Key-File-3: is the header"},
	},
	{
		ID: "gcp-service-account", What: "a Google service account key", Grade: Certain, Entropy: 3,
		Expr:    `"private_key_id"\s{0,8}:\s{0,8}"([0-9a-f]{40})"`,
		Matches: []string{`"private_key_id": "{hex:40}"`},
		Misses:  []string{`"private_key_id": "your-key-id"`},
	},
	{
		ID: "google-api-key", What: "a Google API key", Grade: Certain, Entropy: 3.5,
		Expr:    `AIza[A-Za-z0-9_-]{35}`,
		Matches: []string{"AIza{an:35}", "key=AIzaSy{an:33}&x"},
		Misses:  []string{"AIza{an:20}", "AIza{x:35}"},
	},
	{
		ID: "google-oauth-secret", What: "a Google OAuth secret or token", Grade: Certain, Entropy: 3,
		Expr:    `GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{30,}|AQ\.Ab[A-Za-z0-9_-]{40,}`,
		Matches: []string{"GOCSPX-{an:28}", "ya29.a0{an:60}", "AQ.Ab8{an:48}"},
		Misses:  []string{"GOCSPX-{an:8}", "ya29.x"},
	},
	{
		ID: "azure-key", What: "an Azure key", Grade: Certain, Entropy: 4,
		Expr:    `(?i)(?:AccountKey|SharedAccessKey|AccessKey)=([a-z0-9+/]{43,86}={1,2})|[?&;]sig=([a-z0-9%+/]{43,63}(?:%3D|=))`,
		Matches: []string{"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={b64:86}==;", "SharedAccessKey={b64:43}=", "?sv=2022&sig={b64:43}%3D"},
		Misses:  []string{"AccountKey={b64:20}==", "AccountKey=<key>"},
	},
	{
		ID: "azure-ai-key", What: "an Azure AI key", Grade: Certain, Entropy: 4,
		Expr:    `[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}`,
		Matches: []string{"{an:52}JQQJ99{an:26}"},
		Misses:  []string{"JQQJ99{an:26}"},
	},
	{
		ID: "slack-token", What: "a Slack token", Grade: Certain, Entropy: 3,
		Expr:    `xox[abceoprs](?:-\d)?-[0-9]{6,14}-[A-Za-z0-9-]{16,}`,
		Matches: []string{"xoxb-{d:12}-{d:12}-{an:24}", "xoxp-{d:12}-{d:12}-{d:12}-{hex:32}", "xoxb-{d:10}-{an:24}"},
		Misses:  []string{"xoxb-your-token", "xoxb-{d:12}", "xoxb-000000000000-000000000000-xxxxxxxxxxxxxxxxxxxxxxxx"},
	},
	{
		ID: "stripe-key", What: "a Stripe key", Grade: Certain, Entropy: 3,
		Expr:       `(?:(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,250}|whsec_[A-Za-z0-9+/]{24,64})`,
		Matches:    []string{"sk_live_{an:24}", "rk_live_{an:99}", "sk_test_{an:24}", "whsec_{an:32}"},
		Misses:     []string{"sk_live_short", "sk_live_{x:24}"},
		Supersedes: []string{"stripe-access-token"},
	},
	{
		ID: "npm-token", What: "an npm token", Grade: Certain, Entropy: 3,
		Expr:    `(?:npm_[A-Za-z0-9]{36}|:_(?:authToken|auth|password)\s{0,3}=\s{0,3}["']?([A-Za-z0-9_./+=-]{16,}))`,
		Matches: []string{"npm_{an:36}", "//registry.npmjs.org/:_authToken={an:36}"},
		Misses:  []string{"npm_config_registry", "//registry.npmjs.org/:_authToken=${NPM_TOKEN}"},
	},
	{
		ID: "pypi-token", What: "a PyPI token", Grade: Certain, Entropy: 3,
		Expr:       `pypi-AgE[A-Za-z0-9_-]{50,}`,
		Matches:    []string{"pypi-AgEIcHlwaS5vcmc{an:100}", "pypi-AgENdGVzdC5weXBp{an:100}"},
		Misses:     []string{"pypi-AgEIcHlwaS5vcmc{an:10}"},
		Supersedes: []string{"pypi-upload-token"},
	},
	{
		ID: "docker-token", What: "a Docker Hub token", Grade: Certain, Entropy: 3,
		Expr:    `dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,64}`,
		Matches: []string{"dckr_pat_{an:27}", "dckr_oat_{an:32}"},
		Misses:  []string{"dckr_pat_short"},
	},
	{
		ID: "docker-registry-auth", What: "a registry login of a Docker configuration", Grade: Certain, Verify: "basicauth",
		Expr:    `"auth"\s{0,8}:\s{0,8}"([A-Za-z0-9+/]{12,400}={0,2})"`,
		Matches: []string{`"auth": "Ym90OmRja3JzZWNyZXQ5OTk="`},
		Misses:  []string{`"auth": "somethingElseEntirely"`, `"auth": "{an:32}"`},
	},
	{
		ID: "openai-key", What: "an OpenAI key", Grade: Certain, Entropy: 3.5,
		Expr:    `sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{40,250}|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}`,
		Matches: []string{"sk-proj-{u:74}T3BlbkFJ{u:74}", "sk-{an:20}T3BlbkFJ{an:20}", "sk-svcacct-{u:58}", "sk-admin-{u:58}"},
		Misses:  []string{"sk-proj-short", "sk-{an:10}T3BlbkFJ{an:20}"},
	},
	{
		ID: "model-provider-key", What: "a model provider's key", Grade: Certain, Entropy: 3.5,
		// Several providers use sk- and 32 to 64 characters; gsk_ is Groq, xai- xAI,
		// r8_ Replicate, sk-or-v1- OpenRouter, pplx- Perplexity, tvly- Tavily.
		Expr: `(?:^|[^A-Za-z0-9_-])(sk-[A-Za-z0-9]{32,64}|gsk_[A-Za-z0-9]{48,64}|xai-[A-Za-z0-9]{70,90}|r8_[A-Za-z0-9]{37}|` +
			`sk-or-v1-[0-9a-f]{64}|pplx-[A-Za-z0-9]{48}|tvly-[A-Za-z0-9-]{32,64}|fw_[A-Za-z0-9]{24}|lsv2_[ps][kt]_[0-9a-f]{32}_[0-9a-f]{10})(?:[^A-Za-z0-9_-]|$)`,
		Matches: []string{"sk-{an:48}", "gsk_{an:52}", "xai-{an:80}", "r8_{an:37}", "sk-or-v1-{hex:64}", "pplx-{an:48}"},
		Misses:  []string{"task-{an:40}", "sk-{x:48}", "gsk_{an:10}", "disk-{an:32}"},
	},
	{
		ID: "anthropic-key", What: "an Anthropic key", Grade: Certain, Entropy: 3,
		Expr:       `sk-ant-[A-Za-z0-9_-]{32,250}`,
		Matches:    []string{"sk-ant-api03-{u:93}AA", "sk-ant-admin01-{u:93}AA", "sk-ant-oat01-{u:95}"},
		Misses:     []string{"sk-ant-api03-", "sk-ant-{x:90}"},
		Supersedes: []string{"anthropic-api-key", "anthropic-admin-api-key"},
	},
	{
		ID: "huggingface-token", What: "a Hugging Face token", Grade: Certain, Entropy: 3,
		Expr:       `(?:^|[^A-Za-z0-9])((?:hf|api_org)_[A-Za-z0-9]{34,40})(?:[^A-Za-z0-9]|$)`,
		Matches:    []string{"hf_{an:34}", "HF_TOKEN=hf_{an:37}", "api_org_{an:34}"},
		Misses:     []string{"hf_{an:20}", "shf_{an:34}"},
		Supersedes: []string{"huggingface-access-token", "huggingface-organization-api-token"},
	},
	{
		ID: "vault-token", What: "a HashiCorp Vault or Terraform token", Grade: Certain, Entropy: 3.3,
		Expr:       `hv[sbr]\.[A-Za-z0-9_-]{24,400}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,90}`,
		Matches:    []string{"hvs.{an:95}", "hvb.{an:150}", "{an:14}.atlasv1.{an:67}"},
		Misses:     []string{"hvs.short"},
		Supersedes: []string{"hashicorp-tf-api-token"},
	},
	{
		ID: "jwt-token", What: "a JSON web token", Grade: Certain, Entropy: 3, Verify: "jwt",
		Expr:    `eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}`,
		Matches: []string{"eyJ{an:33}.eyJ{an:80}.{u:43}", "xeyJ{an:33}.eyJ{an:80}.{u:43}"},
		Misses:  []string{"eyJ{an:33}.eyJ{an:80}", "a.b.c"},
	},
	{
		ID: "service-token", What: "a service's token", Grade: Certain, Entropy: 3,
		// Telegram bots, Tailscale, Supabase, Pinecone.
		Expr: `(?:^|[^A-Za-z0-9])([0-9]{8,10}:AA[A-Za-z0-9_-]{33}|tskey-[a-z]{3,12}-[A-Za-z0-9]{6,24}-[A-Za-z0-9]{16,64}|` +
			`sbp_[0-9a-f]{40}|sb_secret_[A-Za-z0-9_-]{24,48}|pcsk_[A-Za-z0-9_]{40,90})(?:[^A-Za-z0-9_-]|$)`,
		Matches: []string{"{d:10}:AA{an:33}", "tskey-auth-{an:12}-{an:32}", "sbp_{hex:40}"},
		Misses:  []string{"12:AA{an:33}", "tskey-auth-x"},
	},
	{
		ID: "netrc-password", What: "a netrc login", Grade: Certain, Verify: "password",
		Expr:    `machine\s{1,4}[^\s]{1,200}\s{1,8}login\s{1,4}[^\s]{1,200}\s{1,8}password\s{1,4}([^\s"'<>\x60]{6,300})`,
		Matches: []string{"machine git.acme.io login bot password {an:20}"},
		Misses:  []string{"machine host login user password secret", "machine host login user password $PASSWORD"},
	},
	{
		ID: "authorization-header", What: "an authorization header", Grade: Possible, Entropy: 3.5, Verify: "authorization",
		Expr:    `(?i)authorization["'\]]{0,2}\s{0,2}[:=,]\s{0,2}["'\x60]{0,1}(?:basic|bearer|token)\s{1,3}([a-z0-9._~+/=-]{20,900})`,
		Matches: []string{"Authorization: Bearer {an:40}", `req.Header["Authorization"] = "token {an:40}"`},
		Misses:  []string{"Authorization: Bearer $TOKEN", "Authorization: Bearer <token>"},
	},
}
