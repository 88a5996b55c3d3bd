#!/usr/bin/env bash
# Builds the product's images from its Dockerfile, as archives that `ctr image import` takes: e2e/cluster/product-images.sh FOLDER [OPTION...]
# The builder is buildah, without a registry and without a daemon; the options are its own. The same input gives the same bytes:
# everything is of 1970.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
out=${1:?product-images.sh FOLDER [OPTION...]}
store=$(mktemp -d)
trap 'rm -rf -- "$store"' EXIT

# With nothing of this machine's own containers; vfs and chroot also work where this is a container itself.
builder() { TMPDIR=$store buildah --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"; }

mkdir -p "$out"
for target in plugin sidecar; do
    name=e2e.local/$target:1
    builder build --quiet --isolation chroot --timestamp 0 --identity-label=false --target "$target" --tag "$name" \
        "${@:2}" "$here/../.." >/dev/null
    rm -f -- "$out/$target.tar.partial"
    # An OCI layout it would compress, and pack.sh compresses all images together much better.
    builder push --quiet "$name" "docker-archive:$out/$target.tar.partial:$name"
    mv -- "$out/$target.tar.partial" "$out/$target.tar"
done
