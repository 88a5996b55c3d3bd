#!/usr/bin/env bash
# Packs the node's programs, this folder and the images for a machine without network, Go and Debian: e2e/cluster/pack.sh FOLDER
# Copy the folder there; `FOLDER/run.sh test-gpus.sh` unpacks it once and runs a script of this folder, `FOLDER/run.sh run.sh` the
# scenarios, `FOLDER/run.sh outside/bench` the benchmark. Fails over the limit.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
readonly limit_mib=60
# What a GPU adds nothing to: the scenario that needs it says that it is not there.
readonly left_out=(images/taken-over.tar)
out=$(mkdir -p "${1:?pack.sh FOLDER}" && cd "$1" && pwd)
"$here/build.sh"
"$here/images.sh"
bin=$(bin_folder)
images=$(images_folder)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a bare machine may lack, with its own loader and libraries: tool NAME [PROGRAM].
tool() {
    local program library
    program=$(realpath "${2:-$(command -v "$1")}")
    mkdir -p "$work/tools/lib"
    cp "$program" "$work/tools/lib/$1"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do cp -L "$library" "$work/tools/lib/"; done
    cat > "$work/tools/$1" <<'SH'
#!/bin/sh
lib=$(dirname "$0")/lib
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$lib/$(basename "$0")" "$@"
SH
    chmod +x "$work/tools/$1"
}

# archive FOLDER [FILTER]: the window holds all there is, since the programs of a node share much, and so do the images.
archive() { tar -C "$1" --sort=name --owner=0 --group=0 --mtime=@0 -c . | xz "${@:2}" --lzma2=preset=9e,dict=256MiB; }

tool ip
tool openssl
strip -o "$work/stripped" "$(scenarios_program --release)"
tool scenarios "$work/stripped"
rm "$work/stripped"
cp -r "$images/" "$work/images"
rm "${left_out[@]/#/$work/}"
mkdir "$work/cluster"
cp "$here"/*.sh "$here"/*.py "$work/cluster/"
# For the same figures outside Kubernetes; they are in the images already, so they add little.
mkdir "$work/cluster/outside"
for program in bench agent gpu-handoff-plugin gpu-handoff-sidecar; do
    strip -o "$work/cluster/outside/$program" "${images%/*}/release/$program"
done
ln -s ../../images/simcuda "$work/cluster/outside/simcuda"
# The programs change seldom and take minutes to compress.
if [[ ! -f $bin.tar.xz || ! $bin.tar.xz -nt $bin/complete ]]; then
    archive "$bin" --x86 > "$bin.tar.xz.partial"
    mv "$bin.tar.xz.partial" "$bin.tar.xz"
fi
cp "$bin.tar.xz" "$out/bin.tar.xz"
archive "$work" > "$out/rest.tar.xz"
cat > "$out/run.sh" <<'SH'
#!/usr/bin/env bash
# run.sh SCRIPT [ARGUMENT...]: unpacks what lies beside it, once for each state of it, and runs a script of e2e/cluster.
set -euo pipefail
packed=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$(cat "$packed"/{bin,rest}.tar.xz | sha256sum | cut -c 1-16)
to=${GPU_HANDOFF_E2E_UNPACKED:-/var/tmp/gpu-handoff-packed}/$state
if [[ ! -d $to ]]; then
    partial=$to.partial.$$
    mkdir -p "$partial/bin"
    for part in bin:bin rest:.; do
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$packed/${part%:*}.tar.xz" "$partial/${part#*:}"
    done
    mv -T "$partial" "$to" 2>/dev/null || { [[ -d $to ]] && rm -rf "$partial"; } # another was faster
fi
echo "run.sh: $to" >&2
export GPU_HANDOFF_E2E_BIN=$to/bin GPU_HANDOFF_E2E_IMAGES=$to/images
export GPU_HANDOFF_E2E_TOOLS=$to/tools PATH=$PATH:$to/tools
exec "$to/cluster/$1" "${@:2}"
SH
chmod +x "$out/run.sh"

total=0
for file in "$out"/{bin,rest}.tar.xz; do
    size=$(stat -c %s "$file")
    total=$((total + size))
    awk -v size="$size" -v file="${file##*/}" 'BEGIN { printf "cluster pack: %5.1f MiB  %s\n", size / 1048576, file }'
done
((total <= limit_mib * 1048576)) || fail "they are larger than $limit_mib MiB together"
echo "cluster pack: $out"
