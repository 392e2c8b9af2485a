#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given, e.g. fuzz.sh 5s.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
grep -rEl --include='*_test.go' '^func Fuzz[A-Z]' . | while read -r file; do
  pkg=$(dirname "$file")
  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | cut -d' ' -f2 | while read -r target; do
    echo "fuzz $pkg $target $time"
    ${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$pkg" >/tmp/fuzz.$$ 2>&1 || { cat /tmp/fuzz.$$; rm -f /tmp/fuzz.$$; exit 1; }
    rm -f /tmp/fuzz.$$
  done
done
