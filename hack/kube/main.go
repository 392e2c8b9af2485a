// Command kube is a whole Kubernetes for the tests in one program, which does
// what its name says: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet, kubectl, and netpol, which enforces NetworkPolicies.
// One program, because it links five times faster than five and
// shares its pages. hack/kube.sh builds it and runs the cluster.
//
// It is a module of its own, so that kick has nothing to do with what
// Kubernetes requires. go.mod is Kubernetes' own with the versions of the parts
// that Kubernetes keeps beside itself.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the clients
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var cmd *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		cmd = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		cmd = controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		cmd = scheduler.NewSchedulerCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "netpol":
		cmd = newNetpolCommand()
	default:
		fmt.Fprintf(os.Stderr, "kube: no program of this name: %s\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(cmd))
}
