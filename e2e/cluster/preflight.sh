#!/usr/bin/env bash
# Says what is missing here for building the node's programs, or for running a cluster: e2e/cluster/preflight.sh [build|run]
# Every line it prints is something to do; it ends with 1 if there is one, and with 2 if it lies in what this machine is: who is not
# root here, or has no cgroups, can install nothing that helps.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly build_memory_mib=4000 cold_build_disk_mib=9000 build_disk_mib=2000 run_memory_mib=1500 run_disk_mib=1000
missing=0

problem() {
    echo "cluster preflight: $*" >&2
    ((missing == 2)) || missing=1
}

nature() {
    echo "cluster preflight: $*" >&2
    missing=2
}

# The first existing folder at or above a path.
existing() {
    local path=$1
    while [[ ! -d $path ]]; do path=$(dirname "$path"); done
    echo "$path"
}

memory() {
    local available
    available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    ((available >= $1)) ||
        problem "$available MiB of memory are free, and it takes $1: end something, or use a larger machine"
}

disk() {
    local place available
    place=$(existing "$2")
    available=$(df --output=avail -m "$place" | tail -n 1)
    ((available >= $1)) ||
        problem "$((available)) MiB are free in $place, and it takes $1: make room, or point $3 elsewhere"
}

debian() {
    local missing_packages=() pair
    for pair in "$@"; do
        [[ -e ${pair%%=*} ]] || command -v "${pair%%=*}" >/dev/null || missing_packages+=("${pair#*=}")
    done
    ((${#missing_packages[@]} == 0)) ||
        problem "programs are missing: apt-get install --no-install-recommends ${missing_packages[*]}"
}

check_build() {
    local bin folder disk_mib=$cold_build_disk_mib
    bin=$(bin_folder)
    [[ ! -e $bin/complete ]] || return 0
    debian cc=gcc runc=runc /usr/lib/cni/bridge=containernetworking-plugins busybox=busybox-static
    (cd "$here/node" && "$here/go.sh" version >/dev/null) ||
        problem "Go is missing (apt-get install --no-install-recommends golang-go, or https://go.dev/dl), or cannot be brought up to the version in $here/node/go.mod"
    folder=$("$here/go.sh" env GOCACHE 2>/dev/null) || folder=$cache
    memory "$build_memory_mib"
    [[ -z $(find "$folder" -mindepth 2 -print -quit 2>/dev/null) ]] || disk_mib=$build_disk_mib
    disk "$disk_mib" "$folder" "GOCACHE, GOMODCACHE and XDG_CACHE_HOME"
}

check_run() {
    local kind
    [[ $(id -u) == 0 ]] || nature "only root starts a cluster: it makes namespaces, mounts and cgroups (sudo -E ...)"
    debian ip=iproute2 nsenter=util-linux openssl=openssl python3=python3
    if [[ ! -f /sys/fs/cgroup/cgroup.controllers && ! -d /sys/fs/cgroup/memory ]]; then
        nature "there are no cgroups in /sys/fs/cgroup: mount cgroup2 there, or the controllers of version 1 below it"
    elif [[ ! -w /sys/fs/cgroup ]]; then
        nature "/sys/fs/cgroup cannot be written: in a container, start it with --privileged --cgroupns=host"
    fi
    kind=$(stat -f -c %T "$(existing "$base")")
    [[ $kind != overlayfs ]] ||
        problem "$base is on overlayfs, on which containers' own overlays cannot lie: point GPU_HANDOFF_E2E_DIR at ext4, xfs or tmpfs"
    case $(realpath -m "$base") in
    /run/* | /dev/* | /var/lib/* | /var/log/* | /proc/* | /sys/*)
        problem "$base is in a folder that each node has of its own: point GPU_HANDOFF_E2E_DIR elsewhere, such as /var/tmp"
        ;;
    esac
    memory "$run_memory_mib"
    disk "$run_disk_mib" "$base" GPU_HANDOFF_E2E_DIR
}

case ${1:-all} in
build) check_build ;;
run) check_run ;;
all) check_build && check_run ;;
*) fail "preflight.sh [build|run]" ;;
esac
((missing == 0)) || exit "$missing"
[[ ${1:-all} != all ]] || echo "cluster preflight: nothing is missing"
