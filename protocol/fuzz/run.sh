#!/usr/bin/env bash
# Fuzzes the decoders, guided by coverage: run.sh [SECONDS [TARGET]]
#
# SECONDS are shared by the targets (default 60). Works with the stable toolchain and a C++ compiler: coverage comes
# from the compiler's own flags, so neither nightly nor cargo-fuzz is needed. With both, `cargo +nightly fuzz run
# TARGET` in the folder above runs the same targets with AddressSanitizer.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:-60}
targets=("${2:-}")
if [[ -z ${targets[0]} ]]; then
    targets=(decode_client decode_broker decode_sidecar)
fi

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$here/target}/fuzz"
# With --target these flags reach the fuzzed code alone, not build scripts and macros.
export RUSTFLAGS="--cfg fuzzing -Clink-dead-code -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
cargo build --quiet --release --bins --target "$host" --manifest-path "$here/Cargo.toml"

share=$((seconds / ${#targets[@]}))
for target in "${targets[@]}"; do
    corpus="$here/corpus/$target"
    mkdir -p "$corpus" "$here/artifacts/$target"
    log=$(mktemp)
    if ! "$CARGO_TARGET_DIR/$host/release/$target" \
        -max_total_time="$((share > 0 ? share : 1))" -max_len=65600 -timeout=5 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="$here/artifacts/$target/" \
        "$corpus" "$here/seeds/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz: $target failed; the input is under ${here#"$PWD"/}/artifacts/$target" >&2
        exit 1
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
    echo "fuzz: $target: $executions executions, ${coverage:-cov: ?} edges, no failure"
    rm -f "$log"
done
