#!/usr/bin/env bash
# Packs the demo, the benchmark and everything they start into one folder, for a machine without Rust:
#   e2e/pack.sh [FOLDER]      (default: e2e/pack)
# Copy the folder there and run FOLDER/demo or FOLDER/bench: they find the rest beside themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${1:-e2e/pack}
cargo build --release --workspace --bins --lib
from=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
rm -rf "$to"
mkdir -p "$to/simcuda"
for name in gpu-handoff-plugin gpu-handoff-sidecar gpu-handoff agent demo bench conformance simcuda-dump; do
    strip -o "$to/$name" "$from/$name"
done
strip -o "$to/simcuda/libcuda.so.1" "$from/libgpu_handoff_simcuda.so"
du -sh "$to" | sed 's/\t/ in /'
