#!/usr/bin/env bash
# The node's first process, in namespaces of its own; started by up.sh: node.sh FOLDER BIN NODE_IP HOST_IP BOOT_ID
# Makes the node's file system and network, starts its daemons, and then only reaps.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export folder=$1 bin=$2 node_ip=$3 host_ip=$4 boot_id=$5
export PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin${GPU_HANDOFF_E2E_TOOLS:+:$GPU_HANDOFF_E2E_TOOLS}

# What a reboot empties, and what it keeps; none of it is this machine's.
own_folders() {
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mkdir -p /run/netns /run/daemons /run/shown /run/home
    mount --bind "$folder/var-lib" /var/lib
    mount --bind "$folder/var-log" /var/log
    mkdir -p /var/lib/kubelet /var/log/pods
}

# What is read there instead: show VALUE FILE.
show() {
    local stand_in=/run/shown/${2//\//_}
    echo "$1" > "$stand_in"
    mount --bind "$stand_in" "$2"
}

own_kernel_values() {
    show 1 /proc/sys/vm/overcommit_memory
    show 0 /proc/sys/vm/panic_on_oom
    show 10 /proc/sys/kernel/panic
    show 1 /proc/sys/kernel/panic_on_oops
    show 1000000 /proc/sys/kernel/keys/root_maxkeys
    show 25000000 /proc/sys/kernel/keys/root_maxbytes
    show "$boot_id" /proc/sys/kernel/random/boot_id
}

own_network() {
    ip link set lo up
    ip addr add "$api_service_ip/32" dev lo
    has_link() { ip link show eth0 >/dev/null 2>&1; }
    wait_for 5 has_link
    ip addr add "$node_ip/30" dev eth0
    ip link set eth0 up
    ip route add default via "$host_ip"
}

own_folders
own_kernel_values
own_network
mount --make-rshared / # among the node's own namespaces: pods may ask for propagation in both directions
"$here/daemons.sh" boot
touch /run/booted # up.sh waits for it
exec pause
