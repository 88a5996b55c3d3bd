#!/usr/bin/env bash
# Runs the scenarios on a cluster of their own: e2e/cluster/run.sh [ARGUMENT of the tests...]
# Builds what is missing, makes the images, starts the cluster with simulated GPUs, and stops it in the end.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Passes on what the scenarios write, and tells when the first result came.
tell_first() {
    local line told=
    while IFS= read -r line; do
        echo "$line"
        if [[ -z $told && $line =~ ^test\ .*\ (ok|FAILED)$ ]]; then
            told=yes
            echo "scenarios: the first result came $(since "$begin") after the cluster's start began"
        fi
    done
}

name_cluster "${GPU_HANDOFF_E2E_NAME:-scenarios}"
"$here/build.sh"
"$here/images.sh"
cargo build --manifest-path "$here/../../Cargo.toml" -p gpu-handoff-e2e --test cluster
stop() { "$here/down.sh" "$name"; }
trap stop EXIT
begin=$(date +%s%3N)
# More replicas than all scenarios at a time ask for, so that none waits for another's end.
GPU_HANDOFF_E2E_IMAGES=$(images_folder) GPU_HANDOFF_E2E_GPUS=${GPU_HANDOFF_E2E_GPUS:-simulated} \
    GPU_HANDOFF_E2E_REPLICAS=${GPU_HANDOFF_E2E_REPLICAS:-16} "$here/up.sh" "$name"
# KUBECONFIG is good on this machine as it is; the folder has the logs and, below var-lib, the node's disk.
KUBECONFIG=$folder/kubeconfig GPU_HANDOFF_CLUSTER=$folder \
    cargo test --manifest-path "$here/../../Cargo.toml" -p gpu-handoff-e2e --test cluster -- "$@" | tell_first
