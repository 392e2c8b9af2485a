package config

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/internal/credential"
)

var update = flag.Bool("update", false, "rewrite golden files")

// token is put together at run time so that no scanner takes this file for a leak.
var token = "ghp_" + strings.Repeat("aB3dE5gH", 5)

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, yaml string
		want       []string // "line:column: path: what; remedy", each a prefix of one problem after the file's name
	}{
		{"unknown key", "agent_sandbox:\n  enabled: true\n  timout_s: 5\n", []string{`3:3: agent_sandbox.timout_s: unknown key; did you mean timeout_s?`}},
		{"unknown key in camel case", "agents: {a: {sandbox: {networkMode: none}}}", []string{`1:24: agents.a.sandbox.networkMode: unknown key; did you mean network_mode?`}},
		{"unknown key like none", "project: x", []string{`1:1: project: unknown key; use one of agent_sandbox, agents`}},
		{"duplicate key", "agents:\n  a: {}\n  b: {}\n  a: {}\n", []string{`4:3: agents.a: is there twice, first in line 2; remove one`}},
		{"duplicate key under an alias", "agents:\n  a: &x {kind: claude, kind: codex}\n  b: *x\n", []string{
			`2:24: agents.a.kind: is there twice, first in line 2`, `2:24: agents.b.kind: is there twice, first in line 2`}},
		{"merge key", "agents:\n  a: &x {kind: claude}\n  b: {<<: *x}\n", []string{`3:7: agents.b."<<": merge keys are not supported; put what all agents share into agent_sandbox`}},
		{"boolean as text", `agent_sandbox: {enabled: "true"}`, []string{`1:26: agent_sandbox.enabled: is text, but true or false belongs here; write true or false, without quotes`}},
		{"boolean of YAML 1.1", `agent_sandbox: {enabled: yes}`, []string{`1:26: agent_sandbox.enabled: is text`}},
		{"boolean as list", `agent_sandbox: {enabled: [true]}`, []string{`1:26: agent_sandbox.enabled: is a list, but true or false belongs here`}},
		{"no value", "agent_sandbox:\n  enabled:\n", []string{`2:11: agent_sandbox.enabled: has no value; write true or false, or remove the key`}},
		{"mapping as text", `agents: {a: {sandbox: on}}`, []string{`1:23: agents.a.sandbox: is text, but a mapping belongs here`}},
		{"agents as list", "agents: [a]", []string{`1:9: agents: is a list, but a mapping belongs here`}},
		{"root as list", "- a", []string{`1:1: is a list, but a mapping belongs here`}},
		{"key as list", "agents: {? [a] : {}}", []string{`1:12: agents."": a key is a list; write a plain name`}},
		{"image as number", "agent_sandbox: {image: 7}", []string{`1:24: agent_sandbox.image: is a number, but text belongs here; put it in quotes`}},
		{"image with a space", "agent_sandbox: {image: 'a b'}", []string{`1:24: agent_sandbox.image: holds a space`}},
		{"unknown runtime", "agent_sandbox: {runtime: docker}", []string{`1:26: agent_sandbox.runtime: is "docker"; use one of embedded, podman`}},
		{"misspelt runtime", "agent_sandbox: {runtime: Embeded}", []string{`1:26: agent_sandbox.runtime: is "Embeded"; did you mean embedded?`}},
		{"bridge", "agent_sandbox: {network_mode: bridge}", []string{`1:31: agent_sandbox.network_mode: is "bridge"; a sandbox never has a network of its own: use restricted`}},
		{"host", "agents: {a: {sandbox: {network_mode: host}}}", []string{`1:38: agents.a.sandbox.network_mode: is "host"; a sandbox never has`}},
		{"other network", "agent_sandbox: {network_mode: slirp4netns}", []string{`1:31: agent_sandbox.network_mode: is "slirp4netns"; use one of restricted, none`}},
		{"host as Podman's network", "agent_sandbox: {podman_network: host}", []string{`1:33: agent_sandbox.podman_network: "host" is the host's own network; name a network that was made for agents`}},
		{"another container's network", "agent_sandbox: {podman_network: 'container:db'}", []string{`1:33: agent_sandbox.podman_network: "container:db" is another container's network`}},
		{"other OCI runtime", "agent_sandbox: {podman_oci_runtime: lxc}", []string{`1:37: agent_sandbox.podman_oci_runtime: is "lxc"; use one of crun, runc, runsc, krun, kata`}},
		{"a program's digest that is none", "agent_sandbox: {openshell: {binaries: ['/usr/bin/git@sha256:12']}}", []string{`1:40: agent_sandbox.openshell.binaries[0]: "/usr/bin/git@sha256:12" has no SHA-256 after its @; write PATH@sha256:`}},
		{"a gateway that is not encrypted", "agent_sandbox: {openshell: {endpoint: 'http://gateway.test:8080'}}", []string{`1:39: agent_sandbox.openshell.endpoint: http://gateway.test:8080 is not encrypted and not on this host; use https`}},
		{"an address of no gateway", "agent_sandbox: {openshell: {endpoint: gateway.test}}", []string{`1:39: agent_sandbox.openshell.endpoint: "gateway.test" is no address of a gateway; write https://HOST:PORT`}},
		{"a workspace of two words", "agent_sandbox: {openshell: {workspace: Team_A}}", []string{`1:40: agent_sandbox.openshell.workspace: "Team_A" is no name of a workspace; write a DNS label of at most 19 characters`}},
		{"a canary of loopback", "agent_sandbox: {kubevirt: {canaries: ['127.0.0.1:443']}}", []string{`1:39: agent_sandbox.kubevirt.canaries[0]: "127.0.0.1:443" is no numeric ADDRESS:PORT beyond the sandbox itself; write it like 192.0.2.1:443`}},
		{"a canary with a name", "agent_sandbox: {kubernetes: {canaries: ['kubernetes.default:443']}}", []string{`1:41: agent_sandbox.kubernetes.canaries[0]: "kubernetes.default:443" is no numeric ADDRESS:PORT`}},
		{"a gateway without a port", "agent_sandbox: {openshell: {egress_gateway: host.openshell.internal}}", []string{`1:45: agent_sandbox.openshell.egress_gateway: "host.openshell.internal" is no host with a port or a range of ports; write it as in host.openshell.internal:8377-8392`}},
		{"a network that is everywhere", "agent_sandbox: {openshell: {egress_from: 0.0.0.0/0}}", []string{`1:42: agent_sandbox.openshell.egress_from: "0.0.0.0/0" is no network of sandboxes; write it as in 10.244.0.0/16`}},
		{"an address for a network", "agent_sandbox: {openshell: {egress_from: 10.1.2.3/8}}", []string{`1:42: agent_sandbox.openshell.egress_from: "10.1.2.3/8" is no network`}},
		{"a claim and a pool", "agent_sandbox: {kubernetes: {claim: work, pool: agents}}", []string{`1:29: agent_sandbox.kubernetes: has both claim and pool; remove one of the two`}},
		{"a path and no claim", "agent_sandbox: {kubernetes: {claim_path: x}}", []string{`1:29: agent_sandbox.kubernetes: has a claim_path and no claim; add claim`}},
		{"a way out of a claim", "agent_sandbox: {kubernetes: {claim: work, claim_path: a/../..}}", []string{`1:55: agent_sandbox.kubernetes.claim_path: "a/../.." is no path in a claim; write one relative to its root`}},
		{"an absolute path in a claim", "agent_sandbox: {kubernetes: {claim: work, claim_path: /a}}", []string{`1:55: agent_sandbox.kubernetes.claim_path: "/a" is no path in a claim`}},
		{"a claim with a slash", "agent_sandbox: {kubernetes: {claim: a/b}}", []string{`1:37: agent_sandbox.kubernetes.claim: "a/b" cannot be the name of an object`}},
		{"root in a machine", "agent_sandbox: {kubevirt: {user: root}}", []string{`1:34: agent_sandbox.kubevirt.user: "root" cannot be whom kick comes as into a machine; name an ordinary user`}},
		{"a user with a space", "agent_sandbox: {kubevirt: {user: 'a;b'}}", []string{`1:34: agent_sandbox.kubevirt.user: "a;b" cannot be whom kick comes as`}},
		{"another way of keys", "agent_sandbox: {kubevirt: {keys: ignition}}", []string{`1:34: agent_sandbox.kubevirt.keys: is "ignition"; use one of secret, cloud-init`}},
		{"machines that linger forever", "agent_sandbox: {kubevirt: {linger: {machines: 2}}}", []string{`1:36: agent_sandbox.kubevirt.linger: has one of machines and seconds; write both, or neither`}},
		{"too long", "agent_sandbox: {kubevirt: {linger: {machines: 0, seconds: 90000}}}", []string{
			`1:47: agent_sandbox.kubevirt.linger.machines: is "0"; write a whole number of machines from 1 to 100`,
			`1:59: agent_sandbox.kubevirt.linger.seconds: is "90000"; write a whole number of seconds from 1 to 86400`}},
		{"no cores", "agent_sandbox: {kubevirt: {cores: 0}}", []string{`1:35: agent_sandbox.kubevirt.cores: is "0"; write a whole number of processors from 1 to`}},
		{"no affinity", "agent_sandbox: {kubernetes: {affinity: {nodeAfinity: {}}}}", []string{`1:40: agent_sandbox.kubernetes.affinity: is no affinity of a pod: unknown field "nodeAfinity"; write it as in a pod`}},
		{"an affinity's weight as text", "agent_sandbox: {kubernetes: {affinity: {podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: many}]}}}}", []string{`1:40: agent_sandbox.kubernetes.affinity: is no affinity of a pod: cannot unmarshal string`}},
		{"a credential in an affinity", "agent_sandbox: {kubernetes: {affinity: {nodeAffinity: {x: ghp_" + strings.Repeat("a1B2", 9) + "}}}}", []string{`1:40: agent_sandbox.kubernetes.affinity: is no affinity of a pod: unknown field "x"`, `1:59: agent_sandbox.kubernetes.affinity.nodeAffinity.x: looks like a GitHub token`}},
		{"negative timeout", "agent_sandbox: {timeout_s: -1}", []string{`1:28: agent_sandbox.timeout_s: is "-1"; write a whole number of seconds from 0 to 604800`}},
		{"absurd timeout", "agent_sandbox: {timeout_s: 604801}", []string{`1:28: agent_sandbox.timeout_s: is "604801"`}},
		{"timeout beyond 64 bits", "agent_sandbox: {timeout_s: 99999999999999999999}", []string{`1:28: agent_sandbox.timeout_s: is "999`}},
		{"timeout in octal", "agent_sandbox: {timeout_s: 0777}", []string{`1:28: agent_sandbox.timeout_s: is "0777"`}},
		{"timeout with unit", "agent_sandbox: {timeout_s: 45m}", []string{`1:28: agent_sandbox.timeout_s: is "45m"`}},
		{"fractional timeout", "agent_sandbox: {timeout_s: 1.5}", []string{`1:28: agent_sandbox.timeout_s: is "1.5"`}},
		{"relative workspace_dir", "agent_sandbox: {workspace_dir: work}", []string{`1:32: agent_sandbox.workspace_dir: is a relative path; write an absolute one`}},
		{"memory without unit", "agent_sandbox: {limits: {memory: 512}}", []string{`1:34: agent_sandbox.limits.memory: "512" is not a size; write a number and a unit`}},
		{"memory with Docker's unit", "agent_sandbox: {limits: {memory: 512m}}", []string{`1:34: agent_sandbox.limits.memory: "512m" has an ambiguous unit; write 512MiB if that is meant`}},
		{"memory with Kubernetes' unit", "agent_sandbox: {limits: {memory: 2Gi}}", []string{`1:34: agent_sandbox.limits.memory: "2Gi" has an ambiguous unit; write 2GiB if that is meant`}},
		{"negative memory", "agent_sandbox: {limits: {memory: -2GiB}}", []string{`1:34: agent_sandbox.limits.memory: "-2GiB" is not a size`}},
		{"little memory", "agent_sandbox: {limits: {memory: 1KiB}}", []string{`1:34: agent_sandbox.limits.memory: is "1KiB"; write a size from 16MiB to 64TiB`}},
		{"absurd disk", "agent_sandbox: {limits: {disk: 999999TiB}}", []string{`1:32: agent_sandbox.limits.disk: "999999TiB" is too much; the most is 1024TiB`}},
		{"no cpu", "agent_sandbox: {limits: {cpus: 0}}", []string{`1:32: agent_sandbox.limits.cpus: is "0"; write a number of cores`}},
		{"cpus not a number", "agent_sandbox: {limits: {cpus: .nan}}", []string{`1:32: agent_sandbox.limits.cpus: is ".nan"`}},
		{"infinite cpus", "agent_sandbox: {limits: {cpus: .inf}}", []string{`1:32: agent_sandbox.limits.cpus: is ".inf"`}},
		{"cpus as text", "agent_sandbox: {limits: {cpus: '2'}}", []string{`1:32: agent_sandbox.limits.cpus: is "2"`}},
		{"few processes", "agent_sandbox: {limits: {processes: 1}}", []string{`1:37: agent_sandbox.limits.processes: is "1"; write a whole number of processes from 8`}},
		{"allowlist as text", "agent_sandbox: {env_allowlist: LANG}", []string{`1:32: agent_sandbox.env_allowlist: is text, but a list belongs here`}},
		{"allowlisted credential", "agent_sandbox:\n  env_allowlist:\n    - LANG\n    - GITHUB_TOKEN\n", []string{`4:7: agent_sandbox.env_allowlist[1]: GITHUB_TOKEN names a credential; remove it`}},
		{"allowlisted credential in lower case", "agents: {a: {sandbox: {env_allowlist: [ssh_auth_sock]}}}", []string{`1:40: agents.a.sandbox.env_allowlist[0]: ssh_auth_sock names a credential`}},
		{"allowlisted pattern", "agent_sandbox: {env_allowlist: ['GO*']}", []string{`1:33: agent_sandbox.env_allowlist[0]: "GO*" is not the name of an environment variable`}},
		{"allowlisted twice", "agent_sandbox: {env_allowlist: [A, A]}", []string{`1:36: agent_sandbox.env_allowlist[1]: A is listed twice`}},
		{"credential in env by name", "agents: {a: {env: {AWS_REGION: eu}}}", []string{`1:20: agents.a.env.AWS_REGION: names a credential; remove it`}},
		{"credential in env by value", "agents: {a: {env: {FOO: " + token + "}}}", []string{`1:25: agents.a.env.FOO: looks like a GitHub token; revoke it`}},
		{"credential in a command", "agents: {a: {command: [curl, 'http://u:p@h']}}", []string{`1:30: agents.a.command[1]: looks like a URL with a user name or password`}},
		{"credential in repo", "agents: {a: {repo: 'https://x:y@github.com/acme/api'}}", []string{`1:20: agents.a.repo: looks like a URL with a user name or password`}},
		{"bad name in env", "agents: {a: {env: {A-B: c}}}", []string{`1:20: agents.a.env.A-B: "A-B" is not the name of an environment variable`}},
		{"list in env", "agents: {a: {env: {A: [b]}}}", []string{`1:23: agents.a.env.A: is a list, but text belongs here`}},
		{"NUL in env", `agents: {a: {env: {A: "\0"}}}`, []string{`1:23: agents.a.env.A: holds a NUL`}},
		{"unknown kind", "agents: {a: {kind: cursor, sandbox: {enabled: true}}}", []string{`1:20: agents.a.kind: is "cursor"; use one of aider, claude, codex, copilot, gemini, goose, opencode`}},
		{"kind and command", "agents: {a: {kind: claude, command: x}}", []string{`1:10: agents.a: has a command and a kind`}},
		{"model and command", "agents: {a: {model: m, command: x}}", []string{`1:10: agents.a: has a command and a model`}},
		{"model", "agents: {a: {model: 'a b'}}", []string{`1:21: agents.a.model: "a b" is no name of a model`}},
		{"empty command", "agents: {a: {command: ' '}}", []string{`1:23: agents.a.command: is empty`}},
		{"empty command list", "agents: {a: {command: []}}", []string{`1:23: agents.a.command: is a list`}},
		{"command without program", "agents: {a: {command: ['', x]}}", []string{`1:24: agents.a.command[0]: is empty`}},
		{"command as mapping", "agents: {a: {command: {x: y}}}", []string{`1:23: agents.a.command: is a mapping`}},
		{"agent's name", "agents: {../x: {}, Upper: {}, end-: {}}", []string{`1:10: agents."../x": is not a name for an agent`, `1:20: agents.Upper: is not a name`, `1:31: agents.end-: is not a name`}},
		{"publish", "agents: {a: {publish: merge}}", []string{`1:23: agents.a.publish: is "merge"; use one of pr, branch, none`}},
		{"relative repo", "agents: {a: {repo: ../api}}", []string{`1:20: agents.a.repo: "../api" is neither a git URL nor an absolute path`}},
		{"option as repo", "agents: {a: {repo: '--upload-pack=x://y'}}", []string{`1:20: agents.a.repo:`}},
		{"full ref as base", "agents: {a: {base: refs/heads/main}}", []string{`1:20: agents.a.base: "refs/heads/main" is a full ref`}},
		{"bad base", "agents: {a: {base: 'a..b'}}", []string{`1:20: agents.a.base: "a..b" cannot be the name of a branch`}},
		{"not YAML", "agents:\n  a: [\n", []string{`2: not valid YAML`}},
		{"tab", "agents:\n\ta: {}\n", []string{`2: not valid YAML`}},
		{"unknown anchor", "agents: *x", []string{`not valid YAML: "unknown anchor`}},
		{"second document", "agents: {}\n---\nagents: {}\n", []string{`2:1: a second document begins`}},
		{"binary", "\x00\x01\x02", []string{`not valid YAML`}},
		{"all together, in the order of lines", "agents:\n  a: {kind: nope}\nagent_sandbox:\n  enabled: 1\n  runtime: x\n", []string{
			`2:13: agents.a.kind`, `4:12: agent_sandbox.enabled`, `5:12: agent_sandbox.runtime`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("dir/kick.yaml", []byte(tt.yaml))
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("error is %v, want Problems", err)
			}
			var got []string
			for _, p := range ps {
				got = append(got, strings.TrimPrefix(strings.TrimPrefix(p.Error(), "dir/kick.yaml:"), " "))
				if p.What == "" || p.Remedy == "" {
					t.Errorf("problem %+v lacks what or remedy", p)
				}
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("problems are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
			if strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "u:p@") {
				t.Error("the error repeats a credential")
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for name, yaml := range accepted {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse("kick.yaml", []byte(yaml)); err != nil {
				t.Error(err)
			}
		})
	}
}

// accepted are valid for the reader and for the schema.
var accepted = map[string]string{
	"empty":                  "",
	"comments":               "# nothing yet\n",
	"empty document":         "---\n",
	"empty mappings":         "agent_sandbox:\nagents:\n",
	"agent without settings": "agents:\n  scanner:\n",
	"Hive's empty values":    "agent_sandbox: {enabled: false, image: '', network_mode: '', runtime: '', workspace_dir: '', timeout_s: 0, env_allowlist: []}",
	"every key": `
agent_sandbox:
  enabled: true
  runtime: embedded
  image: example.org/agent@sha256:abc
  env_allowlist: [LANG, GOFLAGS, MAX_OUTPUT_TOKENS]
  network_mode: none
  timeout_s: 60
  workspace_dir: /var/lib/kick
  limits: {cpus: 0.5, memory: 512MiB, processes: 64, disk: 1.5 GiB, output: 1MB}
agents:
  a: {command: make fix, repo: "git@github.com:acme/api.git", base: release/1.x, publish: none, env: {A: b, N: 1.10, Y: yes, T: true}, sandbox: {enabled: true}}
  b: {command: [sleep, 100, "-x"], repo: /srv/git/api.git}
  c: {kind: opencode, repo: "ssh://git@example.org/r", env: {ANTHROPIC_API_KEY: kick-dummy-key}}
`,
	"kubernetes": `
agent_sandbox:
  kubernetes:
    kubeconfig: /etc/kick/kubeconfig
    context: production
    namespace: kick-sandboxes
    gateway: 10.1.2.3:8377
    shim_image: registry.example/kick-shim@sha256:abc
    service_account: sandbox
    node_selector: {pool: agents}
    tolerations: [{key: agents, value: only, effect: NoSchedule}, {key: spot}]
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a, b]}]}]
      podAntiAffinity:
        preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, podAffinityTerm: {topologyKey: zone}}]
    runtime_class: gvisor
    priority_class: kick-low
    pull_secrets: [registry]
    queue: agents
    pool: agents
    pool_wait_s: 30
    host_users: true
    canaries: ["192.0.2.1:443"]
`,
	"kubevirt": `
agent_sandbox:
  runtime: kubevirt
  kubevirt:
    kubeconfig: /etc/kick/kubeconfig
    context: production
    namespace: kick-machines
    user: worker
    cores: 4
    node_selector: {pool: agents}
    tolerations: [{key: agents, value: only, effect: NoSchedule}]
    priority_class: kick-low
    pull_secret: registry
    keys: cloud-init
    pool: agents
    pool_wait_s: 30
    linger: {machines: 2, seconds: 600}
    canaries: ["192.0.2.1:443"]
`,
	"a claim":  "agent_sandbox: {kubernetes: {claim: kick-work, claim_path: team_1/kick, shim_image: x}}",
	"alias":    "agents:\n  a: {sandbox: &s {enabled: true}}\n  b: {sandbox: *s}\n",
	"no image": "agents: {a: {sandbox: {enabled: true, limits: {memory: 16MiB}}}}",
}

func TestAliasBombsAreCut(t *testing.T) {
	t.Parallel()
	var blocks, texts strings.Builder
	blocks.WriteString("agents:\n  a: &x\n    env:\n")
	for i := range 5000 {
		fmt.Fprintf(&blocks, "      V%d: v\n", i)
	}
	for i := range 50_000 {
		fmt.Fprintf(&blocks, "  b%d: *x\n", i)
	}
	texts.WriteString("agents:\n  a:\n    env:\n      A: &x " + strings.Repeat("word ", 20_000) + "\n")
	for i := range 50_000 {
		fmt.Fprintf(&texts, "      A%d: *x\n", i)
	}
	for name, bomb := range map[string]string{"blocks": blocks.String(), "texts": texts.String()} {
		if len(bomb) > MaxFileSize {
			t.Fatalf("%s: the bomb has %d bytes and is refused for its size", name, len(bomb))
		}
		_, err := Parse("kick.yaml", []byte(bomb))
		if err == nil || !strings.Contains(err.Error(), "the aliases of this file expand to too much") {
			t.Errorf("%s: error is %.300v", name, err)
		}
	}
}

func TestProblemsAreCapped(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 3 * maxProblems {
		fmt.Fprintf(&b, "key%d: x\n", i)
	}
	_, err := Parse("kick.yaml", []byte(b.String()))
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != maxProblems {
		t.Errorf("%d problems are reported, want %d", len(ps), maxProblems)
	}
}

func TestDeepAndLargeFilesAreRefused(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{
		"deep lists":     strings.Repeat("[", 400_000),
		"deep mappings":  strings.Repeat("{a: ", 200_000),
		"deep in agents": "agents: {a: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}",
		"self alias":     "agents: &a {a: *a}",
		"too large":      "# " + strings.Repeat("x", MaxFileSize),
	} {
		if _, err := Parse("kick.yaml", []byte(yaml)); err == nil {
			t.Errorf("%s: no error", name)
		} else if len(err.Error()) > 2000 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "kick.yaml")
	write(t, file, "agents: {scanner: {}}\n")
	c, err := Load(file)
	if err != nil || !slices.Equal(c.Names(), []string{"scanner"}) || c.Path() != file {
		t.Errorf("Load = %+v, %v", c, err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gives %v", err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "name a regular file") {
		t.Errorf("a directory gives %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "name a regular file") {
		t.Errorf("a pipe gives %v", err)
	}
	if _, err := Load("/dev/zero"); err == nil {
		t.Error("/dev/zero gives no error")
	}
}

func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	for _, f := range files {
		if _, err := Load(f); err != nil {
			t.Error(err)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sub := filepath.Join(root, "repo", "a", "b")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(root, "kick.yaml")
	write(t, outside, "")
	if got, err := Find(sub); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("outside a repository Find looks upward: %q, %v", got, err)
	}
	if got, err := Find(root); err != nil || got != outside {
		t.Errorf("outside a repository Find(dir) = %q, %v; want %q", got, err, outside)
	}
	write(t, filepath.Join(root, "repo", ".git"), "gitdir: elsewhere\n")
	if got, err := Find(sub); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Find goes beyond the repository's top: %q, %v", got, err)
	}
	top := filepath.Join(root, "repo", "kick.yaml")
	write(t, top, "")
	if got, err := Find(sub); err != nil || got != top {
		t.Errorf("Find = %q, %v; want %q", got, err, top)
	}
	near := filepath.Join(root, "repo", "a", "kick.yaml")
	write(t, near, "")
	if got, err := Find(sub); err != nil || got != near {
		t.Errorf("Find = %q, %v; want the nearest, %q", got, err, near)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, yaml := range accepted {
		f.Add([]byte(yaml))
	}
	f.Add([]byte("agents: &a {a: *a, b: {<<: *a}, ? [x] : y, 1: {env: {A: !!binary aGk=, B: ~}}}"))
	f.Add([]byte("agent_sandbox: {timeout_s: 0x10, limits: {cpus: 1e3, memory: 9E9GiB}, enabled: !!bool x}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("kick.yaml", data)
		if (c == nil) != (err != nil) {
			t.Fatalf("Parse = %v, %v", c, err)
		}
		if err != nil {
			return
		}
		_ = c.Warnings()
		for _, name := range c.Names() {
			r, err := c.Agent(name)
			if err != nil {
				t.Fatalf("agent %q: %v", name, err)
			}
			if len(r.Command.Value) == 0 || r.Timeout.Value <= 0 || r.Memory.Value <= 0 {
				t.Errorf("agent %q resolves to %+v", name, r)
			}
			for k, v := range r.Variables {
				if credential.LooksLike(v.Value) || credential.IsName(k) && v.Value != credential.DummyKey {
					t.Errorf("variable %q=%q is a credential", k, v.Value)
				}
			}
			if _, err := r.MarshalJSON(); err != nil {
				t.Errorf("agent %q: %v", name, err)
			}
		}
	})
}
