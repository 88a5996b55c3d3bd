#!/usr/bin/env bash
# Fuzzes the decoders, guided by coverage: run.sh [SECONDS|COUNTx [TARGET]]
#
# SECONDS (default 60), or COUNT packets as in 10000000x, are shared by the targets. In the end it says how many packets
# were read and how large the corpus has become; that stays in corpus/ for the next run. Works with the stable toolchain and a C++ compiler: coverage comes
# from the compiler's own flags, so neither nightly nor cargo-fuzz is needed. With both, `cargo +nightly fuzz run
# TARGET` in the folder above runs the same targets with AddressSanitizer.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
much=${1:-60}
targets=("${2:-}")
if [[ -z ${targets[0]} ]]; then
    targets=(decode_client decode_broker decode_sidecar decode_receipt answer_runtime)
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

share=$((${much%x} / ${#targets[@]}))
share=$((share > 0 ? share : 1))
if [[ $much == *x ]]; then
    until=(-runs="$share")
else
    until=(-max_total_time="$share")
fi

total=0
for target in "${targets[@]}"; do
    corpus="$here/corpus/$target"
    mkdir -p "$corpus" "$here/artifacts/$target"
    log=$(mktemp)
    if ! "$CARGO_TARGET_DIR/$host/release/$target" \
        "${until[@]}" -max_len=65600 -timeout=5 -rss_limit_mb=1024 \
        -print_final_stats=1 -artifact_prefix="$here/artifacts/$target/" \
        "$corpus" "$here/seeds/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz: $target failed; the input is under ${here#"$PWD"/}/artifacts/$target" >&2
        exit 1
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
    inputs=$(find "$corpus" -type f | wc -l)
    bytes=$(find "$corpus" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum + 0 }')
    echo "fuzz: $target: $executions packets, ${coverage:-cov: ?} edges," \
        "corpus of $inputs inputs with $bytes bytes, no failure"
    total=$((total + executions))
    rm -f "$log"
done
echo "fuzz: $total packets in all"
