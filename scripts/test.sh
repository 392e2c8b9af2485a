#!/usr/bin/env bash
# Runs the tests in lanes, each within a budget.
#   test.sh quick   format, vet, lint, unit tests, the embedded sandbox
#   test.sh all     everything, after setting up what it needs
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
export GO=${GO:-go} CGO_ENABLED=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# What failed, and what each lane took, a line each: lanes may run side by side.
failed=$logs/failed
took=$logs/took
touch "$failed"
# lane NAME SECONDS COMMAND...: runs one lane; a lane over its budget fails.
lane() {
  local name=$1 budget=$2 began=$SECONDS ok=yes out reader said
  shift 2
  echo "--- $name"
  exec {out}> >(tee "$logs/lane-$name")
  reader=$!
  timeout --foreground "$budget" "$@" >&"$out" 2>&1 {out}>&- || ok=
  exec {out}>&-
  # It may have left something that holds its output open.
  timeout 5 tail -s 0.1 --pid="$reader" -f /dev/null || true
  if [ "$ok" ]; then
    said="ok, $((SECONDS - began)) s"
  else
    said="FAILED after $((SECONDS - began)) s (budget $budget s)"
    echo "$name" >>"$failed"
  fi
  echo "--- $name: $said" | tee -a "$took"
}

# built PID NAME: waits for what is built in the background. The lane that uses it
# builds what is not there, and fails if it cannot.
built() {
  wait "$1" && return
  cat "$logs/$2"
  echo "--- $2: FAILED in the background, so the lane that uses it builds it" | tee -a "$took"
}

format() {
  local out
  out=$(gofmt -l $(git ls-files '*.go'))
  [ -z "$out" ] || { echo "not gofmt'ed:"; echo "$out"; return 1; }
}
export -f format

if [ "$mode" = all ]; then
  lane setup 900 scripts/setup.sh
  # The linter, a newer Podman, Kubernetes and a machine's image take minutes to build
  # from cold caches: in the background, at low priority, while the tests run.
  nice -n 10 make -s lint-tool >"$logs/lint-build" 2>&1 &
  lint_build=$!
  nice -n 10 hack/podman.sh build >"$logs/podman-build" 2>&1 &
  podman_build=$!
fi

lane format 60 bash -c format
lane build 900 make -s build
if [ "$mode" = all ]; then
  # After the build: bin/kick makes the machine's image.
  { tail --pid="$podman_build" -f /dev/null; nice -n 10 hack/kube.sh build && nice -n 10 hack/kubevirt.sh image; } >"$logs/kube-build" 2>&1 &
  kube_build=$!
fi
lane vet 900 "$GO" vet ./...
lane generic-build 600 "$GO" build ./...

if [ "$mode" = quick ]; then
  lane lint 600 make -s lint
  # The slow suites are sampled here; "all" runs them whole.
  lane unit 300 "$GO" test -short -timeout 5m $("$GO" list ./... | grep -vE '/(acceptance|sandbox|sandboxtest|pushbroker|scan|workspace|kick-shim)$')
  lane broker 300 "$GO" test -short -timeout 5m -run 'Parse|Verdict|Text|Report|Target|Escape|OneSmall' ./pushbroker
  lane embedded 300 "$GO" test -short -timeout 5m -run 'TestRun|TestPlanted' ./sandbox
  lane line 300 "$GO" test -short -timeout 5m -run 'TestScripts/(branch|nothing|refused|publish)' ./acceptance
else
  lane test 2400 "$GO" test -timeout 30m ./...
  lane race 1200 env CGO_ENABLED=1 "$GO" test -race -short -timeout 15m ./internal/frame ./internal/escape ./internal/forwarder ./egress ./manager ./workspace
  built "$podman_build" podman-build
  built "$kube_build" kube-build
  # Both wait for others most of the time, so they run side by side.
  lane podman 2700 scripts/podman.sh >"$logs/podman" 2>&1 &
  podman=$!
  lane kube 2700 scripts/kube.sh
  wait "$podman"
  cat "$logs/podman"
  # Machines on a software CPU starve beside others.
  lane kubevirt 1200 scripts/kubevirt.sh
  lane fuzz 900 scripts/fuzz.sh 5s
  built "$lint_build" lint-build
  lane lint 900 make -s lint
fi

echo
cat "$took"
if [ -s "$failed" ]; then
  # What failed may be thousands of lines above.
  while read -r name; do
    grep -A 3 -E '^ *--- FAIL' "$logs/lane-$name" 2>/dev/null | cut -c1-300 || true
  done <"$failed"
  echo "FAILED: $(tr '\n' ' ' <"$failed")"
  exit 1
fi
echo "all lanes passed in $SECONDS s"
