#!/usr/bin/env bash
# Starts and stops the daemons of a node; runs inside it: daemons.sh boot | start NAME [ARGUMENT...] | stop NAME [SIGNAL]
# From outside: in.sh NAME daemons.sh stop kubelet
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${folder:?is set inside a node: use in.sh}" "${bin:?}" "${node_ip:?}"
cluster=$(basename "$folder")
# What the cluster was started with, also for a daemon that is started later.
# shellcheck source=/dev/null
source "$folder/options"
pki=$folder/pki kubeconfig=$folder/kubeconfig
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
            --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --use-service-account-credentials)
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

# start NAME [ARGUMENT...]: further arguments win over the usual ones.
start() {
    local command=() more=()
    command_of "$1"
    setsid "${command[@]}" "${more[@]}" "${@:2}" >> "$folder/log/$1.log" 2>&1 < /dev/null &
    echo $! > "/run/daemons/$1"
}

stop() {
    local pid
    pid=$(cat "/run/daemons/$1") || fail "$1 was not started"
    kill "-${2:-TERM}" "$pid"
    gone() { ! kill -0 "$pid" 2>/dev/null; }
    wait_for 30 gone || fail "$1 did not end within 30 s"
    rm "/run/daemons/$1"
}

# The machine is made by the first program that starts its driver. Everybody may use it, as with the real device nodes.
make_simulated_machine() {
    local given=$folder/images/simcuda settings
    [[ -f $given/libcuda.so.1 ]] || fail "there is no $given/libcuda.so.1: images.sh makes it"
    read -ra settings <<< "${GPU_HANDOFF_E2E_SIMCUDA:-SIMCUDA_GPUS=4 SIMCUDA_P2P=0-1,2-3 SIMCUDA_MEMORY_MIB=65536}"
    mkdir -p "$simulated"/{machine,driver}
    chmod 777 "$simulated/machine"
    cp "$given/libcuda.so.1" "$simulated/driver/"
    env "${settings[@]}" SIMCUDA_DIR="$simulated/machine" LD_LIBRARY_PATH="$simulated/driver" \
        "$given/gpu-handoff-plugin" gpu-survey > "$simulated/survey.json"
}

start_gpus() {
    case $gpus in
    none) return ;;
    simulated) make_simulated_machine ;;
    real) ;;
    *) fail "GPU_HANDOFF_E2E_GPUS is none, simulated or real, not $gpus" ;;
    esac
    local each
    for each in gpus dra; do
        [[ " ${GPU_HANDOFF_E2E_LATE:-} " == *" $each "* ]] || start "$each"
    done
}

boot() {
    local image
    start containerd
    start etcd
    start apiserver
    answers() { ctr version >/dev/null 2>&1; }
    wait_for 20 answers || fail "containerd does not answer"
    for image in "$bin"/*.tar "$folder"/images/*.tar; do
        if [[ -f $image ]]; then ctr -n k8s.io image import "$image" >/dev/null; fi
    done
    await-cluster --kubeconfig "$kubeconfig" --timeout "${ready_within_s}s"
    start scheduler
    start manager
    start kubelet
    start_gpus
}

case ${1:-} in
boot) boot ;;
start) start "${@:2}" ;;
stop) stop "$2" "${3:-}" ;;
*) fail "daemons.sh boot | start NAME [ARGUMENT...] | stop NAME [SIGNAL]" ;;
esac
