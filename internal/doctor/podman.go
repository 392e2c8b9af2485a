package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kickhq/kick/internal/podman"
	"github.com/kickhq/kick/manager"
	"github.com/kickhq/kick/sandbox"
)

// askPodman is how long the service may take to tell of its host.
const askPodman = 30 * time.Second

// recipe is where the settings are that difficult hosts need.
const recipe = "`hack/podman.sh conf` prints a containers.conf for this host, with reasons"

// podmanService asks the service what it is set up with. What it says is no proof;
// the proof is podmanSandbox's.
func podmanService(ctx context.Context) []Check {
	address := sandbox.DefaultPodmanSocket()
	service := Check{Name: "podman service", Found: address}
	socket, err := podman.Socket(address)
	if err != nil {
		service.Remedy = err.Error()
		return []Check{service}
	}
	ctx, cancel := context.WithTimeout(ctx, askPodman)
	defer cancel()
	client := podman.New(socket)
	defer client.Close()
	info, err := client.Info(ctx)
	if err != nil {
		service.Found += ": " + err.Error()
		service.Remedy = "Start it with `systemctl --user enable --now podman.socket`, or as root without --user; without systemd, `hack/podman.sh up DIR` starts one. Another socket is named by CONTAINER_HOST. docs/podman.md has it all."
		return []Check{service}
	}
	kind := "rootful"
	if info.Host.Security.Rootless {
		kind = "rootless"
	}
	service.OK, service.Found = true, fmt.Sprintf("Podman %s, %s, at %s", info.Version.Version, kind, socket)
	checks := []Check{service, podmanStorage(info), podmanRuntime(info), podmanGroups(info)}
	if info.Host.Security.Rootless {
		checks = append(checks, podmanIDs(info))
	}
	return checks
}

func podmanStorage(info podman.Info) Check {
	c := Check{Name: "podman storage", OK: true, Found: info.Store.GraphDriverName}
	if c.Found == "vfs" {
		c.OK = false
		c.Found += ", which copies the whole image for each container"
		c.Remedy = "Write driver = \"overlay\" below [storage] into ~/.config/containers/storage.conf, and then remove the old storage, which decides otherwise: podman system reset."
	}
	return c
}

func podmanRuntime(info podman.Info) Check {
	name := info.Host.OCIRuntime.Name
	c := Check{Name: "podman runtime", OK: true, Found: name}
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil && name == "crun" {
		c.OK = false
		c.Found += ", which refuses this host's hybrid control groups"
		c.Remedy = "Use runc: runtime = \"runc\" below [engine] in containers.conf (" + recipe + ")."
	}
	return c
}

// podmanGroups tells which limits the service cannot set. That is no fault: kick
// holds memory and processes by itself then.
func podmanGroups(info podman.Info) Check {
	c := Check{Name: "podman cgroups", OK: true, Found: info.Host.CgroupVersion}
	if !info.Host.Security.Rootless {
		return c
	}
	var lacking []string
	for _, limit := range []string{"cpu", "memory", "pids"} {
		if info.Host.CgroupVersion != "v2" || !slices.Contains(info.Host.CgroupControllers, limit) {
			lacking = append(lacking, limit)
		}
	}
	if len(lacking) > 0 {
		c.Found += ", without " + strings.Join(lacking, ", ") + " for rootless containers: kick's watchdog and resource limits hold memory and processes, and a CPU limit cannot be had"
	}
	return c
}

func podmanIDs(info podman.Info) Check {
	c := Check{Name: "podman user ids"}
	least := podman.CountIDs(info.Host.IDMappings.UIDMap)
	least = min(least, podman.CountIDs(info.Host.IDMappings.GIDMap))
	c.Found = fmt.Sprintf("%d", least)
	// Images and the agent's own id need those below 65536.
	if c.OK = least > 65535; !c.OK {
		c.Remedy = "Give this user ranges in /etc/subuid and /etc/subgid: usermod --add-subuids 165536-231071 --add-subgids 165536-231071 USER, and then podman system migrate. newuidmap must be installed (Debian: uidmap)."
	}
	return c
}

// podmanSandbox proves the properties of a container on a live one.
func podmanSandbox(ctx context.Context, o Options) []Check {
	const name = "podman sandbox"
	if o.Image == "" {
		return []Check{{Name: name, Isolation: true, Found: "no image, so no container was looked into", Remedy: "Pass --image; `kick image build` makes an image."}}
	}
	state, embedded, err := onState(o)
	if state == nil {
		return nil // the check of the state directory says it
	}
	if err != nil {
		return []Check{notProved(name, err)}
	}
	l, err := manager.NewPodman(state, embedded, o.Image)
	if err != nil {
		return []Check{notProved(name, err)}
	}
	return provedOnce(ctx, name, l.With(sandbox.PodmanChoice{OCIRuntime: o.OCIRuntime}))
}
