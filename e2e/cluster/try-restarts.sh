#!/usr/bin/env bash
# Shows what restarts of kubelet, plugins and node do to pods whose sidecars (restartable init containers) hold a device, a
# share of a claim, or an inline CSI volume: e2e/cluster/try-restarts.sh
# For each event it prints each pod's phase, and of each container whether it is the same as before and runs. What was seen, and what
# follows from it, is in docs/measurements/kubelet-restart.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly settled_within_s=120
still_s=8 patience_s=0
"$here/preflight.sh" run
take_name restarts
"$here/build.sh"
"$here/images.sh"
use_kubectl
resource='resources: {limits: {nvidia.com/gpu: 1}}'
image='image: e2e.local/busybox:1, imagePullPolicy: Never'
sleeps="command: [sh, -c, 'trap \"exit 0\" TERM; sleep 86400 & wait']"

inside() { timeout --foreground "$command_within_s" "$here/in.sh" "$name" "$@"; }
k() { timeout --foreground "$command_within_s" "$kubectl" "$@"; }

# pod NAME INIT APP [SPEC]: what its init containers and its application have beside an image, and the pod.
pod() {
    k apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  ${4:-}
  initContainers: [$2]
  containers: [{name: app, $image, $sleeps, $3}]
YAML
}

make_kinds() {
    k apply -f - >/dev/null <<'YAML'
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: slot}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: slots.e2e.local}
spec: {attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Ephemeral]}
YAML
}

make_pods() {
    pod sidecar-holds "{name: sidecar, restartPolicy: Always, $image, $sleeps, $resource}" ''
    pod both-hold "{name: sidecar, restartPolicy: Always, $image, $sleeps, $resource}" "$resource"
    pod init-and-app-hold "{name: init, $image, command: ['true'], $resource}" "$resource"
    pod app-holds '' "$resource"
    pod claim-held "{name: sidecar, restartPolicy: Always, $image, $sleeps, resources: {claims: [{name: slot}]}}" '' \
        'resourceClaims: [{name: slot, resourceClaimName: slot}]'
    pod volume-held "{name: sidecar, restartPolicy: Always, $image, $sleeps, volumeMounts: [{name: slot, mountPath: /slot}]}" '' \
        'volumes: [{name: slot, csi: {driver: slots.e2e.local}}]'
    pod nothing-held "{name: sidecar, restartPolicy: Always, $image, $sleeps}" ''
    k wait --for=condition=Ready --timeout=50s pod --all >/dev/null
}

# What is said of each pod, as JSON: phase, reason, and of each container its state and identity.
facts() {
    k get pods -o json | python3 -c '
import json, sys
pods = {}
for pod in json.load(sys.stdin)["items"]:
    status = pod["status"]
    containers = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    pods[pod["metadata"]["name"]] = {
        "phase": " ".join(filter(None, [status["phase"], status.get("reason")])),
        "containers": {c["name"]: [next(iter(c["state"])), c.get("containerID", "")] for c in containers},
    }
print(json.dumps(pods))'
}

# One line for each pod: what became of its containers since the facts in $before.
report() {
    python3 -c '
import json, sys
before, now = (json.loads(text) for text in sys.argv[1:])
for name, pod in sorted(now.items()):
    words = []
    for container, (state, identity) in pod["containers"].items():
        same = before[name]["containers"].get(container, [None, None])[1] == identity
        if container != "init":
            words.append(f"{container} {'"'same'"' if same else '"'new'"'}, {state}")
    print(f"    {name:18} {pod['"'phase'"']:33} {'"'; '"'.join(words) or '"'no container'"'}")' "$before" "$(facts)"
}

# Nothing changes any more: not for as long as $still_s, which is longer than the kubelet's usual steps.
settles() {
    quiet() {
        local first
        first=$(facts)
        sleep "$still_s"
        [[ $(facts) == "$first" ]]
    }
    wait_for "$settled_within_s" quiet || fail "the pods do not come to rest within $settled_within_s s: $(facts)"
}

# In every pod that has not ended, all containers run. (Conditions do not tell: they stay as they were while the kubelet waits for a
# volume or a claim.) What it could not do it tries again after up to two minutes.
recovered() {
    python3 -c '
import json, sys
for pod in json.loads(sys.argv[1]).values():
    if pod["phase"] in ("Running", "Pending"):
        for name, (state, _) in pod["containers"].items():
            if name != "init" and state != "running":
                sys.exit(1)' "$(facts)"
}

# event TEXT COMMAND...: what happens, and what is seen then.
event() {
    local begin
    echo "$1"
    shift
    before=$(facts)
    "$@"
    begin=$(date +%s)
    settles
    if ((patience_s > 0)) && wait_for "$patience_s" recovered; then
        echo "    (all that had not ended ran within $(($(date +%s) - begin)) s)"
    fi
    report
}

afresh() {
    k delete pod --all --wait --timeout=30s --grace-period=1 >/dev/null 2>&1 || true
    empty() { [[ -z $(k get pods -o name) ]]; }
    wait_for 30 empty || fail "pods are still there: $(k get pods)"
    free() { [[ $(k get node "$name" -o 'jsonpath={.status.allocatable.nvidia\.com/gpu}') == 8 ]]; }
    wait_for 30 free || fail "the node does not offer 8 devices: $(k get node "$name" -o 'jsonpath={.status.allocatable}')"
    make_pods
}

kubelet_goes() { inside daemons.sh stop kubelet; }
kubelet_comes() { inside daemons.sh start kubelet; }
plugins_go() { for each in gpus dra csi; do inside daemons.sh stop "$each"; done; }
plugins_come() {
    inside daemons.sh start gpus
    inside daemons.sh start dra
    inside daemons.sh start csi
}
sidecars_die() {
    k get pods -o 'jsonpath={range .items[*]}{.status.initContainerStatuses[?(@.name=="sidecar")].containerID}{"\n"}{end}' |
        while IFS=/ read -r _ _ identity; do
            [[ -z $identity ]] || inside ctr -n k8s.io task kill -s KILL "$identity" < /dev/null 2>/dev/null
        done
}
reboot() {
    "$here/down.sh" --keep "$name" >/dev/null
    "$here/up.sh" "$name" >/dev/null
}
# Device plugin and DRA driver start with the kubelet. That they are in time lies in how often they try: every 20 ms.
reboot_with_plugins() {
    GPU_HANDOFF_E2E_LATE='' reboot
    inside daemons.sh start csi
}
all() { for each in "$@"; do "$each"; done; }

stop() { "$here/down.sh" "$name" >/dev/null; }
stop # what a run that was killed has left
trap stop EXIT
# Plugins are started by hand, so that it is known when.
export GPU_HANDOFF_E2E_IMAGES GPU_HANDOFF_E2E_GPUS=simulated GPU_HANDOFF_E2E_REPLICAS=2 GPU_HANDOFF_E2E_LATE="gpus dra"
GPU_HANDOFF_E2E_IMAGES=$(images_folder)
"$here/up.sh" "$name"
plugins_come
make_kinds

afresh
event "1. the kubelet is restarted, the plugins go on" all kubelet_goes kubelet_comes
event "2. the sidecars die then" sidecars_die
afresh
event "3. the kubelet is restarted while the plugins are away" all plugins_go kubelet_goes kubelet_comes
event "4. the sidecars die while they are away" sidecars_die
patience_s=180 still_s=25 event "5. the plugins come back" plugins_come
afresh
event "6. the sidecars die while the kubelet is restarted, the plugins go on" all kubelet_goes sidecars_die kubelet_comes
afresh
event "7. the sidecars die while the kubelet is restarted and the plugins are away" all plugins_go kubelet_goes sidecars_die kubelet_comes
patience_s=180 still_s=25 event "8. the plugins come back" plugins_come
afresh
event "9. the node reboots, and the plugins start with the kubelet" reboot_with_plugins
afresh
event "10. the node reboots, and the plugins come as soon as the node is ready" all reboot plugins_come
afresh
event "11. the node reboots, and the plugins are not there yet" reboot
patience_s=180 still_s=25 event "12. the plugins come" plugins_come
