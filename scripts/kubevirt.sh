#!/usr/bin/env bash
# Runs the tests of the KubeVirt runtime: real machines, which QEMU boots, on a real
# cluster of one node, with what stands in for KubeVirt (internal/kubevirttest). It needs
# root. The cluster and all that it made are gone when it ends.
#   kubevirt.sh [TEST FLAGS...]    e.g. -count=10, -v, -run '^TestKubeVirtRun$'
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
  [ "${CI:-}" != true ] || { echo "kubevirt: a node needs root, and in CI it is no option to leave these tests out" >&2; exit 1; }
  echo "kubevirt: not root, so KubeVirt is not tested"
  exit
fi
dir=$(mktemp -d /tmp/kick-kube-XXXXXX)
cluster=$dir/cluster

end() {
  # Of a cluster that failed, what its programs said last.
  if [ $? != 0 ]; then tail -n 5 "$cluster"/log/* | cut -c1-300 >&2 || true; fi
  [ ! -e "$cluster" ] || hack/kube.sh down "$cluster"
  rm -rf "$dir"
}
trap end EXIT

hack/kubevirt.sh install
make -s build
KICK_TEST_KUBEVIRT_IMAGE=$(hack/kubevirt.sh image)
KICK_TEST_KUBEVIRT_CRDS=$dir/definitions.yaml
hack/kubevirt.sh crds >"$KICK_TEST_KUBEVIRT_CRDS"
hack/kube.sh up "$cluster" >/dev/null
KICK_TEST_KUBE=$cluster
KICK_TEST_KUBE_IMAGE=none # no test of these runs a pod
export KICK_TEST_KUBE KICK_TEST_KUBE_IMAGE KICK_TEST_KUBEVIRT_IMAGE KICK_TEST_KUBEVIRT_CRDS

# What needs no machine runs with the tests of all packages. A machine has one software
# CPU and waits at times, so some more tests run than there are CPUs.
${GO:-go} test -count=1 -p 1 -parallel $((3 * $(nproc) / 2)) -timeout 30m -skip '^TestKubeVirtGuest' -run '^TestKubeVirt' "$@" ./internal/kubevirttest ./sandbox ./acceptance
