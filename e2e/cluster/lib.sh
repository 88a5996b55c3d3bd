# What the scripts of this folder share; to be sourced. A cluster is known by its name alone: everything else follows.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the variables are for those who source this

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# ---- parameters ----

# Where clusters keep their state: not under /run, /dev/shm, /var/lib or /var/log, which each node has of its own. The kernel names it
# without links.
base=$(realpath -m "${GPU_HANDOFF_E2E_DIR:-/var/tmp/gpu-handoff-e2e}")
# Locks are the machine's, wherever its clusters live: names of cgroups and links are, too.
readonly locks=/run/gpu-handoff-e2e
# Node addresses are NETWORK.INDEX.2; the INDEX is the first that no cluster of this machine uses.
network=${GPU_HANDOFF_E2E_NETWORK:-10.199}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gpu-handoff
# GPU_HANDOFF_E2E_…: what a cluster is started with, and a node that starts again remembers.
readonly option_names=(IMAGES GPUS SIMCUDA LATE REPLICAS DRIVER APISERVER_ARGS KUBELET_ARGS NETWORK TOOLS)

export CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 # cgroup v1, each time that ctr is called

readonly ready_within_s=60 stopped_within_s=5 locked_within_s=60 most_clusters=99
# Of one command, which a node that is busy or broken may leave without an answer.
readonly command_within_s=60
# The API's service address is also one of the node's, so that pods reach it without a proxy: hence the port.
readonly api_port=443 api_service_ip=10.96.0.1 services=10.96.0.0/24

# ---- names ----

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Takes the cluster's name (default: e2e), and sets what belongs to it.
name_cluster() {
    name=${1:-e2e}
    [[ $name =~ ^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$ ]] ||
        fail "a cluster's name is made of a-z, 0-9 and -, at most 32 of them, not '$name'"
    folder=$base/$name
    cgroup=gpu-handoff-e2e-$name
    link=ghe2e$(cksum <<< "$name" | awk '{ printf "%08x", $1 }') # links have short names
    init_file=$folder/init.pid
}

# Takes a name that no other run of this machine has, PREFIX-NUMBER, for as long as this script lives, and stops what is left of a run
# that was killed. Whoever starts something that outlives the script closes descriptor 7.
take_name() {
    local number
    mkdir -p "$locks"
    for ((number = 1; number <= most_clusters; number++)); do
        exec 7> "$locks/$1-$number"
        if flock --nonblock 7; then
            name_cluster "$1-$number"
            return
        fi
    done
    fail "all $most_clusters names $1-NUMBER are taken by runs that go on"
}

# What is built from Debian's packages as they are.
debian_files() {
    printf '%s\n' "$(command -v runc)" /usr/lib/cni/{bridge,host-local,loopback} "$(command -v busybox)"
}

# The state that the built programs depend on, as 16 digits.
build_key() {
    local state
    state=$(cd "$here" && find node containerd -type f | LC_ALL=C sort | xargs sha256sum build.sh go.sh image.py pause.c && uname -m) || return
    # Packages that are missing are the preflight's matter.
    state+=$(debian_files 2>/dev/null | xargs -r sha256sum 2>/dev/null | cut -d ' ' -f 1 || true)
    sha256sum <<< "$state" | cut -c 1-16
}

# Where build.sh puts the node's programs; GPU_HANDOFF_E2E_BIN names a folder that has them already.
bin_folder() {
    local key
    if [[ -n ${GPU_HANDOFF_E2E_BIN:-} ]]; then
        echo "$GPU_HANDOFF_E2E_BIN"
        return
    fi
    key=$(build_key) || return
    echo "$cache/cluster-$key"
}

# Where this checkout's images are made, or those that were given are.
images_folder() {
    local target
    if [[ -n ${GPU_HANDOFF_E2E_IMAGES:-} ]]; then
        echo "$GPU_HANDOFF_E2E_IMAGES"
        return
    fi
    target=$(cargo metadata --manifest-path "$here/../../Cargo.toml" --format-version 1 --no-deps |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p') || return
    echo "$target/cluster-images"
}

# scenarios_program OPTION...: builds this checkout's scenarios as cargo's options say, and says where their program is.
scenarios_program() {
    local told
    told=$(cargo test --manifest-path "$here/../../Cargo.toml" -p gpu-handoff-e2e --test cluster --no-run "$@" \
        --message-format json-render-diagnostics) || return
    sed -n 's/.*"name":"cluster".*"executable":"\([^"]*\)".*/\1/p' <<< "$told"
}

# ---- a running cluster ----

# The options that the cluster was started with.
read_options() {
    # shellcheck source=/dev/null
    source "$folder/options"
    network=${GPU_HANDOFF_E2E_NETWORK:-10.199}
}

# kubectl on this machine, for the named cluster; what it learns of the API stays out of the home folder.
use_kubectl() {
    kubectl=$(bin_folder)/kubectl
    export KUBECONFIG=$folder/kubeconfig KUBECACHEDIR=$folder/kube-cache
}

# The first process of the cluster's PID namespace, as this machine numbers it; nothing if the cluster is not running.
init_pid() {
    local pid
    pid=$(cat "$init_file" 2>/dev/null) || return 1
    # Numbers are used again: only a process in the cluster's cgroup is meant.
    grep -qs "/$cgroup/" "/proc/$pid/cgroup" || return 1
    echo "$pid"
}

# The folders of the cluster's cgroup, one in each hierarchy.
cgroups() {
    local candidate
    for candidate in "/sys/fs/cgroup/$cgroup" /sys/fs/cgroup/*/"$cgroup"; do
        if [[ -d $candidate ]]; then echo "$candidate"; fi
    done
}

# All processes of the cluster.
processes() {
    local one
    for one in $(cgroups); do
        find "$one" -name cgroup.procs -exec cat {} + 2>/dev/null
    done | sort -un
}

# Who somehow left the cgroup: processes with mounts of their own whose command lines name the cluster's folder. Others that do are
# people's, who look at its logs.
strays() {
    local own pid one
    own=$(readlink /proc/self/ns/mnt)
    grep -lsaF "$folder/" /proc/[0-9]*/cmdline | cut -d / -f 3 | while read -r pid; do
        one=$(readlink "/proc/$pid/ns/mnt" 2>/dev/null) || continue
        [[ $one == "$own" ]] || echo "$pid"
    done
}

# What there still is of a cluster on this machine, one thing a line. Its folder must be there: it says what to look for.
leftovers() {
    local one
    processes | sed 's/^/process /'
    strays | sed 's/^/process /' || true
    cgroups | sed 's/^/cgroup /'
    grep -lsF " $folder/" /proc/[0-9]*/mountinfo | sed 's/^/mounts in /' || true
    if [[ -d /sys/class/net/$link ]]; then echo "link $link"; fi
    # Numbers of namespaces are used again: the API's service address tells that it is the node's.
    one=$(cat "$folder/network-namespace" 2>/dev/null) || return 0
    find /proc/[0-9]*/ns/net -lname "${one/[/\\[}" 2>/dev/null | while read -r one; do
        if grep -qsF "$api_service_ip" "${one%/ns/net}/net/fib_trie"; then echo "network namespace of $one"; fi
    done || true # processes end while they are looked at
}

# Waits until a command succeeds: wait_for SECONDS COMMAND...
wait_for() {
    local deadline=$(($(date +%s%3N) + $1 * 1000))
    shift
    until "$@"; do
        (($(date +%s%3N) < deadline)) || return 1
        sleep 0.05
    done
}

# Fails where more than so many seconds have passed since a moment that `date +%s%3N` told: at_most SECONDS MOMENT WHAT; nothing given
# is no limit.
at_most() {
    [[ -z $1 ]] || (($(date +%s%3N) - $2 <= $1 * 1000)) || fail "$3 took $(since "$2"), the limit is $1 s"
}

# Milliseconds since a moment that `date +%s%3N` told, as seconds.
since() {
    local ms=$(($(date +%s%3N) - $1))
    printf '%d.%01d s' $((ms / 1000)) $((ms % 1000 / 100))
}
