#!/usr/bin/env bash
# Runs a command inside a node, in its PID, mount and network namespaces: e2e/cluster/in.sh NAME COMMAND [ARGUMENT...]
# For example `in.sh e2e kubectl get pods -A`, `in.sh e2e ctr -n k8s.io task ls`, `in.sh e2e daemons.sh stop kubelet`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
(($# >= 2)) || fail "in.sh NAME COMMAND [ARGUMENT...]"
[[ $(id -u) == 0 ]] || fail "only root can look into a cluster's node"
name_cluster "$1"
shift
pid=$(init_pid) || fail "cluster $name is not running: $here/up.sh $name"
bin=$(cat "$folder/bin")
read_options
# Not every folder is also the node's.
work=/
if [[ -d /proc/$pid/root$PWD ]]; then work=$PWD; fi
# What kubectl and Helm remember is the node's, too.
exec nsenter --target "$pid" --mount --net --pid --wdns="$work" env KUBECONFIG="$folder/kubeconfig" HOME=/run/home \
    folder="$folder" bin="$bin" node_ip="$network.$(cat "$folder/index").2" PATH="$here:$bin:$PATH" "$@" 7>&-
