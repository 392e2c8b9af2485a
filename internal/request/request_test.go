package request

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

func options(t *testing.T) Options {
	t.Helper()
	bare := filepath.Join(t.TempDir(), "r.git")
	if out, err := exec.Command("git", "init", "-q", "--bare", bare).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return Options{Repo: bare, Command: []string{"true"}, Timeout: time.Minute, Set: func(string) bool { return false }}
}

func TestBuildRefuses(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // no checkout and no kick.yaml here
	for name, c := range map[string]struct {
		change func(*Options)
		want   string // in the error
	}{
		"no command":           {func(o *Options) { o.Command = nil }, "kick run -- "},
		"agent name":           {func(o *Options) { o.Agent = "Bad Name" }, "branch name"},
		"agent name that dots": {func(o *Options) { o.Agent = "a..b" }, "branch name"},
		"runtime":              {func(o *Options) { o.Runtime = "docker" }, "embedded"},
		"OCI runtime of no Podman": {func(o *Options) {
			o.OCIRuntime, o.Set = "crun", func(f string) bool { return f == "oci-runtime" }
		}, "--runtime podman"},
		"OCI runtime": {func(o *Options) { o.Runtime, o.Image, o.OCIRuntime = "podman", "x", "lxc" }, "crun, runc, runsc, krun, kata"},
		"a network in mode none": {func(o *Options) {
			o.ConfigPath, o.Agent = filepath.Join(dir, "n.yaml"), "scanner"
			if err := os.WriteFile(o.ConfigPath, []byte("agent_sandbox: {enabled: true, network_mode: none, podman_network: kick-db}\nagents:\n  scanner: {sandbox: {enabled: true}}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "podman_network gives the agent the network kick-db"},
		"network":                     {func(o *Options) { o.Network = "host" }, "restricted or none"},
		"timeout":                     {func(o *Options) { o.Timeout = -time.Second }, "45m"},
		"memory":                      {func(o *Options) { o.Memory = "4" }, "--memory"},
		"disk":                        {func(o *Options) { o.Disk = "lots" }, "--disk"},
		"processes":                   {func(o *Options) { o.Processes = -1 }, "from 8 to 4194304"},
		"few processes":               {func(o *Options) { o.Processes = 3 }, "from 8 to 4194304"},
		"many processes":              {func(o *Options) { o.Processes = 99999999 }, "from 8 to 4194304"},
		"cores":                       {func(o *Options) { o.CPUs = -1 }, "number of cores"},
		"little memory":               {func(o *Options) { o.Memory = "1B" }, "--memory 1B: want a size from 16MiB to 64TiB"},
		"little disk":                 {func(o *Options) { o.Disk = "1kB" }, "--disk 1000B: want a size from 1MiB"},
		"env form":                    {func(o *Options) { o.Env = []string{"X"} }, "NAME=VALUE"},
		"env name":                    {func(o *Options) { o.Env = []string{"MY_API_KEY=x"} }, "MY_API_KEY"},
		"env value":                   {func(o *Options) { o.Env = []string{"X=ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2"} }, "GitHub token"},
		"program directory":           {func(o *Options) { o.ProgramDirs = []string{"/nope"} }, "/nope"},
		"publish":                     {func(o *Options) { o.Publish = "mail" }, "pr, branch or none"},
		"pull request to a path":      {func(o *Options) { o.Publish = "pr" }, "--publish branch"},
		"GitHub without a credential": {func(o *Options) { o.Repo = "https://github.com/acme/api" }, "KICK_GITHUB_APP_ID"},
		"half an App":                 {func(o *Options) { o.Repo, o.GitHubAppID = "https://github.com/acme/api", "1" }, "--github-app-key"},
		"App id":                      {func(o *Options) { o.Repo, o.GitHubAppID, o.GitHubAppKey = "https://github.com/acme/api", "x", "k" }, "number"},
		"App key that is none": {func(o *Options) {
			o.Repo, o.GitHubAppID, o.GitHubAppKey = "https://github.com/acme/api", "1", "/etc/passwd"
		}, "PEM"},
		"password in the URL": {func(o *Options) { o.Repo = "https://u:hunter2@example.com/a/b" }, "password"},
		"policy file":         {func(o *Options) { o.PolicyPath = "/nope.yaml" }, "/nope.yaml"},
		"config without agent": {func(o *Options) {
			o.ConfigPath = filepath.Join(dir, "c.yaml")
			if err := os.WriteFile(o.ConfigPath, []byte("agent_sandbox: {enabled: true}\nagents:\n  scanner: {sandbox: {enabled: true}}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "scanner"},
		"no repository": {func(o *Options) { o.Repo = "" }, "--repo"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			c.change(&o)
			_, err := Build(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the error repeats a password")
			}
		})
	}
}

func TestBuildByConfig(t *testing.T) {
	o := options(t)
	dir := t.TempDir()
	t.Chdir(dir)
	yaml := `agent_sandbox:
  enabled: true
  timeout_s: 60
  network_mode: none
agents:
  scanner:
    command: [./scan, --all]
    repo: ` + o.Repo + `
    publish: branch
    sandbox: {enabled: true, timeout_s: 90, limits: {memory: 2GiB}}
  off:
    command: [x]
    sandbox: {enabled: false}
`
	if err := os.WriteFile("kick.yaml", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Repo, o.Command, o.Agent = "", nil, "scanner"
	req, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(req.Command, " ") != "./scan --all" || req.Limits.Wall != 90*time.Second || req.Limits.Memory != 2<<30 ||
		req.Network != sandbox.NetworkNone || req.Publish != manager.PublishBranch {
		t.Errorf("%+v", req)
	}
	o.Timeout, o.Set, o.Network = 5*time.Second, func(f string) bool { return f == "timeout" }, "restricted"
	if req, err = Build(t.Context(), o); err != nil || req.Limits.Wall != 5*time.Second || req.Network != sandbox.NetworkRestricted {
		t.Errorf("the command line does not win: %+v, %v", req, err)
	}
	o.Agent = "off"
	if _, err := Build(t.Context(), o); err == nil {
		t.Error("an agent that is not opted in runs")
	}
	o.Agent = "unknown"
	if _, err := Build(t.Context(), o); err == nil {
		t.Error("an agent that the file lacks runs")
	}
}

func TestLocalPath(t *testing.T) {
	t.Parallel()
	for repo, want := range map[string]bool{
		"r.git": true, "../r.git": true, "/srv/r.git": true, "./it:is": true, "/srv/it:is": true, "it is": true,
		"https://example.com/r": false, "git@example.com:r": false, "host:r": false, "file:///srv/r": false,
	} {
		if got := localPath(repo); got != want {
			t.Errorf("%s: %v", repo, got)
		}
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	got := Held([]string{"HOME=/root", "GITHUB_TOKEN=abcdefghij", "SHORT_TOKEN=x", "PLAIN=ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2", "KUBECONFIG=/etc/kube", "OPENAI_API_KEY=kick-dummy-key",
		"MY_ASKPASS=/nope/askpass", "NPM_TOKEN=" + os.TempDir(), "AWS_SECRET_ACCESS_KEY=/bPxRfiCYzzMPLEKwJalrXUtnFEMIK7MD"})
	if len(got) != 3 || got["AWS_SECRET_ACCESS_KEY"] == "" || got["GITHUB_TOKEN"] == "" || got["PLAIN"] == "" {
		t.Errorf("held %q", got)
	}
}
