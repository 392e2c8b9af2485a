package sandbox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubePhase is how far a pod is.
type kubePhase int

const (
	kubePending kubePhase = iota // it may yet start
	kubeRunning
	kubeEnded
)

// kubeNews is what the API server says of a Job and its pod, in one word for the
// launcher and one sentence for people.
type kubeNews struct {
	phase  kubePhase
	reason Reason // of kubeEnded
	why    string // what it waits for, or how it ended
	remedy string
	// again tells an end that says nothing about the kick: another pod may fare
	// better.
	again bool
	// noRoom tells a Job without a pod, since a quota has no room for that.
	noRoom bool
}

// kubeSeen is what was seen of a Job last.
type kubeSeen struct {
	job               *batchv1.Job
	claim             *sandboxClaim // of those that have one and no Job
	pod               *corev1.Pod   // as much of it as kubeEye.keep leaves
	podDiffers        []string      // in what it is not as asked for
	jobGone, podGone  bool          // jobGone: the claim, too
	noJob             bool          // the pod was claimed and has none
	unlisted          bool          // the pod is known from its claim, and not yet from the watch
	jobSaid, podSaid  string        // the last warning about each
	jobCause, podWhat string        // the reasons of these events
}

// owner is what has the pod; nil if it was not seen.
func (s *kubeSeen) owner() *metav1.ObjectMeta {
	switch {
	case s.job != nil:
		return &s.job.ObjectMeta
	case s.claim != nil:
		return &s.claim.Metadata
	}
	return nil
}

// news says what that means.
func (s *kubeSeen) news() kubeNews {
	ended := func(r Reason, again bool, remedy, format string, args ...any) kubeNews {
		return kubeNews{phase: kubeEnded, reason: r, why: fmt.Sprintf(format, args...), remedy: remedy, again: again}
	}
	if s.job != nil {
		for _, c := range s.job.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue && c.Reason == batchv1.JobReasonDeadlineExceeded {
				return ended(ReasonLost, false, "", "the Job's deadline, which is later than the kick's time limit, was reached")
			}
		}
	}
	if s.pod != nil {
		// One that went while no watch saw it is known as it was before.
		if n := podNews(s.pod, s.podSaid); n.phase == kubeEnded || n.phase == kubeRunning && !s.podGone {
			return n
		}
	}
	switch {
	case s.podGone:
		return ended(ReasonLost, true, "", "the pod was deleted")
	case s.jobGone || s.owner() != nil && s.owner().DeletionTimestamp != nil:
		what := "Job"
		if s.claim != nil {
			what = "SandboxClaim"
		}
		return ended(ReasonLost, false, "Whoever did that may have had a reason: kubectl get events, and the API server's audit log", "the %s was deleted by somebody else", what)
	case s.pod != nil:
		return podNews(s.pod, s.podSaid)
	}
	return s.withoutPod()
}

// withoutPod is why there is no pod.
func (s *kubeSeen) withoutPod() kubeNews {
	if s.claim != nil {
		return s.claim.news()
	}
	if s.job != nil && s.job.Spec.Suspend != nil && *s.job.Spec.Suspend {
		return kubeNews{why: "the Job is suspended, as by a queue"}
	}
	n := kubeNews{why: cmp.Or(s.jobSaid, "the Job has no pod yet")}
	if s.jobCause != "FailedCreate" {
		return n
	}
	if strings.Contains(s.jobSaid, "exceeded quota") {
		n.why, n.remedy, n.noRoom = "quota is full: "+s.jobSaid, remedyQuota, true
		return n
	}
	n.remedy = remedyRefused
	if !refusedForGood(s.jobSaid) {
		n.why = "the pod was not made, and its controller tries again: " + s.jobSaid
		return n
	}
	n.phase, n.reason, n.why = kubeEnded, ReasonStartFailed, "the pod was refused: "+s.jobSaid
	return n
}

// refusedForGood tells a rule's refusal of a pod from the API server's own trouble, as
// of a webhook that does not answer, a quota that is being counted or changed, or
// too many requests: the controller that makes the pod asks again after those.
func refusedForGood(said string) bool {
	return slices.ContainsFunc([]string{"is forbidden", "is invalid", "denied the request"}, func(rule string) bool { return strings.Contains(said, rule) })
}

// What to do about a pod that may not be made.
const (
	remedyQuota   = "Wait for other kicks to end, or raise the ResourceQuota of the namespace"
	remedyRefused = "See which admission rule of the namespace it is; `kick manifests kubernetes` prints a namespace that takes kick's pods"
)

// waitingForGood are reasons of a container that waits and will not start.
var waitingForGood = map[string]string{
	"ImagePullBackOff":           "Name an image that the node can pull, or give it pull_secrets",
	"ErrImageNeverPull":          "Load the image into the node",
	"InvalidImageName":           "Write the image as NAME@sha256:DIGEST",
	"ImageInspectError":          "See what the node's container runtime says of the image",
	"CreateContainerConfigError": "See what of the pod's settings the node lacks: kubectl describe pod",
	"CreateContainerError":       "See what the node's container runtime says: kubectl describe pod",
	"RunContainerError":          "Is the shim in the image at " + kubeShim + "? If not, set shim_image",
}

// podNews is what a pod says of itself.
func podNews(p *corev1.Pod, said string) kubeNews {
	ended := func(r Reason, again bool, remedy, format string, args ...any) kubeNews {
		return kubeNews{phase: kubeEnded, reason: r, why: fmt.Sprintf(format, args...), remedy: remedy, again: again}
	}
	text := cmp.Or(p.Status.Message, said)
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return disrupted(c, p.Status.Reason)
		}
	}
	switch p.Status.Reason {
	case "DeadlineExceeded":
		return ended(ReasonLost, false, "", "the pod's deadline, which is later than the kick's time limit, was reached")
	case "Evicted":
		return evicted(text)
	case "NodeLost", "NodeShutdown", "Terminated":
		return ended(ReasonLost, true, "", "the node is gone: %s", text)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name != kubeContainer {
			continue
		}
		t := c.State.Terminated
		if c.RestartCount > 0 { // as a Deployment wants it, also of a pod that it has no more
			t = cmp.Or(c.LastTerminationState.Terminated, &corev1.ContainerStateTerminated{Reason: "restarted"})
		}
		switch {
		case t == nil && c.State.Running != nil && p.DeletionTimestamp == nil:
			return kubeNews{phase: kubeRunning, why: "it runs"}
		case t != nil && t.Reason == "OOMKilled":
			return ended(ReasonOutOfMemory, false, "", "the kernel killed the sandbox for its memory limit")
		case t != nil && t.Reason == "StartError": // what RunContainerError becomes where nothing is started twice
			return ended(ReasonStartFailed, false, waitingForGood["RunContainerError"], "container %s does not start: %s", c.Name, t.Message)
		case t != nil:
			return ended(ReasonLost, false, "", "the sandbox's first process ended with code %d (%s) %s", t.ExitCode, t.Reason, t.Message)
		}
	}
	if p.DeletionTimestamp != nil {
		return ended(ReasonLost, true, "Whoever did that may have had a reason: kubectl get events", "the pod was deleted by somebody else")
	}
	if p.Status.Phase == corev1.PodFailed {
		return ended(ReasonLost, true, "", "the node refused the pod: %s %s", p.Status.Reason, text)
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			if c.Name == kubeInit && t.Message != "" && t.Reason != "StartError" { // the shim's own words
				return ended(ReasonStartFailed, false, "", "container %s could not prepare the pod: %s", c.Name, t.Message)
			}
			return ended(ReasonStartFailed, false, "See what the image "+c.Image+" is: it must be a kick's shim", "container %s ended with code %d (%s) %s", c.Name, t.ExitCode, t.Reason, t.Message)
		}
		if w := c.State.Waiting; w != nil && waitingForGood[w.Reason] != "" {
			return ended(ReasonStartFailed, false, waitingForGood[w.Reason], "container %s does not start: %s: %s", c.Name, w.Reason, w.Message)
		}
	}
	n := kubeNews{why: pending(p, said)}
	if unschedulable(p) != nil {
		n.remedy = "Give the cluster a node that fits, or change what the agent's pod wants of one: limits, node_selector, tolerations, affinity"
	}
	return n
}

// unschedulable is what a pod says that no node takes, and nil of others.
func unschedulable(p *corev1.Pod) *corev1.PodCondition {
	if p == nil {
		return nil
	}
	for i, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// pending is what a pod waits for.
func pending(p *corev1.Pod, said string) string {
	if c := unschedulable(p); c != nil {
		return fmt.Sprintf("no node takes the pod (%s): %s", c.Reason, c.Message)
	}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return fmt.Sprintf("container %s waits: %s: %s", c.Name, w.Reason, w.Message)
		}
	}
	return cmp.Or(said, "the node prepares the pod")
}

// disrupted is a pod that something in the cluster has ended.
func disrupted(c corev1.PodCondition, status string) kubeNews {
	n := kubeNews{phase: kubeEnded, reason: ReasonLost, again: true}
	switch c.Reason {
	case corev1.PodReasonPreemptionByScheduler:
		n.why, n.remedy = "the pod was preempted: "+c.Message, "Give kicks a higher priority_class, or the cluster more room"
	case "DeletionByTaintManager", "DeletionByPodGC":
		n.why = "the node is lost: " + c.Message
	case "TerminationByKubelet":
		if status == "Evicted" {
			return evicted(c.Message)
		}
		n.why = "the node ended the pod: " + c.Message
	default:
		n.why = "the pod was evicted: " + c.Message
	}
	return n
}

// evicted is a pod that its node has ended for what it or others used.
func evicted(message string) kubeNews {
	n := kubeNews{phase: kubeEnded, reason: ReasonLost, why: "the node evicted the pod: " + message, again: true}
	for _, own := range []string{"exceeds the limit", "exceeded its local ephemeral storage limit", "ephemeral local storage usage exceeds"} {
		if strings.Contains(message, own) {
			n.reason, n.again = ReasonDiskLimit, false
		}
	}
	return n
}
