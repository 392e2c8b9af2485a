#!/usr/bin/env bash
# Runs the tests of the Kubernetes runtime on a real cluster of one node, which
# hack/kube.sh makes. It needs root. The cluster and all that it made are gone when
# it ends.
#   kube.sh [TEST FLAGS...]    e.g. -count=10, -v, -run '^TestKubeLauncher$'
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
if [ "$(id -u)" != 0 ]; then
  [ "${CI:-}" != true ] || { echo "kube: a node needs root, and in CI it is no option to leave these tests out" >&2; exit 1; }
  echo "kube: not root, so Kubernetes is not tested"
  exit
fi
cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
mkdir -p "$cache"
dir=$(mktemp -d /tmp/kick-kube-XXXXXX)
cluster=$dir/cluster

link=

# left lists what is left of the cluster: mounts, processes, and what its link
# names.
left() {
  grep -F "$cluster" /proc/self/mounts || grep -slF "$cluster/" /proc/[0-9]*/cmdline ||
    { [ -n "$link" ] && { ls -d /sys/fs/cgroup/{,*/}"$link" 2>/dev/null | grep . || ip -o link show "$link" 2>/dev/null; }; }
}

end() {
  # Of a cluster that failed, what its programs said last.
  if [ $? != 0 ]; then tail -n 5 "$cluster"/log/* >&2 || true; fi
  [ ! -e "$cluster" ] || "$root/hack/kube.sh" down "$cluster"
  rm -rf "$dir"
  if left; then
    echo "kube: the above is left of the cluster in $cluster" >&2
    exit 1
  fi
}
trap end EXIT

make -s build
hack/kube.sh up "$cluster" >/dev/null
link=$(sed -n 's/^link=//p' "$cluster/run/node")
image=$cache/kick-agent.tar
bin/kick image build --out "$image" -o json >/dev/null
KICK_TEST_KUBE=$cluster
KICK_TEST_KUBE_IMAGE=$(hack/kube.sh load "$cluster" "$image")
export KICK_TEST_KUBE KICK_TEST_KUBE_IMAGE
echo "kube: the cluster runs Kubernetes $(hack/kube.sh exec "$cluster" kubectl version -o json | sed -n 's/^ *"gitVersion": "\(.*\)",$/\1/p' | tail -n 1)"

# A real agent in a pod.
if [ "${KICK_SKIP_REAL_AGENTS:-}" != 1 ]; then
  codex=$cache/kick-codex.tar
  bin/kick image build --agent codex --name localhost/kick-codex:latest --out "$codex" -o json >/dev/null
  KICK_TEST_KUBE_CODEX_IMAGE=$(hack/kube.sh load "$cluster" "$codex")
  export KICK_TEST_KUBE_CODEX_IMAGE
fi

# One package at a time: a test that disturbs the cluster waits for all others.
${GO:-go} test -count=1 -p 1 -timeout 60m -run '^TestKube' "$@" ./internal/kubetest ./internal/manifests ./sandbox ./acceptance
