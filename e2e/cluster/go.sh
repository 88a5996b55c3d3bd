#!/usr/bin/env bash
# Runs Go, in the version that node/go.mod names or a later one: e2e/cluster/go.sh ARGUMENT...
# Any Go will do that is installed. From 1.21 on it fetches a newer one by itself; an older one, such as Debian 12's, fetches it as the
# module that it is, from the same place and with the same checks.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly first_that_switches=1.21

command -v go >/dev/null || {
    echo "go.sh: Go is not installed: apt-get install --no-install-recommends golang-go, or https://go.dev/dl" >&2
    exit 1
}
# Some distributions switch the switching off.
export GOTOOLCHAIN=auto
installed=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
if printf '%s\n' "$first_that_switches" "${installed#go}" | sort --check --version-sort 2>/dev/null; then
    exec go "$@"
fi
wanted=$(sed -n 's/^go //p' "$here/node/go.mod")
toolchain=golang.org/toolchain@v0.0.1-go$wanted.$(go env GOOS)-$(go env GOARCH)
told=$(cd / && GOFLAGS=-mod=mod go mod download -json "$toolchain") || {
    echo "go.sh: $installed is too old, and $toolchain cannot be fetched: $told" >&2
    exit 1
}
root=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<< "$told")
# A module's files are nobody's to run.
[[ -x $root/bin/go ]] || chmod -R a+x "$root/bin" "$root/pkg/tool"
PATH=$root/bin:$PATH exec "$root/bin/go" "$@"
