#!/usr/bin/env bash
# Tests what this folder promises of itself: e2e/cluster/test.sh
# The Go programs' own tests; images; two clusters at once, pods in them, a reboot, a start that is killed half-way; after each stop nothing may be left.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly cluster_a=test-a cluster_b=test-b warm_ready_s=${GPU_HANDOFF_E2E_READY_S:-60}
# What a node would leave behind on this machine if it were not kept in a place of its own.
readonly foreign=(/var/lib/kubelet /var/lib/containerd /var/lib/cni /run/containerd /run/netns /run/nri /var/log/pods
    /var/log/containers /opt/cni /opt/containerd /etc/cni)

step() { echo "cluster test: $*"; }

in_a() { "$here/in.sh" "$cluster_a" "$@"; }

scratch=$(mktemp -d)
stop_both() {
    "$here/down.sh" "$cluster_a" >/dev/null 2>&1 || true
    "$here/down.sh" "$cluster_b" >/dev/null 2>&1 || true
}

traces() {
    ls -d "${foreign[@]}" 2>/dev/null || true
    ls /run/netns 2>/dev/null || true
}

# stop NAME: stops it, and looks for what is left with what was known of it before.
stop() {
    local begin kept
    kept=$(mktemp -d)
    cp "$base/$1/network-namespace" "$kept/"
    begin=$(date +%s%3N)
    "$here/down.sh" "$1"
    (($(date +%s%3N) - begin <= stopped_within_s * 1000)) || fail "it took longer than $stopped_within_s s to stop"
    name_cluster "$1"
    [[ ! -e $folder ]] || fail "$folder is still there"
    mkdir -p "$folder"
    mv "$kept"/* "$folder/"
    [[ -z $(leftovers) ]] || fail "left behind: $(leftovers)"
    rm -rf "$folder" "$kept"
}

runs_a_pod() {
    "$here/in.sh" "$1" kubectl run pod --image=e2e.local/busybox:1 --image-pull-policy=Never \
        --command -- sh -c "echo $1 says hello; sleep 600"
    "$here/in.sh" "$1" kubectl wait --for=condition=Ready --timeout=30s pod/pod
    [[ $("$here/in.sh" "$1" kubectl logs pod) == "$1 says hello" ]] || fail "the logs of the pod in $1 are not its own"
    [[ $("$here/in.sh" "$1" kubectl exec pod -- cat /etc/hostname) == pod ]] || fail "no command runs in the pod in $1"
}

# The flags are the build's, so that what it compiled is used; vet would look at all of Kubernetes first.
tests_of_go() {
    local unformatted
    if [[ ! -d $here/node ]]; then
        echo "skipped: their sources are not packed"
        return
    fi
    unformatted=$(gofmt -l "$here/node" "$here/containerd")
    [[ -z $unformatted ]] || fail "not formatted: $unformatted"
    (cd "$here/node" && CGO_ENABLED=0 GOFLAGS=-trimpath nice go test -vet=off ./standin)
}

# An image of a program with libraries: the same bytes from files of other times, and a pod that runs it.
makes_images() {
    local folder=$1 copy
    for copy in 1 2; do
        mkdir "$folder/$copy"
        cp "$(command -v sort)" "$folder/$copy/sort"
        touch -d "2001-01-0$copy" "$folder/$copy/sort"
        "$here/image.py" "$folder/$copy.tar" e2e.local/sort:1 --program "$folder/$copy/sort:/bin/sort" --entrypoint /bin/sort
    done
    cmp "$folder/1.tar" "$folder/2.tar" || fail "the same image has other bytes"
}

runs_an_image() {
    in_a ctr -n k8s.io image import "$1" >/dev/null
    in_a kubectl run sort --image=e2e.local/sort:1 --image-pull-policy=Never --restart=Never -- --version
    in_a kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=30s pod/sort
    grep -q coreutils <<< "$(in_a kubectl logs sort)" || fail "the program of an image did not run"
}

# ---- the check itself can fail ----

finds_what_is_left() {
    local keeper
    name_cluster "$cluster_a"
    mkdir -p "$folder"
    unshare --net sh -c "ip link set lo up; ip addr add $api_service_ip/32 dev lo; exec sleep 600" &
    keeper=$!
    other() { [[ $(cat "/proc/$keeper/comm") == sleep ]]; }
    wait_for 5 other
    readlink "/proc/$keeper/ns/net" > "$folder/network-namespace"
    grep -q '^network namespace' <<< "$(leftovers)" || fail "a namespace that is left is not found"
    kill "$keeper"
    wait "$keeper" 2>/dev/null || true
    mkdir -p "$folder/mounted"
    mount -t tmpfs none "$folder/mounted"
    grep -q '^mounts in' <<< "$(leftovers)" || fail "a mount that is left is not found"
    umount "$folder/mounted"
    [[ -z $(leftovers) ]] || fail "something is found where nothing is left: $(leftovers)"
    rm -rf "$folder"
}

stop_both # what an earlier run may have left
trap 'rm -rf "$scratch"; stop_both' EXIT
before=$(traces)

step "the Go programs' tests"
tests_of_go

step "images are reproducible"
makes_images "$scratch"

step "what is left is found"
finds_what_is_left

step "two clusters at once"
begin=$(date +%s%3N)
"$here/up.sh" "$cluster_a" &
"$here/up.sh" "$cluster_b"
wait $!
(($(date +%s%3N) - begin <= warm_ready_s * 1000)) || fail "they were not ready within $warm_ready_s s"
runs_a_pod "$cluster_a"
runs_a_pod "$cluster_b"
runs_an_image "$scratch/1.tar"

step "the API, a pod's address and the service's address are reachable"
KUBECONFIG=$base/$cluster_a/kubeconfig "$(bin_folder)/kubectl" get nodes -o name | grep -qx "node/$cluster_a"
address=$(in_a kubectl get pod pod -o 'jsonpath={.status.podIP}')
in_a kubectl exec pod -- sh -c 'echo hello > /tmp/index.html; httpd -p 8080 -h /tmp'
wget -qO - "http://$address:8080" 2>/dev/null | grep -qx hello || python3 -c \
    "import urllib.request; assert urllib.request.urlopen('http://$address:8080').read() == b'hello\n'" ||
    fail "the pod at $address does not answer"
in_a kubectl exec pod -- nc -w 2 "$api_service_ip" "$api_port" < /dev/null || fail "a pod does not reach the API"

step "a reboot: the pod is started again on the same disk"
boot() { in_a cat /proc/sys/kernel/random/boot_id; }
first_boot=$(boot)
"$here/down.sh" --keep "$cluster_a"
"$here/up.sh" "$cluster_a"
[[ $(boot) != "$first_boot" ]] || fail "the boot has the old id"
restarted() { [[ $(in_a kubectl get pod pod -o 'jsonpath={.status.containerStatuses[0].restartCount}') == 1 ]]; }
wait_for 30 restarted || fail "the pod was not started again: $(in_a kubectl describe pod pod)"

step "one is stopped, the other goes on"
stop "$cluster_a"
"$here/in.sh" "$cluster_b" kubectl exec pod -- true
stop "$cluster_b"

step "a start that is killed half-way leaves nothing after a stop"
"$here/up.sh" "$cluster_a" >/dev/null 2>&1 &
begun() { [[ -s $base/$cluster_a/log/apiserver.log ]]; }
wait_for 20 begun || fail "the cluster did not begin to start"
kill -KILL $!
wait $! 2>/dev/null || true # it says "Killed"
stop "$cluster_a"

[[ $(traces) == "$before" ]] || fail "this machine's folders changed: $(diff <(echo "$before") <(traces))"
step "passed"
