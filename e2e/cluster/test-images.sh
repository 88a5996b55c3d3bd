#!/usr/bin/env bash
# Tests the product's images, as its Dockerfile makes them: e2e/cluster/test-images.sh
# Once with this checkout's programs and once whole, with this machine's own compilers in the place of the first stage's base image, so
# that nothing is pulled. That they run in pods, one under the restricted standard, the scenarios show.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

step() { echo "cluster test: $*"; }
expect() { [[ $2 == "$3" ]] || fail "$1: '$2', not '$3'"; }

# unpack IMAGE.tar FOLDER: the configuration as FOLDER/config.json, the files of all layers as FOLDER/root.
unpack() {
    mkdir -p "$2/root"
    python3 - "$1" "$2" <<'PYTHON'
import json, pathlib, sys, tarfile
image, folder = tarfile.open(sys.argv[1]), pathlib.Path(sys.argv[2])
(manifest,) = json.load(image.extractfile("manifest.json"))
(folder / "config.json").write_bytes(image.extractfile(manifest["Config"]).read())
for layer in manifest["Layers"]:
    files = tarfile.open(fileobj=image.extractfile(layer))
    for file in files:
        if (file.uid, file.gid, file.mtime, file.mode & 0o7777) != (0, 0, 0, 0o755):
            sys.exit(f"{file.name}: user {file.uid}, group {file.gid}, time {file.mtime}, mode {file.mode:o}")
    files.extractall(folder / "root")
PYTHON
}

# configured FOLDER PATH...: one value of an image's configuration.
configured() {
    python3 -c '
import json, sys
value = json.load(open(sys.argv[1] + "/config.json"))["config"]
for key in sys.argv[2:]:
    value = value[key]
print(value if isinstance(value, str) else json.dumps(value))' "$@"
}

# What an image has: programs by name, libraries without the place that differs between machines.
files_of() { (cd "$1" && find . ! -type d -printf '%f\n' | sed 's/^ld-linux-.*/ld-linux/' | LC_ALL=C sort | xargs); }

look_at() {
    local image=$1 user=$2 programs=$3 version
    unpack "$work/images/$image.tar" "$work/$image"
    diff -r "$work/built/$image" "$work/$image/root" || fail "$image has other files than were built"
    expect "the files of $image" "$(files_of "$work/$image/root")" "$programs"
    expect "the user of $image" "$(configured "$work/$image" User)" "$user"
    expect "what $image starts" "$(configured "$work/$image" Entrypoint)" "[\"/bin/gpu-handoff-$image\"]"
    if grep -rqF "$mark" "$work/$image/root"; then fail "$image can be told to be a broker that was taken over"; fi
    version=$(configured "$work/$image" Labels org.opencontainers.image.version)
    expect "the version of $image" "$(chroot --userspec="$user" "$work/$image/root" "/bin/gpu-handoff-$image" --version)" \
        "gpu-handoff-$image $version"
}

# A base image for the first stage: this machine's programs are mounted where its empty folders are. Cargo's own folders are where
# they are here: their paths are in the programs, which would differ by them alone.
this_machine() {
    local links=() folder
    for folder in bin lib lib64 sbin; do
        if [[ -L /$folder ]]; then links+=(--link "usr/$folder:/$folder"); fi
    done
    "$here/image.py" "$work/machine.tar" e2e.local/machine:1 "${links[@]}" --folder /usr:755 --folder /tmp:1777 \
        --env "PATH=$sysroot/bin:/usr/bin:/bin" --env "CARGO_HOME=$cargo_home" --env "CARGO_TARGET_DIR=$target" \
        --env CARGO_NET_OFFLINE=true
}

mark=$(sed -n 's/^const MARK: &str = "\(.*\)";/\1/p' "$root/plugin/src/taken_over.rs")
[[ -n $mark ]] || fail "a build whose broker was taken over has no mark"

step "the product's images, with the programs of this checkout"
"$root/images/rootfs.sh" "$work/built"
"$here/product-images.sh" "$work/images" --build-context "build=$work/built"
look_at sidecar 65532:65532 "gpu-handoff gpu-handoff-sidecar ld-linux libc.so.6 libgcc_s.so.1"
look_at plugin 0:0 "gpu-handoff gpu-handoff-plugin ld-linux libc.so.6 libdl.so.2 libgcc_s.so.1 libm.so.6 libpthread.so.0 librt.so.1"

step "once more, they are the same bytes"
cp -r "$work/built" "$work/later" # files of another time
"$here/product-images.sh" "$work/again" --build-context "build=$work/later"
diff -r "$work/images" "$work/again" || fail "they differ"

step "the Dockerfile names the toolchain of this checkout"
channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$root/rust-toolchain.toml")
grep -q "^ARG BUILDER=.*/rust:$channel-" "$root/Dockerfile" || fail "rust-toolchain.toml says $channel, the Dockerfile another"

step "the whole Dockerfile, on this machine's compilers"
sysroot=$(cd "$root" && rustc --print sysroot)
cargo_home=${CARGO_HOME:-$HOME/.cargo}
target=$(images_folder)
target=${target%/*}
this_machine
mkdir "$work/target"
whole=$(date +%s%3N)
mounts=()
for mount in /usr /etc/alternatives "$sysroot" "$cargo_home"; do mounts+=(--volume "$mount:$mount:ro"); done
"$here/product-images.sh" "$work/whole" --build-arg "BUILDER=oci-archive:$work/machine.tar" "${mounts[@]}" \
    --volume "$work/target:$target:rw" # an empty one
for image in plugin sidecar; do
    unpack "$work/whole/$image.tar" "$work/whole/$image"
    diff -r "$work/$image/root" "$work/whole/$image/root" || fail "$image has other files than with this checkout's programs"
done
step "it took $(since "$whole")"

du -h "$work/images"/*.tar | sed "s|$work/images/|cluster test: |"
step "passed"
