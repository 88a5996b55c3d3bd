#!/usr/bin/env bash
# Runs the scenarios on a cluster of their own: e2e/cluster/run.sh [ARGUMENT of the tests...]
# Builds what is missing, makes the images, starts the cluster with simulated GPUs (GPU_HANDOFF_E2E_GPUS=real: with real ones),
# and stops it in the end. Several may run at once. GPU_HANDOFF_E2E_FIRST_S: fails if the first result comes later, counted from the
# start of the cluster's start (GPU_HANDOFF_E2E_READY_S: up.sh).
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
            at_most "${GPU_HANDOFF_E2E_FIRST_S:-}" "$begin" "the first result"
        fi
    done
}

"$here/preflight.sh" run
take_name scenarios
scenarios=$here/../tools/scenarios # where pack.sh puts them, for a machine without sources
if [[ ! -x $scenarios ]]; then
    "$here/build.sh"
    "$here/images.sh"
    scenarios=$(scenarios_program --profile test)
fi
stop() { "$here/down.sh" "$name"; }
stop >/dev/null # what a run that was killed has left
trap stop EXIT
begin=$(date +%s%3N)
# More replicas than all scenarios at a time ask for, so that none waits for another's end.
GPU_HANDOFF_E2E_IMAGES=${GPU_HANDOFF_E2E_IMAGES:-$(images_folder)} GPU_HANDOFF_E2E_GPUS=${GPU_HANDOFF_E2E_GPUS:-simulated} \
    GPU_HANDOFF_E2E_REPLICAS=${GPU_HANDOFF_E2E_REPLICAS:-16} "$here/up.sh" "$name"
# The folder has the kubeconfig, the logs and, below var-lib, the node's disk.
GPU_HANDOFF_CLUSTER=$folder GPU_HANDOFF_CLUSTER_SCRIPTS=$here "$scenarios" "$@" 7>&- | tell_first
