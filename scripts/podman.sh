#!/usr/bin/env bash
# Runs the tests of the Podman runtime on real services: the distribution's Podman
# and 5.8.3, each as root and as an ordinary user. Without root, as this user alone.
# The services and all that they made are gone when it ends.
#   podman.sh [TEST FLAGS...]    e.g. -count=20, -v
#   podman.sh bench              measures instead, and writes the section "Podman"
#                                of docs/benchmarks.md
# KICK_TEST_PODMAN_ONLY is a pattern of services, as in "rootless-5" or "crun".
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
mkdir -p "$cache"
services=$(mktemp -d /tmp/kick-podman-XXXXXX)
chmod 755 "$services"

# Networks of rootless services need this device for everybody, as udev has it; a
# small VM may have no udev.
tun=
if [ "$(id -u)" = 0 ] && [ -c /dev/net/tun ]; then
  tun=$(stat -c %a /dev/net/tun)
  chmod 666 /dev/net/tun
fi

left() { grep -F "$services/" /proc/self/mounts || grep -slF "$services/" /proc/[0-9]*/cmdline; }

end() {
  local env began
  for env in "$services"/*/env; do
    [ ! -e "$env" ] || "$root/hack/podman.sh" down "$(dirname "$env")"
  done
  ! mountpoint -q "$services/nosuid" || umount "$services/nosuid"
  rm -rf "$services"
  [ -z "$tun" ] || chmod "$tun" /dev/net/tun
  # Nothing outlives the services; what is on its way out has a moment.
  began=$SECONDS
  while left >/dev/null && [ $((SECONDS - began)) -lt 20 ]; do :; done
  if left; then
    echo "podman: the above is left of the services in $services" >&2
    exit 1
  fi
}
trap end EXIT

make -s build
# Where every service's user can run it: the cache may be below a closed home.
newer=$services/podman
install -m 755 "$(hack/podman.sh build)" "$newer"
image=$cache/kick-agent.tar
built=$(bin/kick image build --out "$image" -o json)
id=$(sed -n 's/^  "id": "\(.*\)",$/\1/p' <<<"$built")

# start NAME PROGRAM [FLAGS...]: starts a service and loads the image.
started=()
start() {
  local name=$1 program=$2
  shift 2
  [[ $name =~ ${KICK_TEST_PODMAN_ONLY:-.} ]] || return 0
  hack/podman.sh up "$services/$name" --podman "$program" "$@" >/dev/null
  hack/podman.sh exec "$services/$name" "$program" --remote load --quiet <"$image" >/dev/null
  started+=("$services/$name")
  echo "podman: $name is $("$program" --version)"
}
if [ "$(id -u)" = 0 ]; then
  start rootful podman
  start rootful-5 "$newer"
  start rootless podman --user kick-podman
  start rootless-5 "$newer" --user kick-podman
else
  echo "podman: not root, so only rootless services are tested"
  start rootless podman
  start rootless-5 "$newer"
fi

# crun is tried as root alone. Debian 12's loses nosuid and nodev on the workspace,
# so that this must lie where both hold anyway; and the newer Podman refuses it.
start_crun() {
  [ "$(id -u)" = 0 ] && command -v crun >/dev/null && [[ crun =~ ${KICK_TEST_PODMAN_ONLY:-.} ]] || return 0
  mkdir "$services/nosuid"
  mount -t tmpfs -o nosuid,nodev,mode=1777,size=2g kick-nosuid "$services/nosuid"
  hack/podman.sh up "$services/crun" --runtime crun >/dev/null
  hack/podman.sh exec "$services/crun" podman --remote load --quiet <"$image" >/dev/null
  echo "podman: crun is $(podman --version) with $(crun --version | head -1)"
}

# bench compares a whole run of the launcher with a bare `podman run` on each service.
bench() {
  local out=docs/benchmarks.md dir name program goal rows=
  ${GO:-go} build -o bin/podmanbench ./internal/podmanbench
  # Where every service's user can read them.
  install -m 755 bin/podmanbench cmd/kick/shim/kick-shim "$services"
  for dir in "${started[@]}"; do
    name=$(basename "$dir") program=podman goal='≤ 1.0'
    [[ $name != *-5 ]] || program=$newer goal='≤ 0.9'
    rows+=$(cd / && "$OLDPWD/hack/podman.sh" exec "$dir" "$services/podmanbench" -shim "$services/kick-shim" -podman "$program" \
      -image "$id" -goal "$goal" -name "${name%-5}, $("$program" --version | sed "s/.* /Podman /")")$'\n'
  done
  sed -i '/^## Podman$/,/^## /{/^## Podman$/d;/^## /!d}' "$out"
  cat >>"$out" <<END

## Podman

\`scripts/podman.sh bench\`: the launcher's whole run of \`true\` (container made, proved, run, removed, nothing left) against
\`podman run --rm --network none IMAGE true\` on the same storage, in turn. Milliseconds: median (best), at a load of $(cut -d' ' -f1 /proc/loadavg) on $(nproc) CPUs.

| service | kick | podman run | ratio | goal |
|---|---|---|---|---|
$rows
END
  sed -i -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$out" # no empty lines at the end
}
if [ "${1:-}" = bench ]; then
  bench
  exit
fi

export KICK_TEST_PODMAN="${started[*]}" KICK_TEST_IMAGE=$id

# A real agent in a container, on the first service: loading its image takes longest.
if [ "${KICK_SKIP_REAL_AGENTS:-}" != 1 ] && [ ${#started[@]} -gt 0 ]; then
  codex=$cache/kick-codex.tar
  bin/kick image build --agent codex --name localhost/kick-codex:latest --out "$codex" -o json >/dev/null
  hack/podman.sh exec "${started[0]}" podman --remote load --quiet <"$codex" >/dev/null
  KICK_TEST_PODMAN=${started[0]} KICK_TEST_CODEX_IMAGE=localhost/kick-codex:latest ${GO:-go} test -count=1 -run '^TestPodmanCodex$' ./acceptance
fi

start_crun
if [ -d "$services/crun" ]; then
  KICK_TEST_PODMAN=$services/crun KICK_TEST_PODMAN_RUN='^TestOnPodman(Contract|FastExit|Killed|Leftover|OtherRuntime|Properties)$' TMPDIR=$services/nosuid \
    ${GO:-go} test -count=1 -timeout 60m -run '^TestPodman$' "$@" ./sandbox
fi

[ ${#started[@]} -gt 0 ] || exit 0 # crun alone was asked for
# One package at a time: a test stops a service, and whoever uses its storage waits.
${GO:-go} test -count=1 -p 1 -timeout 60m -run '^TestPodman' "$@" ./internal/image ./sandbox ./acceptance

# kick's client is held against Podman's own Go bindings.
cd internal/podman/bindings
for dir in "${started[@]}"; do
  CONTAINER_HOST=unix://$dir/podman.sock KICK_TEST_PODMAN_IMAGE=$id CGO_ENABLED=0 \
    ${GO:-go} test -count=1 -tags 'remote containers_image_openpgp' ./...
done
