#!/usr/bin/env bash
# Long repetitions, outside CI: every fuzz target for ten minutes, the launcher
# contract and the crash tests ten times, all tests on Kubernetes ten times (the
# contract by stream, on a claim and from a pool) and those of many kicks with as
# many as the goals say, in virtual machines ten times, on Podman twenty times with
# every agent once, a thousand fast ends and fifty kills, the whole planted corpus
# once.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
${GO:-go} test -count=10 -timeout 2h ./sandbox/...
${GO:-go} test -count=10 -timeout 2h -run 'Crash' ./acceptance
scripts/podman.sh -count=20 -timeout 24h
KICK_SOAK=1 KICK_TEST_PODMAN_RUN='^$' scripts/podman.sh -run '^TestPodman$' -timeout 4h
KICK_SOAK=1 scripts/kube.sh -count=10 -timeout 12h
scripts/kube.sh scale
KICK_SOAK=1 scripts/kubevirt.sh -count=10 -timeout 12h
KICK_TEST_REPEAT=1000 KICK_TEST_PODMAN_RUN='^TestOnPodmanFastExit$' scripts/podman.sh -run '^TestPodman$' -timeout 4h
KICK_TEST_REPEAT=50 KICK_TEST_PODMAN_RUN='^TestOnPodmanKilled$' scripts/podman.sh -run '^TestPodman$' -timeout 4h
KICK_SOAK=1 ${GO:-go} test -timeout 4h -run 'Recall|GoSource' ./pushbroker/scan
scripts/fuzz.sh "${SOAK_FUZZTIME:-10m}"
