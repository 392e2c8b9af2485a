package githubtest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func (c *call) refJSON(ref, oid string) object {
	api := c.s.repoAPI(c.repo)
	return object{
		"ref": ref, "node_id": nodeID("ref", ref), "url": api + "/git/" + ref,
		"object": object{"type": "commit", "sha": oid, "url": api + "/git/commits/" + oid},
	}
}

func (c *call) createRef() {
	var in struct{ Ref, SHA string }
	if !c.decode(&in) {
		return
	}
	switch {
	case !strings.HasPrefix(in.Ref, "refs/heads/"):
		c.fail(422, "Reference name must start with 'refs/' and have at least 2 slashes.")
		return
	case c.repo.Ref(in.SHA) != in.SHA:
		c.fail(422, "Object does not exist")
		return
	}
	// Git decides who is first.
	if _, err := git(c.repo.Dir, "update-ref", in.Ref, in.SHA, strings.Repeat("0", 40)); err != nil {
		c.fail(422, "Reference already exists")
		return
	}
	c.answer(201, c.refJSON(in.Ref, in.SHA))
}

func (c *call) deleteRef(ref string) {
	if c.repo.Ref(ref) == "" {
		c.fail(422, "Reference does not exist")
		return
	}
	if _, err := git(c.repo.Dir, "update-ref", "-d", ref); err != nil {
		c.fail(500, "Server Error")
		return
	}
	c.w.WriteHeader(204)
}

// signature stands for the one that GitHub makes; no key is behind it.
const signature = "-----BEGIN PGP SIGNATURE-----\n\nc3RhbmQtaW4=\n-----END PGP SIGNATURE-----"

func (c *call) getCommit(oid string) {
	raw, err := git(c.repo.Dir, "cat-file", "commit", oid)
	if err != nil {
		c.fail(404, "Not Found")
		return
	}
	show := func(format string) string {
		out, _ := git(c.repo.Dir, "show", "-s", "--format="+format, oid)
		return out
	}
	api, html := c.s.repoAPI(c.repo)+"/git/", c.s.URL()+"/"+c.repo.FullName()+"/commit/"
	parents := []object{}
	for _, p := range strings.Fields(show("%P")) {
		parents = append(parents, object{"sha": p, "url": api + "commits/" + p, "html_url": html + p})
	}
	verification := object{"verified": false, "reason": "unsigned", "signature": nil, "payload": nil, "verified_at": nil}
	if strings.Contains(raw, "\ngpgsig ") {
		verification = object{"verified": true, "reason": "valid", "signature": signature, "payload": "", "verified_at": stamp(c.repo.created)}
	}
	tree := show("%T")
	c.answer(200, object{
		"sha": oid, "node_id": nodeID("commit", oid), "url": api + "commits/" + oid, "html_url": html + oid, "message": strings.TrimRight(show("%B"), "\n"),
		"author":    object{"name": show("%an"), "email": show("%ae"), "date": show("%aI")},
		"committer": object{"name": show("%cn"), "email": show("%ce"), "date": show("%cI")},
		"tree":      object{"sha": tree, "url": api + "trees/" + tree}, "parents": parents, "verification": verification,
	})
}

// commitInput is GraphQL's CreateCommitOnBranchInput.
type commitInput struct {
	Branch struct {
		Repository string `json:"repositoryNameWithOwner"`
		Name       string `json:"branchName"`
	} `json:"branch"`
	Message struct {
		Headline string `json:"headline"`
		Body     string `json:"body"`
	} `json:"message"`
	Changes struct {
		Additions []struct {
			Path     string `json:"path"`
			Contents string `json:"contents"`
		} `json:"additions"`
		Deletions []struct {
			Path string `json:"path"`
		} `json:"deletions"`
	} `json:"fileChanges"`
	Head string `json:"expectedHeadOid"`
}

// maxGraphQL is the largest request that is taken, in bytes.
const maxGraphQL = 64 << 20

// serveGraphQL knows one mutation, createCommitOnBranch, as GitHub's schema has
// it: files with their whole content, no modes, one parent, and the branch must
// be where the caller thinks. The author is the token's, the committer GitHub.
func (s *Server) serveGraphQL(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r, token: presentedToken(r)}
	c.asToken(func() {
		var in struct {
			Query     string
			Variables struct{ Input commitInput }
		}
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxGraphQL))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil {
			c.fail(400, "Problems parsing JSON")
			return
		}
		if !strings.Contains(in.Query, "createCommitOnBranch(input: $input)") {
			c.refuse("", "", "Field does not exist on type 'Mutation'")
			return
		}
		c.createCommit(in.Variables.Input)
	})
}

// refuse answers as GraphQL does, with 200.
func (c *call) refuse(kind, field, words string) {
	e := object{"message": words}
	if kind != "" {
		e["type"] = kind
	}
	if field != "" {
		e["path"] = []string{field}
	}
	c.answer(200, object{"data": nil, "errors": []object{e}})
}

func (c *call) createCommit(in commitInput) {
	const field = "createCommitOnBranch"
	owner, name, _ := strings.Cut(in.Branch.Repository, "/")
	repo, ref := c.s.repo(owner, name), "refs/heads/"+in.Branch.Name
	switch {
	case repo == nil || !c.grant.covers(repo):
		c.refuse("NOT_FOUND", field, "Could not resolve to a Repository with the name '"+in.Branch.Repository+"'.")
		return
	case !c.grant.Permissions.allows("contents", "write"):
		c.refuse("FORBIDDEN", field, "Resource not accessible by integration")
		return
	case repo.protected(in.Branch.Name):
		c.refuse("UNPROCESSABLE", field, "Changes must be made through a pull request.")
		return
	case repo.Ref(ref) == "":
		c.refuse("NOT_FOUND", field, "No commit exists with specified expectedHeadOid '"+in.Head+"'.")
		return
	case in.Message.Headline == "":
		c.refuse("UNPROCESSABLE", field, "A commit message headline is required.")
		return
	}
	if words := repo.ruleAgainst(ref); words != "" {
		c.refuse("UNPROCESSABLE", field, "Repository rule violations found\n\n"+words+"\n")
		return
	}
	made, err := repo.commit(in, c.grant.login)
	switch {
	case errors.Is(err, errStale):
		c.refuse("STALE_DATA", field, fmt.Sprintf("Expected branch to point to %q but it did not. Pull and try again.", in.Head))
	case err != nil:
		c.refuse("UNPROCESSABLE", field, err.Error())
	default:
		c.answer(200, object{"data": object{field: object{"commit": object{"oid": made}}}})
	}
}

// ruleAgainst returns the words of a ruleset's rule that a commit of the API's
// breaks. It is signed, unless the host has no key.
func (r *Repo) ruleAgainst(ref string) string {
	out, _ := git(r.Dir, "config", "--get-all", "githubtest.rule")
	for line := range strings.Lines(out) {
		pattern, words, _ := strings.Cut(strings.TrimSpace(line), " ")
		// In a shell's pattern "*" takes "/" too.
		ok := pattern == ref || strings.HasSuffix(pattern, "*") && strings.HasPrefix(ref, strings.TrimSuffix(pattern, "*"))
		if ok && (r.opts.Unsigned || !strings.Contains(words, "signature")) {
			return words
		}
	}
	return ""
}

var errStale = errors.New("the branch moved")

// commit makes the commit in the repository and moves the branch.
func (r *Repo) commit(in commitInput, login string) (string, error) {
	dir, err := os.MkdirTemp("", "githubtest-index-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	run := func(stdin []byte, args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Env = append(gitEnv(), "GIT_DIR="+r.Dir, "GIT_INDEX_FILE="+filepath.Join(dir, "index"))
		cmd.Dir, cmd.Stdin = "/", bytes.NewReader(stdin)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, stderr.String())
		}
		return strings.TrimSuffix(string(out), "\n"), nil
	}
	if r.Ref(in.Head) != in.Head {
		return "", errStale
	}
	if _, err := run(nil, "read-tree", in.Head); err != nil {
		return "", err
	}
	for _, d := range in.Changes.Deletions {
		if out, err := run(nil, "ls-tree", "-z", in.Head, "--", d.Path); err != nil || out == "" {
			//nolint:staticcheck // the words are GitHub's
			return "", fmt.Errorf("A path was requested for deletion which does not exist as of commit oid `%s`: %s", in.Head, d.Path)
		}
		gone := "0 " + strings.Repeat("0", 40) + "\t" + d.Path + "\x00"
		if _, err := run([]byte(gone), "update-index", "-z", "--index-info"); err != nil {
			return "", err
		}
	}
	for _, a := range in.Changes.Additions {
		content, err := base64.StdEncoding.DecodeString(a.Contents)
		if err != nil {
			return "", errors.New("contents is not base64")
		}
		blob, err := run(content, "hash-object", "-w", "--stdin")
		if err != nil {
			return "", err
		}
		mode := "100644"
		if old, _ := git(r.Dir, "ls-tree", "-z", in.Head, "--", a.Path); strings.HasPrefix(old, "100755 ") && !r.opts.DropModes {
			mode = "100755"
		}
		if _, err := run(nil, "update-index", "--add", "--replace", "--cacheinfo", mode+","+blob+","+a.Path); err != nil {
			return "", err
		}
	}
	tree, err := run(nil, "write-tree")
	if err != nil {
		return "", err
	}
	now := time.Now().Unix()
	var raw strings.Builder
	fmt.Fprintf(&raw, "tree %s\nparent %s\nauthor %s <%d+%s@users.noreply.github.com> %d +0000\ncommitter GitHub <noreply@github.com> %d +0000\n", tree, in.Head, login, number(login), login, now, now)
	if !r.opts.Unsigned {
		raw.WriteString("gpgsig " + strings.ReplaceAll(signature, "\n", "\n ") + "\n")
	}
	raw.WriteString("\n" + in.Message.Headline)
	if in.Message.Body != "" {
		raw.WriteString("\n\n" + in.Message.Body)
	}
	made, err := run([]byte(raw.String()), "hash-object", "-w", "-t", "commit", "--stdin")
	if err != nil {
		return "", err
	}
	if _, err := git(r.Dir, "update-ref", "refs/heads/"+in.Branch.Name, made, in.Head); err != nil {
		return "", errStale
	}
	return made, nil
}
