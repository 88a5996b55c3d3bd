#!/usr/bin/env bash
# Shows what restarts of kubelet, device plugin and node do to pods whose containers hold an extended resource:
#   e2e/cluster/try-restarts.sh
# For each event it prints each pod's phase, and of each container whether it is the same as before. What was seen, and what
# follows from it, is in docs/measurements/kubelet-restart.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly cluster=restarts
kubectl=$(bin_folder)/kubectl
export KUBECONFIG=$base/$cluster/kubeconfig
resource='resources: {limits: {nvidia.com/gpu: 1}}'
image='image: e2e.local/busybox:1, imagePullPolicy: Never'
sleeps="command: [sh, -c, 'trap \"exit 0\" TERM; sleep 86400 & wait']"

inside() { "$here/in.sh" "$cluster" "$@"; }

# pod NAME INIT APP: what its init containers and its application have beside an image.
pod() {
    "$kubectl" apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  initContainers: [$2]
  containers: [{name: app, $image, $sleeps, $3}]
YAML
}

make_pods() {
    pod sidecar-holds "{name: sidecar, restartPolicy: Always, $image, $sleeps, $resource}" ''
    pod both-hold "{name: sidecar, restartPolicy: Always, $image, $sleeps, $resource}" "$resource"
    pod init-and-app-hold "{name: init, $image, command: ['true'], $resource}" "$resource"
    pod app-holds '' "$resource"
    pod nothing-held "{name: sidecar, restartPolicy: Always, $image, $sleeps}" ''
    "$kubectl" wait --for=condition=Ready --timeout=60s pod --all >/dev/null
}

# One line for each container: pod, phase and reason, container, its state, its id, how often it was started again.
facts() {
    "$kubectl" get pods -o json | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    status = pod["status"]
    phase = status["phase"] + (":" + status["reason"] if "reason" in status else "")
    for each in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
        state = next(iter(each["state"]))
        identity = each.get("containerID", "none")[-8:]
        print(pod["metadata"]["name"], phase, each["name"], state, identity, each["restartCount"])
    if "containerStatuses" not in status:
        print(pod["metadata"]["name"], phase, "-", "-", "none", 0)' | sort
}

# What changed since the facts in $before.
report() {
    local pod phase container state identity restarts now
    now=$(facts)
    while read -r pod phase container state identity restarts; do
        if grep -q "^$pod .* $container .* $identity " <<< "$before"; then same="same container"; else same="another container"; fi
        printf '    %-18s %-34s %-8s %-11s %-17s restarts %s\n' "$pod" "$phase" "$container" "$state" "$same" "$restarts"
    done <<< "$now"
    "$kubectl" get pods -o 'jsonpath={range .items[?(@.status.phase=="Failed")]}{.metadata.name}{": "}{.status.message}{"\n"}{end}' |
        sed 's/^/    /'
}

# A kubelet has looked at all pods again when it has written the node's status and started to sync.
kubelet_settles() {
    local since=$1
    synced() { [[ $("$kubectl" get --raw "/api/v1/nodes/$cluster/proxy/pods" 2>/dev/null | wc -c) -gt 1000 ]]; }
    wait_for 30 synced
    quiet() {
        local first
        first=$(facts)
        sleep "$since"
        [[ $(facts) == "$first" ]]
    }
    wait_for 120 quiet
}

event() {
    echo "$1"
    shift
    before=$(facts)
    "$@"
    kubelet_settles 8
    report
}

afresh() {
    "$kubectl" delete pod --all --wait --grace-period=1 >/dev/null 2>&1 || true
    empty() { [[ -z $("$kubectl" get pods -o name) ]]; }
    wait_for 30 empty
    free() { [[ $("$kubectl" get node "$cluster" -o 'jsonpath={.status.allocatable.nvidia\.com/gpu}') == 8 ]]; }
    wait_for 30 free
    make_pods
}

restart_kubelet() { inside daemons.sh stop kubelet && inside daemons.sh start kubelet; }
with_plugin_away() { inside daemons.sh stop gpus && restart_kubelet; }
plugin_comes_back() { inside daemons.sh start gpus; }
sidecars_die() { for each in sidecar-holds both-hold; do "$kubectl" exec "$each" -c sidecar -- kill 1; done; }
reboot() { "$here/down.sh" --keep "$cluster" >/dev/null && "$here/up.sh" "$cluster" >/dev/null; }

clean_up() { "$here/down.sh" "$cluster" >/dev/null 2>&1 || true; }
trap clean_up EXIT
"$here/build.sh"
"$here/images.sh"
export GPU_HANDOFF_E2E_IMAGES GPU_HANDOFF_E2E_GPUS=simulated GPU_HANDOFF_E2E_REPLICAS=2 GPU_HANDOFF_E2E_LATE=dra
GPU_HANDOFF_E2E_IMAGES=$(images_folder)
"$here/up.sh" "$cluster"

afresh
event "1. the kubelet is restarted, the device plugin goes on" restart_kubelet
event "2. a sidecar's process dies then" sidecars_die
afresh
event "3. the kubelet is restarted while the device plugin is away" with_plugin_away
event "4. a sidecar's process dies while it is away" sidecars_die
event "5. the device plugin comes back" plugin_comes_back
afresh
event "6. the node reboots, and the device plugin is there at once" reboot
afresh
GPU_HANDOFF_E2E_LATE="gpus dra"
event "7. the node reboots, and the device plugin is not there yet" reboot
event "8. the device plugin comes" plugin_comes_back
