// Package kubevirtapi has KubeVirt's virtual machine instances and their replica
// sets, as far as kick writes and reads them. KubeVirt's own module of types
// (kubevirt.io/api) would bring the machinery of custom resource definitions and the
// types of three other projects into every start of kick. That these are right, the
// schemas that KubeVirt installs say, strictly, in tests on a real API server.
package kubevirtapi

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
)

// Group is that of the kinds, in version v1. SubresourceGroup is that of what is
// below an instance, which KubeVirt serves itself.
const (
	Group            = "kubevirt.io"
	SubresourceGroup = "subresources.kubevirt.io"
	Version          = "v1"
)

// The kinds.
var (
	Instances   = kube.Resource{Group: Group, Version: Version, Name: "virtualmachineinstances"}
	ReplicaSets = kube.Resource{Group: Group, Version: Version, Name: "virtualmachineinstancereplicasets"}
	// Guests are instances as those see them who come to what runs in them.
	Guests = kube.Resource{Group: SubresourceGroup, Version: Version, Name: "virtualmachineinstances"}
)

// Protocol is that of the websocket of portforward: the stream's bytes, as binary
// messages.
const Protocol = "plain.kubevirt.io"

// Instance is a VirtualMachineInstance. Its Status is KubeVirt's alone.
type Instance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              InstanceSpec    `json:"spec"`
	Status            *InstanceStatus `json:"status,omitempty"`
}

// InstanceType is the type of an Instance.
var InstanceType = metav1.TypeMeta{APIVersion: Group + "/" + Version, Kind: "VirtualMachineInstance"}

// InstanceSpec is what a machine is to be.
type InstanceSpec struct {
	Domain                        Domain              `json:"domain"`
	Networks                      []Network           `json:"networks,omitempty"`
	Volumes                       []Volume            `json:"volumes,omitempty"`
	NodeSelector                  map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations                   []corev1.Toleration `json:"tolerations,omitempty"`
	PriorityClassName             string              `json:"priorityClassName,omitempty"`
	EvictionStrategy              string              `json:"evictionStrategy,omitempty"`
	TerminationGracePeriodSeconds *int64              `json:"terminationGracePeriodSeconds,omitempty"`
	ReadinessProbe                *Probe              `json:"readinessProbe,omitempty"`
}

// Probe tells a machine that is ready: who connects to its port is let in.
type Probe struct {
	TCPSocket     Port  `json:"tcpSocket"`
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
}

// Port is one of a machine's.
type Port struct {
	Port int32 `json:"port"`
}

// Domain is the hardware.
type Domain struct {
	CPU     CPU     `json:"cpu"`
	Memory  Memory  `json:"memory"`
	Devices Devices `json:"devices"`
}

// CPU is how many processors the machine has.
type CPU struct {
	Cores uint32 `json:"cores"`
}

// Memory is how much the machine has, its kernel's own included.
type Memory struct {
	Guest resource.Quantity `json:"guest"`
}

// Devices are the machine's.
type Devices struct {
	Disks      []Disk      `json:"disks"`
	Interfaces []Interface `json:"interfaces"`
	Rng        *struct{}   `json:"rng,omitempty"`
	// A machine gets these unless it is told not to.
	AutoattachGraphicsDevice *bool `json:"autoattachGraphicsDevice,omitempty"`
	AutoattachSerialConsole  *bool `json:"autoattachSerialConsole,omitempty"`
	AutoattachMemBalloon     *bool `json:"autoattachMemBalloon,omitempty"`
}

// Disk shows a volume of the same name to the machine.
type Disk struct {
	Name   string     `json:"name"`
	Serial string     `json:"serial,omitempty"`
	Disk   DiskTarget `json:"disk"`
}

// DiskTarget is how.
type DiskTarget struct {
	Bus      string `json:"bus"`
	ReadOnly bool   `json:"readonly,omitempty"`
}

// Interface shows a network of the same name to the machine.
type Interface struct {
	Name       string    `json:"name"`
	Masquerade *struct{} `json:"masquerade,omitempty"`
}

// Network is one that the machine's pod has.
type Network struct {
	Name string    `json:"name"`
	Pod  *struct{} `json:"pod,omitempty"`
}

// Volume is one of these.
type Volume struct {
	Name          string         `json:"name"`
	ContainerDisk *ContainerDisk `json:"containerDisk,omitempty"`
	Secret        *SecretVolume  `json:"secret,omitempty"`
	CloudInit     *CloudInit     `json:"cloudInitNoCloud,omitempty"`
}

// CloudInit is a disk from which cloud-init takes what to do: what the Secret has as
// userdata.
type CloudInit struct {
	Secret corev1.LocalObjectReference `json:"secretRef"`
}

// ContainerDisk is a disk out of a container image. What the machine writes is gone
// with it.
type ContainerDisk struct {
	Image           string            `json:"image"`
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	ImagePullSecret string            `json:"imagePullSecret,omitempty"`
}

// SecretVolume is a disk with the files of a Secret.
type SecretVolume struct {
	SecretName string `json:"secretName"`
}

// Phase is how far a machine is.
type Phase string

// The phases, in their order. The last two are ends.
const (
	Pending    Phase = "Pending"
	Scheduling Phase = "Scheduling" // its pod is to have a node
	Scheduled  Phase = "Scheduled"  // its node is to start it
	Running    Phase = "Running"
	Succeeded  Phase = "Succeeded" // it has gone off by itself
	Failed     Phase = "Failed"
)

// InstanceStatus is what KubeVirt says of a machine.
type InstanceStatus struct {
	Phase      Phase             `json:"phase,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	NodeName   string            `json:"nodeName,omitempty"`
	Conditions []Condition       `json:"conditions,omitempty"`
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`
	ActivePods map[string]string `json:"activePods,omitempty"`
}

// Types of conditions.
const (
	Ready        = "Ready"
	Synchronized = "Synchronized" // not, if its pod or domain could not be made
	PodScheduled = "PodScheduled" // not, while no node takes its pod
	Paused       = "Paused"
)

// Condition is something that is so, or is not.
type Condition struct {
	Type               string                 `json:"type"`
	Status             corev1.ConditionStatus `json:"status"`
	Reason             string                 `json:"reason,omitempty"`
	Message            string                 `json:"message,omitempty"`
	LastProbeTime      *metav1.Time           `json:"lastProbeTime,omitempty"`
	LastTransitionTime *metav1.Time           `json:"lastTransitionTime,omitempty"`
}

// InterfaceStatus is an interface as it is.
type InterfaceStatus struct {
	Name      string `json:"name,omitempty"`
	IPAddress string `json:"ipAddress,omitempty"`
}

// ReplicaSet is a VirtualMachineInstanceReplicaSet: it keeps so many instances that
// are not at their end.
type ReplicaSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ReplicaSetSpec    `json:"spec"`
	Status            *ReplicaSetStatus `json:"status,omitempty"`
}

// ReplicaSetSpec is how many, and which.
type ReplicaSetSpec struct {
	Replicas int32                `json:"replicas"`
	Selector metav1.LabelSelector `json:"selector"`
	Template Template             `json:"template"`
}

// Template is what the instances are made from.
type Template struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              InstanceSpec `json:"spec"`
}

// ReplicaSetStatus is how many there are.
type ReplicaSetStatus struct {
	Replicas      int32 `json:"replicas"`
	ReadyReplicas int32 `json:"readyReplicas"`
}
