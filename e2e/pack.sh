#!/usr/bin/env bash
# Packs the demo, the benchmark, the soak and everything they start into one folder, for a machine without Rust:
#   e2e/pack.sh [FOLDER]      (default: e2e/pack of this repository)
# Copy the folder there and run FOLDER/demo or FOLDER/bench: they find the rest beside themselves.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
to=$(realpath -m -- "${1:-$root/e2e/pack}")
mark=.made-by-pack.sh
if [[ -e $to && ! -e $to/$mark && -n $(ls -A -- "$to") ]]; then
    echo "pack.sh: $to has something else in it; name a new or empty folder" >&2
    exit 2
fi
cd "$root"
cargo build --release --workspace --bins --lib
from=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
rm -rf -- "$to"
mkdir -p -- "$to/simcuda"
touch -- "$to/$mark"
put() { if command -v strip >/dev/null; then strip -o "$2" "$1"; else cp -- "$1" "$2"; fi; }
names=(gpu-handoff-plugin gpu-handoff-sidecar gpu-handoff agent rough demo bench soak conformance simcuda-dump simcuda-fault)
for name in "${names[@]}"; do
    put "$from/$name" "$to/$name"
done
put "$from/libgpu_handoff_simcuda.so" "$to/simcuda/libcuda.so.1"
du -sh -- "$to" | sed 's/\t/ in /'
