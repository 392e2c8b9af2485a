#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given, e.g. fuzz.sh 5s, and
# lists at the end all that failed.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The go command fails a target that found nothing when the time ends while a
# worker is busy: "context deadline exceeded" is then all that it says.
# https://go.dev/issue/75804
only_out_of_time() {
  grep -qE '^ +context deadline exceeded$' "$log" &&
    ! grep -qvE '^fuzz: elapsed: |^--- FAIL: Fuzz[A-Za-z0-9_]+ \([0-9.]+s\)$|^ +context deadline exceeded$|^FAIL$|^exit status 1$|^FAIL[[:space:]]+[^[:space:]]+[[:space:]]+[0-9.]+s$|^$' "$log"
}

fuzz() {
  local pkg=$1 target=$2 again
  for again in 1 2 last; do
    echo "fuzz $pkg $target $time"
    ${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 20x "$pkg" >"$log" 2>&1 && return
    only_out_of_time && [ "$again" != last ] || { cat "$log"; return 1; }
    echo "fuzz $pkg $target: its time ended while a worker was busy, and it found nothing: once more"
  done
}

failed=()
while IFS=: read -r file line; do
  target=${line#func }
  fuzz "$(dirname "$file")" "$target" </dev/null || failed+=("$(dirname "$file") $target")
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Z][A-Za-z0-9_]*' . | sort)

if [ ${#failed[@]} -gt 0 ]; then
  printf 'fuzz FAILED: %s\n' "${failed[@]}"
  exit 1
fi
