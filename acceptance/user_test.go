package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kickhq/kick/manager"
)

// someUser is an ordinary user that no host knows by name.
const someUser = 54321

// TestOrdinaryUser runs kicks as an ordinary user when the tests run as root;
// when they do not, all other tests have done so already.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return
	}
	dir, err := os.MkdirTemp("", "kick-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bare := filepath.Join(dir, "r.git")
	run(t, "", "cp", "-r", seedBare(t), bare)
	program := filepath.Join(dir, "kick")
	run(t, "", "cp", kick, program)
	run(t, "", "chmod", "755", dir)
	run(t, "", "chown", "-R", fmt.Sprint(someUser, ":", someUser), dir)

	asUser := func(args ...string) (manager.Outcome, string) {
		cmd := exec.Command(program, append([]string{"run", "--state-dir", filepath.Join(dir, "state"), "-o", "json", "--repo", bare, "--publish", "branch", "--"}, args...)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: someUser, Gid: someUser}}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		var o manager.Outcome
		if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
			t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
		}
		return o, stderr.String()
	}
	for _, c := range []struct {
		script string
		want   manager.Code
	}{
		{"echo hi >f; git add f; git commit -qm f", manager.Published},
		{"true", manager.Nothing},
		{"exit 3", manager.AgentFailed},
		{"echo ghp_Z9y8X7w6V5u4T3s2R1q0P9o8N7m6L5k4J3h2 >t; git add t; git commit -qm t", manager.Refused},
	} {
		o, stderr := asUser("sh", "-c", "id -u; "+c.script)
		if o.Outcome != c.want {
			t.Errorf("%s: outcome %s, want %s: %s\n%s", c.script, o.Outcome, c.want, o.Error, stderr)
		}
		if missing := o.Isolation.Missing(); len(missing) > 0 || len(o.Isolation.Properties) < 20 {
			t.Errorf("%s: isolation %+v", c.script, o.Isolation)
		}
	}
	if left := leftovers(dir); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
