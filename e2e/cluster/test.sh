#!/usr/bin/env bash
# Tests what this folder promises of itself: e2e/cluster/test.sh
# The Go programs' own tests; images; two clusters at once, pods in them, Helm, a reboot, starts that fail or are killed half-way;
# after each stop nothing may be left.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
"$here/preflight.sh" run
take_name test
readonly cluster_a=$name-a cluster_b=$name-b
# What a node would leave behind on this machine if it were not kept in a place of its own.
readonly foreign=(/var/lib/kubelet /var/lib/containerd /var/lib/cni /run/containerd /run/netns /run/nri /var/log/pods
    /var/log/containers /opt/cni /opt/containerd /etc/cni /usr/libexec/kubernetes "$HOME"/.kube "$HOME"/.{cache,config,local/share}/helm)

step() { echo "cluster test: $*"; }

in_a() { timeout --foreground "$command_within_s" "$here/in.sh" "$cluster_a" "$@"; }
in_b() { timeout --foreground "$command_within_s" "$here/in.sh" "$cluster_b" "$@"; }

scratch=$(mktemp -d)
stop_both() {
    "$here/down.sh" "$cluster_a" >/dev/null 2>&1 || true
    "$here/down.sh" "$cluster_b" >/dev/null 2>&1 || true
}

traces() { (find "${foreign[@]}" 2>/dev/null || true) | LC_ALL=C sort; }

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

# runs_a_pod NAME IN: in the cluster of this name, in which commands run so.
runs_a_pod() {
    "$2" kubectl run pod --image=e2e.local/busybox:1 --image-pull-policy=Never \
        --command -- sh -c "echo $1 says hello; sleep 600"
    "$2" kubectl wait --for=condition=Ready --timeout=30s pod/pod
    [[ $("$2" kubectl logs pod) == "$1 says hello" ]] || fail "the logs of the pod in $1 are not its own"
    [[ $("$2" kubectl exec pod -- cat /etc/hostname) == pod ]] || fail "no command runs in the pod in $1"
}

# The flags are the build's, so that what it compiled is used; vet would look at all of Kubernetes first.
tests_of_go() {
    local unformatted
    if [[ ! -d $here/node ]]; then
        echo "skipped: their sources are not packed"
        return
    fi
    unformatted=$("$("$here/go.sh" env GOROOT)/bin/gofmt" -l "$here/node" "$here/containerd")
    [[ -z $unformatted ]] || fail "not formatted: $unformatted"
    (cd "$here/node" && CGO_ENABLED=0 GOFLAGS=-trimpath nice "$here/go.sh" test -vet=off ./standin)
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

# Helm itself, with a chart that says where its word comes from.
installs_a_chart() {
    local chart=$1/chart value
    mkdir -p "$chart/templates"
    printf '%s\n' 'apiVersion: v2' 'name: tiny' 'version: 0.1.0' > "$chart/Chart.yaml"
    echo 'word: default' > "$chart/values.yaml"
    printf '%s\n' 'apiVersion: v1' 'kind: ConfigMap' 'metadata: {name: "{{ .Release.Name }}"}' 'data: {word: "{{ .Values.word }}"}' \
        > "$chart/templates/word.yaml"
    in_a helm install told "$chart" --set word=given --wait --timeout 30s >/dev/null
    value=$(in_a kubectl get configmap told -o 'jsonpath={.data.word}')
    [[ $value == given ]] || fail "the chart's object says '$value'"
    in_a helm uninstall told --wait --timeout 30s >/dev/null
    [[ -z $(in_a kubectl get configmap told --ignore-not-found -o name) ]] || fail "the chart's object is still there"
}

# ---- the check itself can fail ----

found() { grep -q "^$1" <<< "$(leftovers)" || fail "$2 that is left is not found"; }

# One of each thing that can be left of a cluster.
finds_what_is_left() {
    local cgroup_at=/sys/fs/cgroup/pids/$cgroup
    [[ ! -f /sys/fs/cgroup/cgroup.controllers ]] || cgroup_at=/sys/fs/cgroup/$cgroup
    mkdir -p "$folder/mounted"
    touch "$folder/log"
    made_by tail tail -f "$folder/log"
    [[ -z $(leftovers) ]] || fail "found where nothing is left, and somebody reads its log: $(leftovers)"
    made_by sleep unshare --net sh -c "ip link set lo up; ip addr add $api_service_ip/32 dev lo; exec sleep 600"
    readlink "/proc/${made[-1]}/ns/net" > "$folder/network-namespace"
    found 'network namespace' "a namespace"
    rm "$folder/network-namespace"
    made_by tail unshare --mount tail -f "$folder/log"
    found "process ${made[-1]}" "a process outside the cgroup"
    # Where no other node that starts now takes it over.
    made_by sleep unshare --mount sh -c "mount -t tmpfs none $folder/mounted; exec sleep 600"
    found 'mounts in' "a mount"
    ip link add "$link" type veth peer name "${link}p"
    found link "a link"
    mkdir "$cgroup_at"
    found cgroup "a cgroup"
    remove_made
    [[ -z $(leftovers) ]] || fail "found where nothing is left: $(leftovers)"
}

made=()
# made_by PROGRAM COMMAND...: in the background, where it is that program after a moment.
made_by() {
    "${@:2}" &
    made+=($!)
    is() { [[ $(cat "/proc/${made[-1]}/comm") == "$1" ]]; }
    wait_for 5 is "$1"
}

remove_made() {
    local one
    name_cluster "$cluster_a"
    for one in "${made[@]}"; do
        kill "$one" 2>/dev/null || true
        wait "$one" 2>/dev/null || true
    done
    made=()
    stop_both
}

remove_made # what a run that was killed has left
trap 'rm -rf "$scratch"; remove_made' EXIT
before=$(traces)

step "the Go programs' tests"
tests_of_go

step "images are reproducible"
makes_images "$scratch"

step "what is left is found"
finds_what_is_left

step "two clusters at once"
begin=$(date +%s%3N)
GPU_HANDOFF_E2E_KUBELET_ARGS=--max-pods=77 "$here/up.sh" "$cluster_a" &
"$here/up.sh" "$cluster_b"
wait $!
at_most "${GPU_HANDOFF_E2E_READY_S:-}" "$begin" "their start"
runs_a_pod "$cluster_a" in_a
runs_a_pod "$cluster_b" in_b
runs_an_image "$scratch/1.tar"

step "the same name is not started twice"
if "$here/up.sh" "$cluster_a" 2>"$scratch/twice"; then fail "it was"; fi
grep -q "runs already" "$scratch/twice" || fail "it says: $(cat "$scratch/twice")"
in_a kubectl get pod pod >/dev/null

step "a daemon runs once, and one that ended by itself is known"
if in_a daemons.sh start manager 2>/dev/null; then fail "a second manager was started"; fi
in_a daemons.sh alive
in_a kill -KILL "$(in_a cut -d ' ' -f 1 /run/daemons/manager)"
ended() { ! in_a daemons.sh alive 2>/dev/null; }
wait_for 5 ended || fail "it is not known"
if in_a daemons.sh stop manager 2>/dev/null; then fail "it was stopped"; fi
in_a daemons.sh start manager

step "Helm installs and uninstalls a chart"
installs_a_chart "$scratch"

step "the API, a pod's address and the service's address are reachable"
name_cluster "$cluster_a"
use_kubectl
timeout --foreground "$command_within_s" "$kubectl" get nodes -o name | grep -qx "node/$cluster_a"
address=$(in_a kubectl get pod pod -o 'jsonpath={.status.podIP}')
in_a kubectl exec pod -- sh -c 'echo hello > /tmp/index.html; httpd -p 8080 -h /tmp'
wget -qO - "http://$address:8080" 2>/dev/null | grep -qx hello || python3 -c \
    "import urllib.request; assert urllib.request.urlopen('http://$address:8080').read() == b'hello\n'" ||
    fail "the pod at $address does not answer"
in_a kubectl exec pod -- nc -w 2 "$api_service_ip" "$api_port" < /dev/null || fail "a pod does not reach the API"

step "a reboot: the pod is started again on the same disk, with the options and programs of before"
boot() { in_a cat /proc/sys/kernel/random/boot_id; }
first_boot=$(boot)
"$here/down.sh" --keep "$cluster_a"
GPU_HANDOFF_E2E_APISERVER_ARGS=--v=1 "$here/up.sh" "$cluster_a"
[[ $(boot) != "$first_boot" ]] || fail "the boot has the old id"
restarted() { [[ $(in_a kubectl get pod pod -o 'jsonpath={.status.containerStatuses[0].restartCount}') == 1 ]]; }
wait_for 30 restarted || fail "the pod was not started again: $(in_a kubectl describe pod pod)"
[[ $(in_a kubectl get node -o 'jsonpath={.items[0].status.capacity.pods}') == 77 ]] || fail "the kubelet's arguments are forgotten"
grep -q APISERVER_ARGS "$base/$cluster_a/options" || fail "what the second start was told is not kept"

step "one is stopped, the other goes on"
stop "$cluster_a"
in_b kubectl exec pod -- true
stop "$cluster_b"

step "a start that fails leaves nothing but its logs, and the next one is a first one"
name_cluster "$cluster_a"
mkdir "$scratch/broken"
echo broken > "$scratch/broken/broken.tar"
if GPU_HANDOFF_E2E_IMAGES=$scratch/broken "$here/up.sh" "$cluster_a" >/dev/null 2>&1; then fail "it did not fail"; fi
[[ ! -e $folder && -s $folder.failed/containerd.log ]] || fail "it left: $(ls -d "$folder" "$folder.failed")"
"$here/up.sh" "$cluster_a" >/dev/null
[[ ! -e $folder.failed ]] || fail "the logs of the earlier start are still there"
stop "$cluster_a"

step "a start that is killed half-way leaves nothing after a stop"
"$here/up.sh" "$cluster_a" >/dev/null 2>&1 &
begun() { [[ -s $base/$cluster_a/log/apiserver.log ]]; }
wait_for 20 begun || fail "the cluster did not begin to start"
kill -KILL $!
wait $! 2>/dev/null || true # it says "Killed"
stop "$cluster_a"

[[ $(traces) == "$before" ]] || fail "this machine's folders changed: $(diff <(echo "$before") <(traces))"
[[ -z $(ls -d "$base/$cluster_a"* "$base/$cluster_b"* 2>/dev/null) ]] || fail "left in $base: $(ls "$base")"
step "passed"
