package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kickhq/kick/internal/gitcmd"
	"github.com/kickhq/kick/sandbox"
)

// workspaceConfig is a normal work tree's configuration. There is no remote:
// pushing is not the workspace's business. Advice is off since it is written
// for people at a terminal.
const workspaceConfig = `[core]
	repositoryformatversion = 0
	filemode = true
	bare = false
	logallrefupdates = true
[user]
	name = %s
	email = %s
[commit]
	gpgsign = false
[tag]
	gpgsign = false
[gc]
	auto = 0
[maintenance]
	auto = false
[advice]
	detachedHead = false
	statusHints = false
	addIgnoredFile = false
	pushUpdateRejected = false
`

var taskID = regexp.MustCompile(`^[a-z][a-z0-9-]{0,18}$`)

// Prepare makes dir, which must not exist, a workspace for task that starts at
// base: a git repository that is not checked out yet and borrows its objects
// from sandbox.BaseObjectsPath, and the prompt at PromptPath. It runs no git;
// the sandbox checks the tree out. HEAD is on the base branch, and
// origin/<branch> names the base, so that "git diff origin/main" works.
//
// The mirror is kept until task.Holder is gone, also when the process that prepared it
// has died. Only the owner may enter dir; what is in it is readable by all, so
// that a launcher needs to change the owner alone.
func Prepare(ctx context.Context, dir string, base *Base, task Task) (err error) {
	if err := errors.Join(checkTask(task), checkBranch(base.Branch), ctx.Err()); err != nil {
		return err
	}
	if !gitcmd.IsOID(base.OID) {
		return unusable("fetch the base first", "base %q is not a full commit id", base.OID)
	}
	if !filepath.IsAbs(dir) {
		return unusable("give an absolute path", "workspace directory %q is relative", dir)
	}
	if base.borrowers != "" {
		holder := task.Holder
		if holder == "" {
			holder = dir
		}
		if err := os.WriteFile(filepath.Join(base.borrowers, task.ID), []byte(holder), 0o600); err != nil {
			return hostError("record the workspace at its mirror", err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return unusable("give a path that does not exist yet", "workspace directory %q exists", dir)
		}
		return hostError("make workspace", err)
	}
	if err := fill(dir, base, task); err != nil {
		return errors.Join(hostError("write workspace", err), os.RemoveAll(dir))
	}
	return nil
}

func fill(dir string, base *Base, task Task) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	g := gitDir{
		config:     fmt.Sprintf(workspaceConfig, gitcmd.ConfigValue(task.Identity.Name), gitcmd.ConfigValue(task.Identity.Email)),
		branch:     base.Branch,
		alternates: sandbox.BaseObjectsPath,
		exclude:    "/.hive/\n",
		headOf:     "origin",
		packedRefs: "# pack-refs with: peeled fully-peeled sorted \n" +
			base.OID + " refs/heads/" + base.Branch + "\n" +
			base.OID + " refs/remotes/origin/" + base.Branch + "\n",
	}
	if err := g.write(root, ".git"); err != nil {
		return err
	}
	if err := makeDir(root, ".hive"); err != nil {
		return err
	}
	return writeFile(root, PromptPath, task.Prompt)
}

func checkTask(t Task) error {
	switch {
	case !taskID.MatchString(t.ID):
		return unusable("use kickid.New", "kick id %q is not 1 to 19 lower-case letters, digits and dashes", t.ID)
	case len(t.Prompt) > MaxPrompt:
		return unusable("shorten it, or commit the long part to the repository", "prompt of %d bytes is longer than 1 MiB", len(t.Prompt))
	case strings.TrimSpace(t.Identity.Name) == "" || strings.TrimSpace(t.Identity.Email) == "":
		return unusable("give both", "committer has no name or no e-mail address")
	}
	for _, v := range []string{t.Identity.Name, t.Identity.Email} {
		if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f || r == '<' || r == '>' }) {
			return unusable("leave them out", "committer %q holds a control character, < or >", v)
		}
	}
	return nil
}
