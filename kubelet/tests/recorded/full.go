//go:build ignore

// Writes full.pb and full.json beside this file: a pod with everything that is read of one, marshalled by Kubernetes' own type.
// go run -C e2e/cluster/node "$PWD/kubelet/tests/recorded/full.go" "$PWD/kubelet/tests/recorded"
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func main() {
	always := v1.ContainerRestartPolicyAlways
	deleted := metav1.NewTime(time.Unix(1900000000, 0).UTC())
	status := func(name, id string, restarts int32) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, ContainerID: id, RestartCount: restarts, Image: "image", ImageID: "sha256:1"}
	}
	pod := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "full", Namespace: "tests", UID: "11111111-2222-4333-8444-555555555555", ResourceVersion: "7", Generation: 2,
			CreationTimestamp: deleted, DeletionTimestamp: &deleted,
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"gpu-handoff.io/group": "g", "other/key": "x"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "1"}}, Finalizers: []string{"one/two"},
		},
		Spec: v1.PodSpec{
			NodeName: "node", ServiceAccountName: "builder", HostNetwork: true, HostPID: true, HostIPC: true,
			Volumes:        []v1.Volume{{Name: "v"}},
			InitContainers: []v1.Container{{Name: "setup", Image: "image"}, {Name: "side", RestartPolicy: &always}},
			Containers:     []v1.Container{{Name: "app", Image: "image", Command: []string{"run"}}, {Name: "second"}},
			EphemeralContainers: []v1.EphemeralContainer{
				{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "image"}, TargetContainerName: "app"},
			},
		},
		Status: v1.PodStatus{
			Phase: v1.PodFailed, Reason: "Evicted", Message: "too much memory", QOSClass: v1.PodQOSBurstable, PodIP: "10.0.0.1",
			Conditions:                 []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}, {Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet}},
			InitContainerStatuses:      []v1.ContainerStatus{status("setup", "containerd://5e", 0), status("side", "containerd://51", 4)},
			ContainerStatuses:          []v1.ContainerStatus{status("app", "cri-o://a0", 3), status("second", "", 0)},
			EphemeralContainerStatuses: []v1.ContainerStatus{status("debug", "containerd://de", 0)},
		},
	}
	bytes, err := pod.Marshal()
	write("full.pb", bytes, err)
	bytes, err = json.MarshalIndent(pod, "", " ")
	write("full.json", bytes, err)
}

func write(name string, bytes []byte, err error) {
	if err == nil {
		err = os.WriteFile(filepath.Join(os.Args[1], name), bytes, 0o644)
	}
	if err != nil {
		panic(err)
	}
}
