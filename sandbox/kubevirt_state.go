package sandbox

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kickhq/kick/internal/kubevirtapi"
)

// machineNews is what KubeVirt says of a machine. Its phase is kubeRunning as soon as
// the guest may answer: that it is Scheduled is enough, for some stay so while their
// guest runs.
func machineNews(m *kubevirtapi.Instance) kubeNews {
	ended := func(r Reason, remedy, format string, args ...any) kubeNews {
		return kubeNews{phase: kubeEnded, reason: r, why: fmt.Sprintf(format, args...), remedy: remedy}
	}
	if m.DeletionTimestamp != nil {
		return ended(ReasonLost, "Whoever did that may have had a reason: kubectl get events, and the API server's audit log", "the machine was deleted by somebody else")
	}
	s := m.Status
	if s == nil {
		s = &kubevirtapi.InstanceStatus{}
	}
	switch s.Phase {
	case kubevirtapi.Succeeded:
		return ended(ReasonLost, "", "the machine has gone off: by itself, or at its deadline, which is later than the kick's time limit")
	case kubevirtapi.Failed:
		return ended(ReasonLost, "See the machine's events: kubectl describe vmi", "the machine has failed: %s", cmp.Or(s.Reason, conditionsOf(s, kubevirtapi.Ready), "its kernel, its virt-launcher or its node has ended it"))
	case kubevirtapi.Running, kubevirtapi.Scheduled:
		if c := conditionsOf(s, kubevirtapi.Synchronized); c != "" && s.Phase == kubevirtapi.Scheduled {
			return kubeNews{why: "the node does not start the machine: " + c, remedy: machineRemedy(c, "")}
		}
		if len(s.Interfaces) > 0 && s.Interfaces[0].IPAddress != "" {
			return kubeNews{phase: kubeRunning, why: "it runs, and lets nobody in yet", remedy: "See that the image starts sshd with what is on the disk with the serial " + machineKeys + ", as docs/kubevirt.md says"}
		}
		return kubeNews{why: "it has no address yet"}
	}
	why := cmp.Or(conditionsOf(s, kubevirtapi.PodScheduled), conditionsOf(s, kubevirtapi.Synchronized))
	if why == "" {
		return kubeNews{why: fmt.Sprintf("it is %s", cmp.Or(s.Phase, "not seen by KubeVirt yet")), remedy: "See that KubeVirt runs: kubectl get kubevirt --all-namespaces"}
	}
	return kubeNews{why: why, remedy: machineRemedy(why, "")}
}

// conditionsOf says why something is not so; empty if it is, or nobody says.
func conditionsOf(s *kubevirtapi.InstanceStatus, kind string) string {
	for _, c := range s.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionFalse {
			return strings.TrimPrefix(c.Reason+": "+c.Message, ": ")
		}
	}
	return ""
}

// machineRemedies say what may help, by what KubeVirt and the events say.
var machineRemedies = []struct{ text, remedy string }{
	{kvmDevice, "Use nodes with KVM, or let KubeVirt do without (useEmulation, slow)"},
	{"Unschedulable", "See that a node has room for the machine's memory and its overhead"},
	{"exceeded quota", "Wait for other kicks to end, or raise the ResourceQuota of the namespace"},
	{"ImagePull", "Name an image that the node can pull, or give pull_secret"},
	{"ErrImage", "Name an image that the node can pull, or give pull_secret"},
	{"FailedMount", "See that the Secret of the machine is there: kubectl get secrets"},
	{"disk", "See that the image has a disk that QEMU can read in /disk"},
}

// machineRemedy is that of the words, or else what is known without them.
func machineRemedy(words, known string) string {
	for _, r := range machineRemedies {
		if strings.Contains(words, r.text) {
			return r.remedy
		}
	}
	return cmp.Or(known, "See the machine's events: kubectl describe vmi")
}
