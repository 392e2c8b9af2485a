package sandbox

import (
	"encoding/json"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// agentIs is the status of a pod whose one container is in a state.
func agentIs(state string) string {
	return `{"status": {"phase": "Pending", "containerStatuses": [{"name": "agent", "image": "registry.example/agent", "state": ` + state + `}]}}`
}

// disruption is the status of a pod that runs and that something is ending.
func disruption(reason, message string) string {
	return `{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Running",
		"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "` + reason + `", "message": "` + message + `"}],
		"containerStatuses": [{"name": "agent", "state": {"running": {}}}]}}`
}

// failed is the status of a pod that its node or a controller has ended.
func failed(reason, message string) string {
	return `{"status": {"phase": "Failed", "reason": "` + reason + `", "message": "` + message + `"}}`
}

// claimIs is a claim that is not ready.
func claimIs(reason, message string) string {
	return `{"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "` + reason + `", "message": "` + message + `"}]}}`
}

const (
	agentRuns  = `{"running": {"startedAt": "2026-01-02T03:04:05Z"}}`
	podDeleted = `{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}}`
)

// TestKubeNews reads statuses as an API server of 1.34 gives them.
func TestKubeNews(t *testing.T) {
	t.Parallel()
	ended := func(r Reason, why string) kubeNews { return kubeNews{phase: kubeEnded, reason: r, why: why} }
	again := func(why string) kubeNews {
		return kubeNews{phase: kubeEnded, reason: ReasonLost, why: why, again: true}
	}
	waits := func(why string) kubeNews { return kubeNews{why: why} }
	runs := kubeNews{phase: kubeRunning, why: "it runs"}
	for name, tt := range map[string]struct {
		job, claim, pod string
		seen            kubeSeen
		want            kubeNews // of why and remedy a part
	}{
		// Before the pod is there.
		"nothing yet":   {want: waits("the Job has no pod yet")},
		"no pod yet":    {job: `{}`, want: waits("the Job has no pod yet")},
		"queued":        {job: `{"spec": {"suspend": true}}`, want: waits("suspended")},
		"queue lets go": {job: `{"spec": {"suspend": false}}`, want: waits("no pod yet")},
		"quota full": {
			job:  `{}`,
			seen: kubeSeen{jobCause: "FailedCreate", jobSaid: `Error creating: pods "kick-k1-x7zpl" is forbidden: exceeded quota: kick-none, requested: pods=1, used: pods=0, limited: pods=0`},
			want: kubeNews{why: "quota is full: Error creating", remedy: "ResourceQuota", noRoom: true},
		},
		"refused by Pod Security": {
			job:  `{}`,
			seen: kubeSeen{jobCause: "FailedCreate", jobSaid: `Error creating: pods "kick-k1-x7zpl" is forbidden: violates PodSecurity "restricted:latest": hostPort`},
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "the pod was refused: Error creating", remedy: "admission rule"},
		},
		"refused by a webhook": {
			job:  `{}`,
			seen: kubeSeen{jobCause: "FailedCreate", jobSaid: `Error creating: admission webhook "pods.example.com" denied the request: no`},
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "the pod was refused: Error creating", remedy: "admission rule"},
		},
		"a quota that takes long to count": {
			job:  `{}`,
			seen: kubeSeen{jobCause: "FailedCreate", jobSaid: `Error creating: Internal error occurred: resource quota evaluation timed out`},
			want: kubeNews{why: "its controller tries again: Error creating", remedy: "admission rule"},
		},
		"a webhook that does not answer": {
			job:  `{}`,
			seen: kubeSeen{jobCause: "FailedCreate", jobSaid: `Error creating: Internal error occurred: failed calling webhook "pods.example.com": context deadline exceeded`},
			want: kubeNews{why: "its controller tries again: Error creating", remedy: "admission rule"},
		},
		"another warning about the Job": {
			job: `{}`, seen: kubeSeen{jobCause: "FailedDelete", jobSaid: "exceeded quota"}, want: waits("exceeded quota"),
		},

		// Before the container runs.
		"not looked at": {pod: `{"status": {"phase": "Pending"}}`, want: waits("the node prepares the pod")},
		"unschedulable": {
			pod:  `{"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient memory."}]}}`,
			want: kubeNews{why: "no node takes the pod (Unschedulable): 0/1 nodes are available", remedy: "node_selector"},
		},
		"gated": {
			pod:  `{"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}]}}`,
			want: kubeNews{why: "SchedulingGated", remedy: "node_selector"},
		},
		"volume does not come": {
			pod: agentIs(`{"waiting": {"reason": "ContainerCreating"}}`), seen: kubeSeen{podSaid: "FailedMount: no such claim"}, want: waits("FailedMount: no such claim"),
		},
		"first pull fails": {pod: agentIs(`{"waiting": {"reason": "ErrImagePull", "message": "dial tcp: timeout"}}`), want: waits("container agent waits: ErrImagePull: dial tcp: timeout")},
		"init container runs": {
			pod:  `{"status": {"phase": "Pending", "initContainerStatuses": [{"name": "shim", "state": {"running": {}}}], "containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}]}}`,
			want: waits("the node prepares the pod"),
		},
		"init container fails": {
			pod:  `{"status": {"phase": "Pending", "initContainerStatuses": [{"name": "shim", "image": "registry.example/other", "state": {"terminated": {"exitCode": 127, "reason": "Error"}}}], "containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}]}}`,
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "container shim ended with code 127 (Error)", remedy: "registry.example/other"},
		},
		"init container has no shim": {
			pod:  `{"status": {"phase": "Pending", "initContainerStatuses": [{"name": "shim", "image": "registry.example/other", "state": {"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: \"/kick-shim\": no such file or directory"}}}]}}`,
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "no such file or directory", remedy: "registry.example/other"},
		},
		"init container is not pulled": {
			pod:  `{"status": {"phase": "Pending", "initContainerStatuses": [{"name": "shim", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]}}`,
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "container shim does not start: ImagePullBackOff: not found", remedy: "pull_secrets"},
		},
		"program is not in the image": {
			pod:  agentIs(`{"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: \"/usr/libexec/kick/kick-shim\": no such file or directory"}}`),
			want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "no such file or directory", remedy: "set shim_image"},
		},
		"node has no room": {pod: failed("OutOfcpu", "Node didn't have enough resource: cpu"), want: again("the node refused the pod: OutOfcpu Node didn't have")},

		// While it runs.
		"runs": {job: `{}`, pod: agentIs(agentRuns), want: runs},
		"another container runs": {
			pod: `{"status": {"phase": "Running", "containerStatuses": [{"name": "mesh", "state": {"running": {}}}, {"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}]}}`, want: waits("prepares"),
		},
		"a disruption that is off": {
			pod:  `{"status": {"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}], "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}}`,
			want: runs,
		},
		"memory limit":       {pod: agentIs(`{"terminated": {"exitCode": 137, "reason": "OOMKilled"}}`), want: ended(ReasonOutOfMemory, "memory limit")},
		"first process ends": {pod: agentIs(`{"terminated": {"exitCode": 2, "reason": "Error", "message": "panic"}}`), want: ended(ReasonLost, "ended with code 2 (Error) panic")},
		"started again": {
			pod:  `{"status": {"containerStatuses": [{"name": "agent", "restartCount": 1, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}`,
			want: ended(ReasonOutOfMemory, "memory limit"),
		},
		"started again, nobody knows why": {
			pod: `{"status": {"containerStatuses": [{"name": "agent", "restartCount": 1, "state": {"running": {}}}]}}`, want: ended(ReasonLost, "restarted"),
		},
		"preempted":               {pod: disruption("PreemptionByScheduler", "default-scheduler: preempting"), want: kubeNews{phase: kubeEnded, reason: ReasonLost, again: true, why: "preempted: default-scheduler", remedy: "priority_class"}},
		"drained":                 {pod: disruption("EvictionByEvictionAPI", "Eviction API: evicting"), want: again("the pod was evicted: Eviction API")},
		"node does not answer":    {pod: disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), want: again("the node is lost: Taint manager")},
		"node is gone":            {pod: disruption("DeletionByPodGC", "PodGC: node no longer exists"), want: again("the node is lost: PodGC")},
		"node makes room":         {pod: disruption("TerminationByKubelet", "Pod was preempted to admit a critical pod"), want: again("the node ended the pod: Pod was preempted")},
		"node lost":               {pod: failed("NodeLost", "Node n1 which was running pod kick-k1-x7zpl is unresponsive"), want: again("the node is gone: Node n1")},
		"node shuts down":         {pod: failed("Terminated", "Pod was terminated in response to imminent node shutdown."), want: again("imminent node shutdown")},
		"node shut down, earlier": {pod: failed("NodeShutdown", "Pod was rejected as the node is shutting down."), want: again("shutting down")},
		"evicted for others": {
			pod:  `{"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.", "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "The node was low on resource: memory."}]}}`,
			want: again("the node evicted the pod: The node was low on resource: memory."),
		},
		"volume too large":    {pod: failed("Evicted", `Usage of EmptyDir volume \"workspace\" exceeds the limit \"144Mi\".`), want: ended(ReasonDiskLimit, "workspace")},
		"container too large": {pod: failed("Evicted", `Container agent exceeded its local ephemeral storage limit \"1Gi\".`), want: ended(ReasonDiskLimit, "local ephemeral storage")},
		"pod too large":       {pod: failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."), want: ended(ReasonDiskLimit, "usage exceeds")},
		"the pod's deadline":  {pod: failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), want: ended(ReasonLost, "the pod's deadline")},
		"the Job's deadline": {
			job:  `{"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active longer than specified deadline"}]}}`,
			pod:  podDeleted, // as the controller does then
			want: ended(ReasonLost, "the Job's deadline"),
		},
		"the Job failed otherwise": {
			job:  `{"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]}}`,
			pod:  agentIs(`{"terminated": {"exitCode": 137, "reason": "OOMKilled"}}`),
			want: ended(ReasonOutOfMemory, "memory limit"),
		},

		// What others have deleted.
		"pod deleted":                {job: `{}`, pod: podDeleted, want: kubeNews{phase: kubeEnded, reason: ReasonLost, again: true, why: "the pod was deleted by somebody else", remedy: "get events"}},
		"pod gone":                   {job: `{}`, pod: `{}`, seen: kubeSeen{podGone: true}, want: again("the pod was deleted")},
		"pod gone while none looked": {job: `{}`, pod: agentIs(agentRuns), seen: kubeSeen{podGone: true}, want: again("the pod was deleted")},
		"pod gone with a reason":     {pod: failed("Evicted", "The node was low on resource: memory."), seen: kubeSeen{podGone: true}, want: again("low on resource")},
		"Job deleted":                {job: `{"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}`, want: kubeNews{phase: kubeEnded, reason: ReasonLost, why: "the Job was deleted", remedy: "audit log"}},
		"Job gone":                   {job: `{}`, seen: kubeSeen{jobGone: true}, want: ended(ReasonLost, "the Job was deleted")},
		"Job gone before the pod starts": {
			job: `{}`, pod: `{"status": {"phase": "Pending"}}`, seen: kubeSeen{jobGone: true}, want: ended(ReasonLost, "the Job was deleted"),
		},

		// A claim of agent-sandbox.
		"claim unseen": {claim: `{}`, want: kubeNews{why: "nothing has looked at the claim yet", remedy: "controller of agent-sandbox"}},
		"claim waits":  {claim: claimIs("DependenciesNotReady", "Pod exists with phase: Pending"), want: waits("the claim waits: DependenciesNotReady: Pod exists")},
		"no warm pool": {
			claim: claimIs("WarmPoolNotFound", `SandboxWarmPool \"agents\" not found`),
			want:  kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: `WarmPoolNotFound: SandboxWarmPool "agents" not found`, remedy: "kick manifests kubernetes"},
		},
		"claim over quota": {
			claim: claimIs("ReconcilerError", `Error seen: pods \"kick-k1\" is forbidden: exceeded quota: kick-none`),
			want:  kubeNews{why: "quota is full: Error seen", remedy: "ResourceQuota"},
		},
		"claim refused": {
			claim: claimIs("ReconcilerError", `Error seen: pods \"kick-k1\" is forbidden: violates PodSecurity \"restricted:latest\"`),
			want:  kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "the pod was refused: Error seen", remedy: "admission rule"},
		},
		"claim expired":      {claim: claimIs("ClaimExpired", "Claim expired."), want: kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "time is over", remedy: "clocks"}},
		"claim gone":         {claim: `{}`, seen: kubeSeen{jobGone: true}, want: ended(ReasonLost, "the SandboxClaim was deleted")},
		"claim ready, taken": {claim: claimIs("DependenciesReady", ""), pod: agentIs(agentRuns), want: runs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tt.seen
			if tt.claim != "" {
				s.claim = kubeObjectOf[sandboxClaim](t, tt.claim)
			}
			if tt.job != "" {
				s.job = kubeObjectOf[batchv1.Job](t, tt.job)
			}
			if tt.pod != "" {
				s.pod = kubeObjectOf[corev1.Pod](t, tt.pod)
			}
			isNews(t, s.news(), tt.want)
		})
	}
	for reason, remedy := range waitingForGood {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			s := kubeSeen{pod: kubeObjectOf[corev1.Pod](t, agentIs(`{"waiting": {"reason": "`+reason+`", "message": "as said"}}`))}
			isNews(t, s.news(), kubeNews{phase: kubeEnded, reason: ReasonStartFailed, why: "container agent does not start: " + reason + ": as said", remedy: remedy})
		})
	}
}

func kubeObjectOf[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// isNews compares news, of whose texts want has a part.
func isNews(t *testing.T, got, want kubeNews) {
	t.Helper()
	if got.phase != want.phase || got.reason != want.reason || got.again != want.again || got.noRoom != want.noRoom {
		t.Errorf("phase %d, reason %q, again %v, no room %v; want %d, %q, %v, %v: %s", got.phase, got.reason, got.again, got.noRoom, want.phase, want.reason, want.again, want.noRoom, got.why)
	}
	if !strings.Contains(got.why, want.why) {
		t.Errorf("%q lacks %q", got.why, want.why)
	}
	if !strings.Contains(got.remedy, want.remedy) {
		t.Errorf("the remedy %q lacks %q", got.remedy, want.remedy)
	}
}
