#!/usr/bin/env bash
# Builds a test node's programs, once for each state of their sources: e2e/cluster/build.sh
# They lie in the cache afterwards, where up.sh finds them, also from another checkout.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly kubernetes=v1.37.2 kept_builds=3 other_build_within_s=3600
bin=$(bin_folder)
begin=$(date +%s%3N)

if [[ -e $bin/complete ]]; then
    touch "$bin" # so that it is not the oldest
    echo "cluster build: warm, $bin"
    exit 0
fi
[[ -z ${GPU_HANDOFF_E2E_BIN:-} ]] || fail "$bin (GPU_HANDOFF_E2E_BIN) is not complete"
"$here/preflight.sh" build
if [[ -n $(find "$("$here/go.sh" env GOCACHE)" -mindepth 2 -print -quit 2>/dev/null) ]]; then
    echo "cluster build: not built yet in this state; Go's cache is not empty, so it takes from 20 s up"
else
    echo "cluster build: cold, 15 to 20 min on 2 cores"
fi

mkdir -p "$cache"
exec 9> "$cache/cluster-build.lock"
# Two builds at once would only fight for memory.
flock --timeout "$other_build_within_s" 9 || fail "another build has not ended within $other_build_within_s s"
if [[ -e $bin/complete ]]; then
    echo "cluster build: another build made $bin meanwhile"
    exit 0
fi
partial=$bin.partial
rm -rf "$partial"
mkdir "$partial"

stage() {
    local label=$1 start
    shift
    start=$(date +%s%3N)
    echo "cluster build: $label ..."
    "$@"
    echo "cluster build: $label took $(since "$start")"
}

# program MODULE OUTPUT PACKAGE LDFLAGS: a static program, the same bytes wherever the same Go builds it.
program() {
    (cd "$here/$1" && CGO_ENABLED=0 nice -n "${GPU_HANDOFF_E2E_NICE:-10}" \
        "$here/go.sh" build -trimpath -buildvcs=false -ldflags="-s -w ${4:-}" -o "$partial/$2" "$3")
}

images() {
    "$here/image.py" "$partial/pause.tar" e2e.local/pause:1 --file "$partial/pause:/pause" --entrypoint /pause
    local links=() applets applet
    applets=$("$partial/busybox" --list)
    for applet in $applets; do
        [[ $applet == busybox ]] || links+=(--link "/bin/busybox:/bin/$applet")
    done
    "$here/image.py" "$partial/busybox.tar" e2e.local/busybox:1 --file "$partial/busybox:/bin/busybox" "${links[@]}" \
        --folder /tmp:1777
}

from_debian() {
    local files
    mapfile -t files < <(debian_files)
    cp "${files[@]}" "$partial/"
}

# Programs of a build that run, or a node's that is to start again.
in_use() {
    grep -qsxF "$1" "$base"/*/bin || [[ -n $(find /proc/[0-9]*/exe -lname "$1/*" -print -quit 2>/dev/null) ]]
}

# Builds of older sources go, so that the cache does not grow with each change.
remove_old_builds() {
    local old
    find "$cache" -maxdepth 1 -name 'cluster-*' -type d -printf '%T@ %p\n' | sort -rn |
        tail -n "+$((kept_builds + 1))" | cut -d ' ' -f 2- | while read -r old; do
        in_use "$old" || rm -rf "$old" "$old.tar.xz"
    done
}

version=k8s.io/component-base/version
stage "modules of Kubernetes and Helm" env -C "$here/node" "$here/go.sh" mod download
stage "modules of containerd" env -C "$here/containerd" "$here/go.sh" mod download
stage "containerd" program containerd containerd .
stage "containerd's shim" program containerd containerd-shim-runc-v2 \
    github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
stage "Kubernetes, etcd and Helm (most of the time)" program node node . \
    "-X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=37"
commands=$("$partial/node")
for command in $commands; do
    ln -s node "$partial/$command"
done
ln -s containerd "$partial/ctr"
stage "pause" cc -static -O2 -s -o "$partial/pause" "$here/pause.c"
stage "runc, CNI plugins and busybox from Debian" from_debian
stage "images of pause and busybox" images

touch "$partial/complete"
rm -rf "$bin"
mv "$partial" "$bin"
remove_old_builds
find "$bin" -type f -size +100k -printf '%s %f\n' | sort -rn |
    awk '{ printf "cluster build: %6.1f MB  %s\n", $1 / 1e6, $2 }'
echo "cluster build: done in $(since "$begin"), $(du -sh "$bin" | cut -f 1) in $bin"
