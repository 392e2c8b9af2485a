#!/usr/bin/env bash
# Measures kick against the plain tools and writes docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
gitleaks=$cache/gitleaks-v8.30.1
if [ ! -x "$gitleaks" ]; then
  GOBIN=$cache/bin ${GO:-go} install github.com/zricethezav/gitleaks/v8@v8.30.1
  mv "$cache/bin/gitleaks" "$gitleaks"
fi
exec ${GO:-go} run ./internal/bench -kick bin/kick -gitleaks "$gitleaks" "$@"
