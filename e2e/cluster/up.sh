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
# | NETWORK | the first two numbers of its addresses | 10.199 |
# | READY_S | fails if it takes longer | no limit |
# | DIR, BIN | where clusters live, the node's programs: lib.sh | |
#
# A node that starts again has the programs that it had, and what it was told before where it is told nothing now (but for DIR).
# A start that fails takes everything away again but its logs: they stay in DIR/NAME.failed until one by that name succeeds.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$here/configure.sh"
begin=$(date +%s%3N)
if (($# > 1)) || [[ ${1:-} == -* ]]; then fail "up.sh [NAME]; the variables that it reads stand at the head of $here/up.sh"; fi
name_cluster "${1:-}"
"$here/preflight.sh" run
again=
host_ip='' node_ip='' pods=''

# One cluster at a time takes its name and its address, until they show: in processes of its cgroup, and in its link.
lock_machine() {
    mkdir -p "$locks"
    exec 8> "$locks/machine"
    flock --timeout "$locked_within_s" 8 || fail "another cluster has been starting for more than $locked_within_s s"
}

# A folder is that of a node that starts again if the node was ready once. Anything else is left of a start that was killed.
take_folder() {
    [[ -z $(processes) ]] || fail "cluster $name runs already: $here/down.sh $name"
    if [[ -e $folder/was-ready ]]; then
        again=yes
        bin=$(cat "$folder/bin")
    else
        [[ ! -e $folder ]] || "$here/down.sh" "$name"
        bin=$(bin_folder)
    fi
    [[ -e $bin/complete ]] || fail "the node's programs are not built in this state: $here/build.sh"
}

# Each option that is given now, and each other one that was given before.
take_options() {
    local option now
    now=$(tell_options)
    if [[ -n $again ]]; then read_options; fi
    eval "$now"
    option=${GPU_HANDOFF_E2E_GPUS:-none}
    [[ $option =~ ^(none|simulated|real)$ ]] || fail "GPU_HANDOFF_E2E_GPUS is none, simulated or real, not $option"
    option=${GPU_HANDOFF_E2E_IMAGES:-}
    [[ -z $option || -d $option ]] || fail "there is no folder $option: $here/images.sh makes the images"
    [[ ${GPU_HANDOFF_E2E_GPUS:-none} != simulated || -f $option/simcuda/libcuda.so.1 ]] ||
        fail "there is no driver for simulated GPUs (GPU_HANDOFF_E2E_IMAGES): $here/images.sh makes it"
    network=${GPU_HANDOFF_E2E_NETWORK:-10.199}
}

# As the shell reads them.
tell_options() {
    local option
    for option in "${option_names[@]/#/GPU_HANDOFF_E2E_}"; do
        [[ ! -v $option ]] || printf 'export %s=%q\n' "$option" "${!option}"
    done
}

taken() { [[ -n $(ip -4 addr show to "$network.$1.0/24") ]]; }

# Takes the first address that no cluster of this machine has; a node that starts again has its old one, which is in its certificates.
take_address() {
    local index
    if [[ -n $again ]]; then
        index=$(cat "$folder/index")
        ! taken "$index" || fail "$network.$index.0/24 is another's meanwhile: stop that, or start this node afresh (down.sh $name)"
    else
        for ((index = 1; index <= most_clusters; index++)); do
            grep -qsx "$index" "$base"/*/index || taken "$index" || break
        done
        ((index <= most_clusters)) ||
            fail "all $most_clusters addresses in $network are taken: stop a cluster, or set GPU_HANDOFF_E2E_NETWORK to another network"
        echo "$index" > "$folder/index"
    fi
    host_ip=$network.$index.1 node_ip=$network.$index.2 pods=$network.$index.128/25
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
            "$here/node.sh" "$folder" "$bin" "$node_ip" "$host_ip" "$boot_id" > "$folder/log/node.log" 2>&1 < /dev/null 7>&- 8>&-
    ) &
    outer=$!
    disown # its end is nothing to tell
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
    exec 8>&-
    echo "up.sh: cluster $name did not start" >&2
    tail -n 5 "$folder"/log/node.log >&2 || true
    "$here/in.sh" "$name" daemons.sh alive 2>&1 | tail -n 4 >&2 || true
    "$here/down.sh" --keep "$name" >&2
    logs=$folder/log
    if [[ -z $again ]]; then
        logs=$folder.failed
        rm -rf "$logs"
        mv "$folder/log" "$logs"
        rm -rf "$folder"
    fi
    echo "up.sh: the logs are in $logs" >&2
    exit 1
}

lock_machine
take_folder
take_options
trap undo ERR EXIT
mkdir -p "$folder"/{log,pki,cni,static-pods,var-lib,var-log}
chmod 700 "$folder"
take_address
boot_id=$(cat /proc/sys/kernel/random/uuid)
tell_options > "$folder/options"
[[ -z ${GPU_HANDOFF_E2E_IMAGES:-} ]] || ln -sfn "$(realpath --no-symlinks "$GPU_HANDOFF_E2E_IMAGES")" "$folder/images"
echo "$bin" > "$folder/bin"
[[ -n $again ]] || write_keys
write_kubeconfig
write_containerd
write_kubelet
make_cgroup
start_node
exec 8>&-
"$here/in.sh" "$name" await-cluster --kubeconfig "$folder/kubeconfig" --node "$name" --boot-id "$boot_id" \
    --timeout "${ready_within_s}s"
booted() { [[ -e /proc/$(cat "$init_file")/root/run/booted ]]; }
wait_for "$ready_within_s" booted || fail "the node's start has not ended within $ready_within_s s: $(tail -n 3 "$folder/log/node.log")"
"$here/in.sh" "$name" daemons.sh alive
touch "$folder/was-ready"
rm -rf "$folder.failed"
trap - ERR EXIT
at_most "${GPU_HANDOFF_E2E_READY_S:-}" "$begin" "the start"
echo "cluster $name is ready after $(since "$begin") with $bin: export KUBECONFIG=$folder/kubeconfig"
