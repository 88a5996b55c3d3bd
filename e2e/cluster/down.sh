#!/usr/bin/env bash
# Stops a cluster, and checks that nothing of it is left: e2e/cluster/down.sh [--keep] [NAME]
# With --keep the node's disk and logs stay, as when the power fails; up.sh starts it again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
keep=
if [[ ${1:-} == --keep ]]; then
    keep=yes
    shift
fi
if (($# > 1)) || [[ ${1:-} == -* ]]; then fail "down.sh [--keep] [NAME]"; fi
[[ $(id -u) == 0 ]] || fail "only root can stop a cluster"
name_cluster "${1:-}"
if [[ -z $(processes) && -z $(cgroups) && ! -e $folder ]]; then
    echo "there is no cluster $name"
    exit 0
fi
begin=$(date +%s%3N)

# With the first process of their PID namespace all others end, and with them their namespaces, mounts and links.
end_processes() {
    local all
    all=$(processes)
    [[ -n $all ]] || return 0
    xargs -r kill -KILL <<< "$all" 2>/dev/null || true
    return 1
}

remove_cgroups() {
    local one
    for one in $(cgroups); do
        find "$one" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    [[ -z $(cgroups) ]]
}

wait_for "$stopped_within_s" end_processes || fail "these processes of cluster $name do not end: $(processes | xargs)"
wait_for "$stopped_within_s" remove_cgroups || fail "these cgroups of cluster $name stay: $(cgroups | xargs)"
ip link del "$link" 2>/dev/null || true
# The kernel takes some of it apart only after the last process is gone.
nothing_left() { left=$(leftovers) && [[ -z $left ]]; }
wait_for "$stopped_within_s" nothing_left || fail "of cluster $name there is still: $left"
rm -f "$folder/network-namespace" "$init_file"
[[ -n $keep ]] || rm -rf "$folder"
rmdir "$base" 2>/dev/null || true
stays=
if [[ -n $keep ]]; then stays="; its disk stays: $here/up.sh $name starts it again"; fi
echo "cluster $name is gone after $(since "$begin")$stays"
