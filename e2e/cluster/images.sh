#!/usr/bin/env bash
# Makes the images that a cluster's tests use, from this checkout's programs: e2e/cluster/images.sh
# Its last line is the folder. up.sh imports them (GPU_HANDOFF_E2E_IMAGES=FOLDER); pods name them with `imagePullPolicy: Never`.
#
#   e2e.local/plugin:1    the node daemon               the product's, from its Dockerfile: for them it takes buildah
#   e2e.local/sidecar:1   the sidecar and the command
#   e2e.local/taken-over:1  the node daemon of a build whose broker does what it is told: what one that was taken over can do
#   e2e.local/apps:1      what tests start as applications, with busybox and the plugin, whose survey says what a driver sees
#
# Beside them it lays simcuda/, the simulated driver with a program that calls it, for GPUs=simulated, and id, which names the state of
# it all. The folder is another each time, and its name a link, so that a node that starts meanwhile finds it whole. A cluster that
# runs goes on with the images that it has, until `daemons.sh reload`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly old_after_min=60
link=$(images_folder)
if [[ -n ${GPU_HANDOFF_E2E_IMAGES:-} ]]; then # they are packed
    echo "$link"
    exit
fi
bin=$(bin_folder)
cd "$here/../.."
target=${link%/*}
stripped=$(mktemp -d)
out=$link.partial.$$
trap 'rm -rf "$stripped" "$out"' EXIT
# First, and put aside: what is built after it takes its place, and goes into the other images.
cargo build --release --locked -p gpu-handoff-plugin -p gpu-handoff-sidecar -p gpu-handoff-cli --bin gpu-handoff-plugin \
    --features gpu-handoff-plugin/taken-over
strip -o "$stripped/taken-over" "$target/release/gpu-handoff-plugin"
cargo build --release --workspace --bins --lib
product=$stripped/product
"$here/../../images/rootfs.sh" "$product"

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
    made "$name"
}

made() { echo "image e2e.local/$1:1: $(du -h "$out/$1.tar" | cut -f 1)"; }

mkdir -p "$out/simcuda"
strip -o "$out/simcuda/libcuda.so.1" "$target/release/libgpu_handoff_simcuda.so"
cp "$product/plugin/bin/gpu-handoff-plugin" "$out/simcuda/"
if command -v buildah >/dev/null; then
    "$here/product-images.sh" "$out" --build-context "build=$product"
    made plugin
    made sidecar
else
    echo "images e2e.local/plugin:1 and e2e.local/sidecar:1 are not made: there is no builder (apt-get install buildah)"
fi
# The plugin and the command with their libraries, also those of the driver.
plugin=() libraries=()
while read -r file; do
    plugin+=(--file "$product/plugin/$file:/$file")
    [[ $file == bin/* ]] || libraries+=(--file "$product/plugin/$file:/$file")
done < <(find "$product/plugin" -type f -printf '%P\n')
shell=(--file "$bin/busybox:/bin/busybox" --link /bin/busybox:/bin/sh)
for applet in cat cp dd df env grep head id ip ls mkdir mount nc ps readlink rm sleep stat tail test timeout touch wc; do
    shell+=(--link "/bin/busybox:/bin/$applet")
done
image apps agent rough intruder conformance simcuda-dump simcuda-fault -- "${plugin[@]}" "${shell[@]}"

"$here/image.py" "$out/taken-over.tar" e2e.local/taken-over:1 --file "$stripped/taken-over:/bin/gpu-handoff-plugin" \
    --file "$product/plugin/bin/gpu-handoff:/bin/gpu-handoff" "${libraries[@]}" --entrypoint /bin/gpu-handoff-plugin
made taken-over

id=$(cd "$out" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16)
echo "$id" > "$out/id"
[[ -L $link ]] || rm -rf "$link"
before=$(readlink "$link" || true)
if ! mv -T "$out" "$link.$id" 2>/dev/null; then # it is there already
    rm -rf "$out"
    touch "$link.$id"
fi
ln -s "$(basename "$link.$id")" "$out"
mv -T "$out" "$link"
find "$target" -maxdepth 1 -name "$(basename "$link").*" -mmin "+$old_after_min" ! -name "${before:-none}" ! -name "$(basename "$link.$id")" \
    -exec rm -rf {} +
echo "$link"
