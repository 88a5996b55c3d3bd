#!/usr/bin/env bash
# Makes the images that a cluster's tests use, from this checkout's programs: e2e/cluster/images.sh
# Its last line is the folder. up.sh imports them (GPU_HANDOFF_E2E_IMAGES=FOLDER); pods name them with `imagePullPolicy: Never`.
#
#   e2e.local/plugin:1    the node daemon
#   e2e.local/sidecar:1   the sidecar and the command, and nothing else: no shell
#   e2e.local/apps:1      what tests start as applications, with busybox and the plugin, whose survey says what a driver sees
#
# Beside them it lays simcuda/, the simulated driver with a program that calls it, for GPUs=simulated.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
out=$(images_folder)
if [[ -n ${GPU_HANDOFF_E2E_IMAGES:-} ]]; then # they are packed
    echo "$out"
    exit
fi
bin=$(bin_folder)
cd "$here/../.."
cargo build --release --workspace --bins --lib
target=${out%/*}
stripped=$(mktemp -d)
trap 'rm -rf "$stripped"' EXIT

# image NAME PROGRAM... -- MORE...: strips each program and puts it into /bin.
image() {
    local name=$1 options=()
    shift
    while (($# > 0)) && [[ $1 != -- ]]; do
        strip -o "$stripped/$1" "$target/release/$1"
        options+=(--program "$stripped/$1:/bin/$1")
        shift
    done
    "$here/image.py" "$out/$name.tar" "e2e.local/$name:1" "${options[@]}" --folder /tmp:1777 "${@:2}"
    echo "image e2e.local/$name:1: $(du -h "$out/$name.tar" | cut -f 1)"
}

mkdir -p "$out/simcuda"
strip -o "$out/simcuda/libcuda.so.1" "$target/release/libgpu_handoff_simcuda.so"
strip -o "$out/simcuda/gpu-handoff-plugin" "$target/release/gpu-handoff-plugin"
# What a real libcuda.so.1 is linked against, and our programs are not.
driver=()
for library in libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
    path=$(ldconfig -p | awk -v name="$library" '$1 == name && !found { found = $NF } END { print found }')
    driver+=(--file "$(realpath "$path"):$path")
done
image plugin gpu-handoff-plugin -- --entrypoint /bin/gpu-handoff-plugin "${driver[@]}"
image sidecar gpu-handoff-sidecar gpu-handoff -- --entrypoint /bin/gpu-handoff-sidecar
shell=(--file "$bin/busybox:/bin/busybox" --link /bin/busybox:/bin/sh)
for applet in cat cp dd df env grep head id ip ls mkdir mount nc ps readlink rm sleep stat tail test timeout touch wc; do
    shell+=(--link "/bin/busybox:/bin/$applet")
done
image apps gpu-handoff-plugin agent rough conformance simcuda-dump simcuda-fault gpu-handoff -- "${shell[@]}" "${driver[@]}"
echo "$out"
