#!/usr/bin/env bash
# Starts a cluster of one node and waits until it is ready: e2e/cluster/up.sh [NAME]
# After `down.sh --keep NAME` it starts that node again, as after a reboot. NAME is e2e where none is given.
#
# | variable GPU_HANDOFF_E2E_… | meaning | default |
# |---|---|---|
# | IMAGES | a folder with images (*.tar) to import, as images.sh makes it | none |
# | GPUS | `none`, `simulated` (needs IMAGES) or `real`: what nvidia.com/gpu and ResourceClaims hand out | none |
# | SIMCUDA | the simulated machine: simcuda's variables | four GPUs, of which 0 and 1, 2 and 3 reach each other |
# | LATE | `gpus`, `dra` or both: not started with the node, but by hand (daemons.sh start) | none |
# | REPLICAS | devices for each GPU (time-slicing) | 1 |
# | DRIVER | where the real driver's libraries are | /usr/local/nvidia/lib64 |
# | APISERVER_ARGS, KUBELET_ARGS | further arguments | none |
# | DIR, NETWORK, BIN | where clusters live, their network, the node's programs: lib.sh | |
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$here/configure.sh"
begin=$(date +%s%3N)
name_cluster "${1:-}"
"$here/preflight.sh" run
# A node that starts again has the programs that it had.
bin=$(cat "$folder/bin" 2>/dev/null) || bin=$(bin_folder)
[[ -e $bin/complete ]] || fail "the node's programs are not built in this state: $here/build.sh"
[[ -z $(processes) ]] || fail "cluster $name runs already: $here/down.sh $name"

# Takes the first index that no cluster of this machine has; a node that starts again has its old address.
claim_index() {
    exec 8< "$base"
    flock 8
    if [[ -f $folder/index ]]; then
        index=$(cat "$folder/index")
        exec 8>&-
        return
    fi
    for ((index = 1; index <= most_clusters; index++)); do
        if ! grep -qsx "$index" "$base"/*/index && [[ -z $(ip -4 addr show to "$network.$index.0/24") ]]; then
            echo "$index" > "$folder/index"
            exec 8>&-
            return
        fi
    done
    fail "all $most_clusters addresses in $network are taken: stop a cluster, or set GPU_HANDOFF_E2E_NETWORK to another network"
}

make_cgroup() {
    local controller one file
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        mkdir -p "/sys/fs/cgroup/$cgroup/node"
        for controller in cpu cpuset memory pids; do
            for one in "" "/$cgroup"; do
                grep -qw "$controller" "/sys/fs/cgroup$one/cgroup.subtree_control" ||
                    echo "+$controller" > "/sys/fs/cgroup$one/cgroup.subtree_control" ||
                    fail "cannot hand the cgroup controller $controller on below /sys/fs/cgroup$one: in a container, use --cgroupns=host"
            done
        done
        for one in hugetlb io; do # where there are any
            echo "+$one" > /sys/fs/cgroup/cgroup.subtree_control && echo "+$one" > "/sys/fs/cgroup/$cgroup/cgroup.subtree_control"
        done 2>/dev/null || true
        tracker=/sys/fs/cgroup/$cgroup/node
        return
    fi
    for one in /sys/fs/cgroup/*/; do
        mkdir -p "$one$cgroup" 2>/dev/null || true
        for file in cpuset.cpus cpuset.mems; do
            if [[ -f $one$file ]]; then cat "$one$file" > "$one$cgroup/$file"; fi
        done
    done
    # Version 1: one hierarchy is enough to know whose processes they are.
    tracker=/sys/fs/cgroup/pids/$cgroup/node
    mkdir -p "$tracker"
}

# The node: a process that is the first of PID, mount and network namespaces of its own, and all that it starts.
start_node() {
    local outer init
    (
        echo "$BASHPID" > "$tracker/cgroup.procs"
        exec setsid unshare --mount --net --pid --fork --kill-child=KILL --mount-proc --propagation private \
            "$here/node.sh" "$folder" "$bin" "$node_ip" "$host_ip" "$boot_id" > "$folder/log/node.log" 2>&1 < /dev/null
    ) &
    outer=$!
    # Not every kernel lists a process's children.
    child() {
        init=$(grep -ls "^PPid:[[:space:]]*$outer\$" /proc/[0-9]*/status | head -n 1 | cut -d / -f 3)
        [[ -n $init ]]
    }
    wait_for 5 child || fail "the node's first process did not start: $(cat "$folder/log/node.log")"
    echo "$init" > "$init_file"
    readlink "/proc/$init/ns/net" > "$folder/network-namespace"
    ip link add "$link" type veth peer name eth0 netns "$init"
    ip addr add "$host_ip/30" dev "$link"
    ip link set "$link" up
    ip route add "$pods" via "$node_ip" dev "$link"
}

undo() {
    trap - ERR EXIT
    echo "up.sh: cluster $name did not start; the logs are in $folder/log" >&2
    tail -n 5 "$folder"/log/node.log >&2 || true
    "$here/down.sh" --keep "$name" >&2
    exit 1
}

mkdir -p "$folder"/{log,pki,cni,var-lib,var-log}
chmod 700 "$folder"
trap undo ERR EXIT
claim_index
host_ip=$network.$index.1 node_ip=$network.$index.2 pods=$network.$index.128/25
boot_id=$(cat /proc/sys/kernel/random/uuid)
# A node that starts again keeps what it was told before, unless it is told something now.
options=("${!GPU_HANDOFF_E2E_@}")
if ((${#options[@]} > 0)); then declare -p "${options[@]}" > "$folder/options"; else touch "$folder/options"; fi
[[ -z ${GPU_HANDOFF_E2E_IMAGES:-} ]] || [[ -d $GPU_HANDOFF_E2E_IMAGES ]] ||
    fail "there is no folder $GPU_HANDOFF_E2E_IMAGES: $here/images.sh makes the images"
[[ -z ${GPU_HANDOFF_E2E_IMAGES:-} ]] || ln -sfn "$(realpath "$GPU_HANDOFF_E2E_IMAGES")" "$folder/images"
echo "$bin" > "$folder/bin"
[[ -f $folder/pki/tokens.csv ]] || write_keys
write_kubeconfig
write_containerd
write_kubelet
make_cgroup
start_node
"$here/in.sh" "$name" await-cluster --kubeconfig "$folder/kubeconfig" --node "$name" --boot-id "$boot_id" \
    --timeout "${ready_within_s}s"
trap - ERR EXIT
echo "cluster $name is ready after $(since "$begin"): export KUBECONFIG=$folder/kubeconfig"
