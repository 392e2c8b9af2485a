// Package podmantest gives tests the Podman services that scripts/podman.sh
// starts, and lets them act as the users that the services belong to.
package podmantest

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// What scripts/podman.sh tells the tests.
const (
	ServicesEnv = "KICK_TEST_PODMAN" // directories of services of hack/podman.sh
	ImageEnv    = "KICK_TEST_IMAGE"  // the id of an image that each of them has
)

// Service is a Podman service that hack/podman.sh has started.
type Service struct {
	Dir      string
	Settings map[string]string // its environment, as hack/podman.sh says it
	User     string            // whom it belongs to
	UID, GID int
}

// Services are those to test on. Without any the test is skipped, in CI too:
// there scripts/podman.sh, which fails if it cannot start one, runs these tests in
// a lane of their own.
func Services(t *testing.T) []Service {
	t.Helper()
	dirs, set := os.LookupEnv(ServicesEnv)
	if !set {
		t.Skip(ServicesEnv + " names no Podman service: scripts/podman.sh starts some")
	}
	var services []Service
	for _, dir := range strings.Fields(dirs) {
		services = append(services, open(t, dir))
	}
	if len(services) == 0 {
		t.Fatal(ServicesEnv + " is set and empty: no service was started")
	}
	return services
}

// Name is what scripts/podman.sh calls the service.
func (s Service) Name() string { return filepath.Base(s.Dir) }

func open(t *testing.T, dir string) Service {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	s := Service{Dir: dir, Settings: map[string]string{}}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		s.Settings[name] = value
	}
	account, err := user.Lookup(s.Settings["KICK_PODMAN_USER"])
	if err != nil {
		t.Fatal(err)
	}
	s.User = account.Username
	if s.UID, err = strconv.Atoi(account.Uid); err != nil {
		t.Fatal(err)
	}
	if s.GID, err = strconv.Atoi(account.Gid); err != nil {
		t.Fatal(err)
	}
	return s
}

// As makes a command run as the service's user, and end with the test at the
// latest.
func (s Service) As(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.UID != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(s.UID), Gid: uint32(s.GID)}
	}
}
