#!/usr/bin/env bash
# Long repetitions, outside CI: every fuzz target for ten minutes, the launcher
# contract and the crash tests ten times, the whole planted corpus once.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
${GO:-go} test -count=10 -timeout 2h ./sandbox/...
${GO:-go} test -count=10 -timeout 2h -run 'Crash' ./acceptance
KICK_SOAK=1 ${GO:-go} test -timeout 4h -run 'Recall|GoSource' ./pushbroker/scan
scripts/fuzz.sh "${SOAK_FUZZTIME:-10m}"
