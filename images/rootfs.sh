#!/usr/bin/env bash
# Builds the product's programs, and lays out what its images hold: images/rootfs.sh FOLDER
# FOLDER/plugin and FOLDER/sidecar are then their whole file systems. The Dockerfile runs this, so that both ways give the same:
# the same bytes where Rust, gcc and glibc are the same, and the paths of cargo's home and target folders, which are in the programs.
set -euo pipefail
umask 022 # any user may run what is in the images
out=$(realpath -m -- "${1:?images/rootfs.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# programs IMAGE PROGRAM...: the programs, stripped, in /bin, and their libraries where the loader looks for them.
programs() {
    local root=$out/$1 program needed library
    [[ ! -e $root ]] || fail "$root is there already: remove it, or name another folder"
    for program in "${@:2}"; do
        install -D -m 755 "$target/release/$program" "$root/bin/$program"
        # The build id is a hash of what is stripped, too, such as the path of the sources.
        strip --remove-section=.note.gnu.build-id "$root/bin/$program"
        needed=$(ldd "$root/bin/$program")
        if grep -q 'not found' <<< "$needed"; then fail "$program needs what is not here: $needed"; fi
        while read -r library; do
            install -D -m 755 "$library" "$root$library"
        done < <(grep -o '/[^ ]*' <<< "$needed")
    done
}

# What a real libcuda.so.1 is linked against, and the plugin is not: the node brings the driver alone.
libraries_of_the_driver() {
    local libc library
    libc=$(ldd "$out/plugin/bin/gpu-handoff-plugin" | grep -o '/[^ ]*/libc\.so\.6')
    for library in libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
        install -D -m 755 "${libc%/*}/$library" "$out/plugin${libc%/*}/$library"
    done
}

target=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
# The pods' command does without what administers nodes and manifests; that of the plugin's image has everything. The packages are
# the same, so that what all of them need is built once.
packages=(-p gpu-handoff-plugin -p gpu-handoff-sidecar -p gpu-handoff-cli)
cargo build --release --locked --bins --no-default-features "${packages[@]}"
programs sidecar gpu-handoff-sidecar gpu-handoff
cargo build --release --locked --bins "${packages[@]}"
programs plugin gpu-handoff-plugin gpu-handoff
libraries_of_the_driver
