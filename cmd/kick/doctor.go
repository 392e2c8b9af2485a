package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kickhq/kick/internal/config"
	"github.com/kickhq/kick/internal/doctor"
	"github.com/kickhq/kick/internal/escape"
	"github.com/kickhq/kick/internal/ui"
	"github.com/kickhq/kick/sandbox"
)

func newDoctor(g *globals) *cobra.Command {
	var output, agent, file string
	var o doctor.Options
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this host can do, and say what to mend",
		Long: `Check this host: git, the state directory, and every isolation property of the
embedded sandbox, proved on a live one. With --runtime podman, the Podman
service at CONTAINER_HOST, or where Podman has it by default, and the properties of
a container of --image. With --runtime openshell, the gateway that the openshell
command uses, and the properties of a sandbox of --image. With --runtime
kubernetes, the rights of kick's account in the namespace, and the properties of a
pod of --image. With --runtime kubevirt, KubeVirt in the cluster, those rights, and
the properties of a machine of --image. With --agent, what kick.yaml says of these
for that agent, as far as no flag says it. Exit code 14 when the sandbox is not
provable here, 1 when something else is wrong.`,
		Example: `  kick doctor
  kick doctor --runtime podman --image localhost/kick-agent
  kick doctor --runtime openshell --image registry.example/agent@sha256:...
  kick doctor --agent scanner`,
		Args: args(none),
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case agent != "":
				r, err := resolved(file, agent)
				if err != nil {
					return err
				}
				o.ForAgent(r)
			case file != "":
				return usagef("--config is given, but no agent: pass --agent too")
			}
			o.Runtime = cmp.Or(o.Runtime, "embedded")
			if o.Image != "" && o.Runtime == "embedded" {
				return usagef("--image: the embedded runtime takes no image: leave it out, or pass --runtime podman, openshell, kubernetes or kubevirt")
			}
			if o.OCIRuntime != "" && o.Runtime != "podman" {
				return usagef("--oci-runtime is Podman's: pass --runtime podman, or leave it out")
			}
			o.StateDir = g.stateDir
			if o.Shim, o.ShimErr = openShim(); o.ShimErr == nil {
				defer func() { _ = o.Shim.Close() }() // only read
			}
			checks := doctor.Run(c.Context(), o)
			if output == "json" {
				if err := escape.JSON(os.Stdout, checks); err != nil {
					return err
				}
			} else {
				p := ui.New(os.Stdout)
				for _, check := range checks {
					p.Check(check)
				}
			}
			if code := doctor.ExitCode(checks); code != 0 {
				if output != "json" {
					fmt.Println("\nkick is not ready on this host: mend what is marked above")
				}
				return exit{code}
			}
			return nil
		},
	}
	c.Flags().Var(form{&o.Runtime, config.Runtimes}, "runtime", "what isolates the agent: embedded (default), podman, openshell, kubernetes or kubevirt")
	c.Flags().StringVar(&agent, "agent", "", "`name` of an agent in kick.yaml whose runtime is checked")
	c.Flags().StringVar(&file, "config", "", "kick.yaml `file` (default: found from here upward)")
	addOpenShellFlags(c, &o.OpenShell)
	completeWords(c, "runtime", config.Runtimes...)
	c.Flags().StringVar(&o.Image, "image", "", "container `image` that the sandbox is tried with")
	addKubernetesFlags(c, &o.Kubernetes)
	c.Flags().Var(form{&o.OCIRuntime, sandbox.OCIRuntimes}, "oci-runtime", "what the Podman service must start containers with: crun, runc, runsc, krun or kata")
	completeWords(c, "oci-runtime", sandbox.OCIRuntimes...)
	addOutput(c, &output, "json")
	return c
}
