#!/usr/bin/env bash
# Long repetitions, outside CI: every fuzz target for ten minutes, the launcher
# contract and the crash tests ten times.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
${GO:-go} test -count=10 -timeout 2h ./sandbox/...
${GO:-go} test -count=10 -timeout 2h -run 'Crash' ./acceptance
scripts/fuzz.sh "${SOAK_FUZZTIME:-10m}"
