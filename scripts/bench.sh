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
if [ ! -x "$gitleaks-re2" ]; then
  GOBIN=$cache/bin ${GO:-go} install -tags gore2regex github.com/zricethezav/gitleaks/v8@v8.30.1
  mv "$cache/bin/gitleaks" "$gitleaks-re2"
fi
${GO:-go} build -o bin/bench ./internal/bench
${GO:-go} build -o bin/recall ./pushbroker/scan/internal/recall
${GO:-go} build -o bin/egress-bench ./egress/internal/bench

# On a new file system, where one can be made, so that neither the age of the
# host's nor what was just deleted from it counts: ext4 without a journal passes
# over every inode that it freed in the last half minute, which made checkouts
# three times as long.
if [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
  unshare --mount --propagation private bash -euo pipefail -c '
    dir=$(mktemp -d)
    trap "umount $dir 2>/dev/null || true; rm -rf $dir $dir.img" EXIT
    truncate -s 4G "$dir.img"
    if mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$dir.img" && mount -o loop "$dir.img" "$dir"; then
      export TMPDIR=$dir
    else
      echo "bench: no file system of its own, using ${TMPDIR:-/tmp}" >&2
    fi
    bin/bench "$@"' bench -kick bin/kick -gitleaks "$gitleaks" "$@"
else
  bin/bench -kick bin/kick -gitleaks "$gitleaks" "$@"
fi
# Both replace or add their sections of what the above left.
bin/recall -gitleaks "$gitleaks-re2"
bin/egress-bench
scripts/podman.sh bench
scripts/kube.sh bench
