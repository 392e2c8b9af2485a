#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given, e.g. fuzz.sh 5s, and
# lists at the end all that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
dir=$(mktemp -d)
log=$dir/log
trap 'rm -rf "$dir"' EXIT

# The go command fails a target that found nothing when the time ends while a
# worker is busy: "context deadline exceeded" is then all that it says.
# https://go.dev/issue/75804
only_out_of_time() {
  grep -qE '^ +context deadline exceeded$' "$log" &&
    ! grep -qvE '^fuzz: elapsed: |^--- FAIL: Fuzz[A-Za-z0-9_]+ \([0-9.]+s\)$|^ +context deadline exceeded$|^FAIL$|^$' "$log"
}

fuzz() {
  local pkg=$1 target=$2 corpus=$3 again
  for again in 1 2 last; do
    echo "fuzz $pkg $target $time"
    # In the package's directory, as the go command runs it.
    (cd "$pkg" && "$dir/test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 20x -test.fuzzcachedir "$corpus") >"$log" 2>&1 && return
    only_out_of_time && [ "$again" != last ] || { cat "$log"; return 1; }
    echo "fuzz $pkg $target: its time ended while a worker was busy, and it found nothing: once more"
  done
}

failed=()
cache=$(${GO:-go} env GOCACHE)/fuzz # where the go command keeps what was found
while read -r pkg; do
  import=$(${GO:-go} list "$pkg")
  # Built once for all targets of a package, which the go command does not.
  if ! ${GO:-go} test -c -fuzz . -o "$dir/test" "$pkg"; then
    failed+=("$pkg, which does not build")
    continue
  fi
  for target in $(cat "$pkg"/*_test.go | grep -oE '^func Fuzz[A-Z][A-Za-z0-9_]*' | cut -c6- | sort); do
    fuzz "$pkg" "$target" "$cache/$import" </dev/null || failed+=("$pkg $target")
  done
done < <(grep -rlE --include='*_test.go' '^func Fuzz[A-Z]' . | xargs -n 1 dirname | sort -u)

if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz FAILED: %s\n' "${failed[@]}"
  exit 1
fi
