#!/usr/bin/env bash
# Starts and stops the daemons of a node; runs inside it:
#   daemons.sh start NAME [ARGUMENT...] | stop NAME [SIGNAL]
#   daemons.sh reload   imports the images again: new pods run what images.sh has made since. (A simulated driver stays as it is.)
#   daemons.sh alive    fails if one has ended by itself
#   daemons.sh boot     starts them all; what node.sh does
# From outside: in.sh NAME daemons.sh stop kubelet
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${folder:?is set inside a node: use in.sh}" "${bin:?}" "${node_ip:?}"
cluster=$(basename "$folder")
base=${folder%/*}
name_cluster "$cluster"
read_options # also for a daemon that is started later
pki=$folder/pki kubeconfig=$folder/kubeconfig
readonly daemon_ends_within_s=30
simulated=/run/simcuda gpus=${GPU_HANDOFF_E2E_GPUS:-none}

# ---- what each is started with ----

command_of() {
    local machine=(--simulated="$simulated")
    [[ $gpus != real ]] || machine=(--driver="${GPU_HANDOFF_E2E_DRIVER:-/usr/local/nvidia/lib64}")
    case $1 in
    containerd) command=(containerd --config "$folder/containerd.toml") ;;
    etcd) command=(etcd --data-dir /var/lib/etcd) ;;
    apiserver)
        command=(kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --secure-port="$api_port"
            --advertise-address="$node_ip" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key"
            --token-auth-file="$pki/tokens.csv" --authorization-mode=RBAC --service-cluster-ip-range="$services"
            --service-account-key-file="$pki/sa.pub" --service-account-signing-key-file="$pki/sa.key"
            --service-account-issuer=https://kubernetes.default.svc --allow-privileged=true
            --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key"
            --kubelet-preferred-address-types=InternalIP --endpoint-reconciler-type=none
            --enable-aggregator-routing=true) # webhooks are called at their pods' addresses: there is no kube-proxy
        read -ra more <<< "${GPU_HANDOFF_E2E_APISERVER_ARGS:-}"
        ;;
    scheduler)
        command=(kube-scheduler --kubeconfig="$kubeconfig" --bind-address=127.0.0.1 --leader-elect=false)
        ;;
    manager)
        command=(kube-controller-manager --kubeconfig="$kubeconfig" --bind-address=127.0.0.1 --leader-elect=false
            --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --use-service-account-credentials
            --flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins) # it would make one below /usr
        ;;
    kubelet)
        command=(kubelet --config="$folder/kubelet.yaml" --kubeconfig="$kubeconfig" --hostname-override="$cluster"
            --node-ip="$node_ip" --v=2)
        read -ra more <<< "${GPU_HANDOFF_E2E_KUBELET_ARGS:-}"
        ;;
    gpus)
        command=(gpu-device-plugin "${machine[@]}" --replicas="${GPU_HANDOFF_E2E_REPLICAS:-1}")
        ;;
    dra)
        command=(gpu-dra-driver "${machine[@]}" --kubeconfig="$kubeconfig" --node="$cluster")
        ;;
    csi) command=(slot-csi-driver --node="$cluster") ;;
    *) fail "there is no daemon $1" ;;
    esac
}

# When a process was started, on the kernel's clock: with its number it names it, also when the number is used again. Nothing of one
# that has ended, though nobody has asked for its status yet.
started_at() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    read -ra stat <<< "${stat##*) }"
    [[ ${stat[0]} == Z ]] || echo "${stat[19]}"
}

# alive NAME: whether it runs; $pid is the number that it had.
alive() {
    local started
    read -r pid started < "/run/daemons/$1" && [[ -n $started && $(started_at "$pid") == "$started" ]]
}

last_words() { tail -n 3 "$folder/log/$1.log"; }

all_alive() {
    local each pid
    for each in /run/daemons/*; do
        each=${each##*/}
        alive "$each" || fail "$each has ended: $(last_words "$each")"
    done
}

# start NAME [ARGUMENT...]: further arguments win over the usual ones.
start() {
    local command=() more=() pid
    command_of "$1"
    [[ ! -e /run/daemons/$1 ]] || ! alive "$1" || fail "$1 runs already"
    setsid "${command[@]}" "${more[@]}" "${@:2}" >> "$folder/log/$1.log" 2>&1 < /dev/null &
    echo "$! $(started_at $!)" > "/run/daemons/$1"
}

stop() {
    local pid
    [[ -e /run/daemons/$1 ]] || fail "$1 was not started"
    if ! alive "$1"; then
        rm "/run/daemons/$1"
        fail "$1 had ended by itself: $(last_words "$1")"
    fi
    kill "-${2:-TERM}" "$pid"
    gone() { ! alive "$1"; }
    wait_for "$daemon_ends_within_s" gone "$1" || fail "$1 did not end within $daemon_ends_within_s s"
    rm "/run/daemons/$1"
}

# The machine is made by the first program that starts its driver. Everybody may use it, as with the real device nodes.
make_simulated_machine() {
    local given=$folder/images/simcuda settings
    read -ra settings <<< "${GPU_HANDOFF_E2E_SIMCUDA:-SIMCUDA_GPUS=4 SIMCUDA_P2P=0-1,2-3 SIMCUDA_MEMORY_MIB=65536}"
    mkdir -p "$simulated"/{machine,driver}
    chmod 777 "$simulated/machine"
    cp "$given/libcuda.so.1" "$simulated/driver/"
    env "${settings[@]}" SIMCUDA_DIR="$simulated/machine" LD_LIBRARY_PATH="$simulated/driver" \
        timeout --foreground "$command_within_s" "$given/gpu-handoff-plugin" gpu-survey > "$simulated/survey.json"
}

start_gpus() {
    case $gpus in
    none) return ;;
    simulated) make_simulated_machine ;;
    real) ;;
    esac
    local each
    for each in gpus dra; do
        [[ " ${GPU_HANDOFF_E2E_LATE:-} " == *" $each "* ]] || start "$each"
    done
}

import_images() {
    local image
    for image in "$bin"/*.tar "$folder"/images/*.tar; do
        if [[ -f $image ]]; then timeout --foreground "$command_within_s" ctr -n k8s.io image import "$image" >/dev/null; fi
    done
    # The scenarios compare it with what lies there.
    if [[ -f $folder/images/id ]]; then cp "$folder/images/id" "$folder/imported"; fi
}

boot() {
    start containerd
    start etcd
    start apiserver
    answers() { ctr version >/dev/null 2>&1; }
    wait_for 20 answers || fail "containerd does not answer"
    import_images
    await-cluster --kubeconfig "$kubeconfig" --timeout "${ready_within_s}s"
    start scheduler
    start manager
    start kubelet
    start_gpus
    all_alive
}

if [[ ${1:-} == st* && -z ${2:-} ]]; then set --; fi
case ${1:-} in
boot) boot ;;
start) start "${@:2}" ;;
stop) stop "$2" "${3:-}" ;;
reload) import_images ;;
alive) all_alive ;;
*) fail "daemons.sh start NAME [ARGUMENT...] | stop NAME [SIGNAL] | reload | alive | boot" ;;
esac
