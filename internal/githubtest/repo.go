package githubtest

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

//go:embed pre-receive.sh
var preReceive []byte

// Repo is a repository on the server.
type Repo struct {
	Owner, Name string
	// Dir is the bare repository.
	Dir string

	id      int64
	opts    RepoOptions
	created time.Time

	mu     sync.Mutex
	last   int // number of the newest issue or pull request
	pulls  []*Pull
	issues []*Issue
}

// RepoOptions configure a Repo. The zero value is a private, empty repository
// whose default branch is main and where the App is installed with what a pull
// request needs.
type RepoOptions struct {
	DefaultBranch string
	Public        bool
	Archived      bool
	// NotInstalled: the App is not installed here.
	NotInstalled bool
	// Granted is what the App's installation was granted. Default: metadata
	// read, contents, pull_requests and issues write; workflows is absent, as
	// in most installations.
	Granted Permissions
	// People and Teams can be asked for a review; People can be assigned. Without
	// People, everybody can be asked and assigned; teams must be named by their
	// slugs.
	People, Teams []string
	// NoPulls: the repository has no pull requests.
	NoPulls bool
	// DropModes: a commit that is made by the API forgets that a file was
	// executable.
	DropModes bool
	// Unsigned: a commit that is made by the API is not signed, as on an
	// Enterprise host without a key for that.
	Unsigned bool
	// From, if set, is a local repository whose branch DefaultBranch is the
	// first content.
	From string
}

// Pull is a pull request.
type Pull struct {
	Number           int
	Title, Body      string
	Head, Base       string // branch names
	HeadOID, BaseOID string // when it was made
	Draft            bool
	State            string // "open" or "closed"
	User             string
	Labels           []string
	Reviewers        []string
	Teams            []string // that are asked for a review
	Assignees        []string
	Comments         []string
	Created          time.Time
}

// Issue is an issue.
type Issue struct {
	Number      int
	Title, Body string
	User        string
	Labels      []string
	Assignees   []string
	Created     time.Time
}

// AddRepo makes a repository.
func (s *Server) AddRepo(owner, name string, opts RepoOptions) (*Repo, error) {
	if opts.DefaultBranch == "" {
		opts.DefaultBranch = "main"
	}
	if opts.Granted == nil {
		opts.Granted = Permissions{"metadata": "read", "contents": "write", "pull_requests": "write", "issues": "write"}
	}
	r := &Repo{
		Owner: owner, Name: name, Dir: filepath.Join(s.opts.Dir, owner, name+".git"),
		opts: opts, created: time.Now().UTC().Truncate(time.Second),
	}
	if err := os.MkdirAll(filepath.Dir(r.Dir), 0o755); err != nil {
		return nil, err
	}
	if _, err := git("", "init", "-q", "--bare", "--template=", "-b", opts.DefaultBranch, r.Dir); err != nil {
		return nil, err
	}
	if opts.From != "" {
		ref := "refs/heads/" + opts.DefaultBranch
		if _, err := git(r.Dir, "fetch", "-q", "--no-tags", opts.From, ref+":"+ref); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(filepath.Join(r.Dir, "hooks"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "hooks", "pre-receive"), preReceive, 0o755); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	r.id = s.nextID
	s.repos[strings.ToLower(r.FullName())] = r
	return r, nil
}

// MustAddRepo is AddRepo for tests.
func (s *Server) MustAddRepo(t TB, owner, name string, opts RepoOptions) *Repo {
	t.Helper()
	r, err := s.AddRepo(owner, name, opts)
	if err != nil {
		t.Fatalf("githubtest: add %s/%s: %v", owner, name, err)
	}
	return r
}

func (s *Server) repo(owner, name string) *Repo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repos[strings.ToLower(owner+"/"+strings.TrimSuffix(name, ".git"))]
}

// FullName is OWNER/NAME.
func (r *Repo) FullName() string { return r.Owner + "/" + r.Name }

// Protect protects the branches that match a shell pattern: nobody pushes to
// them.
func (r *Repo) Protect(branch string) error {
	return r.config("githubtest.protected", "refs/heads/"+branch)
}

// AddRule adds a ruleset's rule: pushes to refs that match the shell pattern
// are refused with the words, e.g. "Commits must have verified signatures.".
func (r *Repo) AddRule(refPattern, words string) error {
	return r.config("githubtest.rule", refPattern+" "+words)
}

// PushProtection switches secret scanning of pushes on. Custom patterns are
// "EXPRESSION|Name".
func (r *Repo) PushProtection(custom ...string) error {
	for _, pattern := range custom {
		if err := r.config("githubtest.secret", pattern); err != nil {
			return err
		}
	}
	return r.config("githubtest.pushprotection", "true")
}

func (r *Repo) config(key, value string) error {
	_, err := git(r.Dir, "config", "--add", key, value)
	return err
}

// Ref returns the id that a full ref name has, and "" when it does not exist.
func (r *Repo) Ref(name string) string {
	out, err := git(r.Dir, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	if err != nil {
		return ""
	}
	return out
}

// Pulls returns the pull requests, oldest first.
func (r *Repo) Pulls() []Pull {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Pull, len(r.pulls))
	for i, p := range r.pulls {
		out[i] = *p
	}
	return out
}

// Issues returns the issues, oldest first.
func (r *Repo) Issues() []Issue {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Issue, len(r.issues))
	for i, p := range r.issues {
		out[i] = *p
	}
	return out
}

func (r *Repo) protected(branch string) bool {
	out, _ := git(r.Dir, "config", "--get-all", "githubtest.protected")
	for p := range strings.Lines(out) {
		if ok, err := path.Match(strings.TrimSpace(p), "refs/heads/"+branch); ok && err == nil {
			return true
		}
	}
	return false
}

// gitEnv keeps the configuration of whoever runs the server out of it.
func gitEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Env = gitEnv()
	cmd.Dir = "/"
	if dir != "" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+dir)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
