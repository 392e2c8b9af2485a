#!/usr/bin/env bash
# Runs the tests of the Kubernetes runtime on a real cluster of one node, which
# hack/kube.sh makes. It needs root. The cluster and all that it made are gone when
# it ends.
#   kube.sh [TEST FLAGS...]    e.g. -count=10, -v, -run '^TestKubeLauncher$'
#   kube.sh bench              measures instead, and writes the section "Kubernetes" of
#                              docs/benchmarks.md
#   kube.sh scale [TEST FLAGS...]
#                              runs the tests of many kicks alone, with as many as the
#                              goals say
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
  if [ $? != 0 ]; then tail -n 5 "$cluster"/log/* | cut -c1-300 >&2 || true; fi
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
image=$cache/kick-agent-shim.tar
# It has the shim too: most tests have it brought by an init container all the same.
bin/kick image build --shim --out "$image" -o json >/dev/null
KICK_TEST_KUBE=$cluster
KICK_TEST_KUBE_IMAGE=$(hack/kube.sh load "$cluster" "$image")
export KICK_TEST_KUBE KICK_TEST_KUBE_IMAGE
echo "kube: the cluster runs Kubernetes $(hack/kube.sh exec "$cluster" kubectl version -o json | sed -n 's/^ *"gitVersion": "\(.*\)",$/\1/p' | tail -n 1)"

# measured OUTPUT BENCHMARK UNIT prints one figure.
measured() { awk -v name="^$2(-[0-9]+)?$" -v unit="$3" '$1 ~ name { for (i = 3; i < NF; i += 2) if ($(i + 1) == unit) print $i }' "$1"; }

bench() {
  # Seven rounds of all take a quarter of an hour on a quiet machine.
  local out=docs/benchmarks.md said=$dir/bench rounds=${KICK_BENCHTIME:-7x} name rows=
  # The shim of the image, which is kick's and not one that the tests build.
  KICK_TEST_SHIM=$root/cmd/kick/shim/kick-shim ${GO:-go} test -run '^$' -bench '^BenchmarkKube' -benchtime "$rounds" -timeout 90m ./sandbox | tee "$said"
  for name in "shim in the image" "shim from an init container"; do
    rows+="| Job, $name |"
    for unit in bare-ms kick-ms kick/bare canary-ms; do rows+=" $(measured "$said" "BenchmarkKubeStart/${name// /_}" $unit) |"; done
    rows+=$'\n'
  done
  sed -i '/^## Kubernetes$/,/^## /{/^## Kubernetes$/d;/^## /!d}' "$out"
  cat >>"$out" <<END

## Kubernetes

\`scripts/kube.sh bench\`: from the call of Run until the pod's shim has said that it is ready, and its isolation is proved, against
\`kubectl create job\` until \`kubectl logs -f\` prints its first line, in turn on the same node. Milliseconds, medians of ${rounds%x}, at a load of $(cut -d' ' -f1 /proc/loadavg) on $(nproc) CPUs.

| | kubectl | kick | ratio (goal ≤ 1.1) | what waiting for the NetworkPolicy adds |
|---|---|---|---|---|
$rows
The init container is a second container that the node starts before the first; \`kick image build --shim\`
makes an image that needs none.

From the call of Run to the agent's first line: $(measured "$said" BenchmarkKubePool pool-ms) ms with a pod of a pool, $(measured "$said" BenchmarkKubePool job-ms) ms with a Job in turn with it, and
$(measured "$said" BenchmarkKubeWarm claim-ms) ms with a sandbox of a warm pool of agent-sandbox.

With a base of 64 MiB that cannot be made smaller, to the agent's first line, and to the end of everything:
$(measured "$said" BenchmarkKubeClaim stream-first-ms) and $(measured "$said" BenchmarkKubeClaim stream-whole-ms) ms by stream, $(measured "$said" BenchmarkKubeClaim claim-first-ms) and $(measured "$said" BenchmarkKubeClaim claim-whole-ms) ms on a claim that has the base.
How many calls to the API server a kick makes, ADR 37 says and TestKubeCalls holds.
END
  sed -i -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$out" # no empty lines at the end
}
if [ "${1:-}" = bench ]; then
  bench
  exit
fi

if [ "${1:-}" = scale ]; then
  shift
  export KICK_TEST_KUBE_KICKS=200 KICK_TEST_KUBE_JOBS=5000 KICK_SKIP_REAL_AGENTS=1
  set -- -run '^TestKubeMany' -timeout 2h "$@"
fi

# A real agent in a pod.
if [ "${KICK_SKIP_REAL_AGENTS:-}" != 1 ]; then
  codex=$cache/kick-codex.tar
  bin/kick image build --agent codex --name localhost/kick-codex:latest --out "$codex" -o json >/dev/null
  KICK_TEST_KUBE_CODEX_IMAGE=$(hack/kube.sh load "$cluster" "$codex")
  export KICK_TEST_KUBE_CODEX_IMAGE
fi

# One package at a time: a test that disturbs the cluster waits for all others. Most of
# what a test does is to wait for the cluster, so twice as many run as there are CPUs.
${GO:-go} test -count=1 -p 1 -parallel $((2 * $(nproc))) -timeout 60m -run '^TestKube' "$@" ./internal/kubetest ./internal/manifests ./sandbox ./acceptance
