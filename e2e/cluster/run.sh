#!/usr/bin/env bash
# Runs the scenarios on a cluster of their own: e2e/cluster/run.sh [ARGUMENT of the tests...]
# Builds what is missing, makes the images, starts the cluster with simulated GPUs, and stops it in the end.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
name_cluster "${GPU_HANDOFF_E2E_NAME:-scenarios}"
"$here/build.sh"
"$here/images.sh"
cargo build --manifest-path "$here/../../Cargo.toml" -p gpu-handoff-e2e --test cluster
stop() { "$here/down.sh" "$name"; }
trap stop EXIT
GPU_HANDOFF_E2E_IMAGES=$(images_folder) GPU_HANDOFF_E2E_GPUS=${GPU_HANDOFF_E2E_GPUS:-simulated} "$here/up.sh" "$name"
# KUBECONFIG is good on this machine as it is; the folder has the logs and, below var-lib, the node's disk.
KUBECONFIG=$folder/kubeconfig GPU_HANDOFF_CLUSTER=$folder \
    cargo test --manifest-path "$here/../../Cargo.toml" -p gpu-handoff-e2e --test cluster -- "$@"
