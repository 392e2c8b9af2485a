#!/usr/bin/env bash
# Installs what the tests need on Debian or Ubuntu, once: git, npm (for the
# published API description that the stand-in is checked against), gcc (for the
# race detector), zip, xz, Podman, what a node of Kubernetes needs, QEMU. Needs root
# or sudo only if something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

sudo=()
if [ "$(id -u)" != 0 ]; then sudo=(sudo); fi

need=()
command -v git >/dev/null || need+=(git)
command -v npm >/dev/null || need+=(npm)
command -v gcc >/dev/null || need+=(gcc libc6-dev)
command -v zip >/dev/null || need+=(zip)
command -v xz >/dev/null || need+=(xz-utils)
command -v bwrap >/dev/null || need+=(bubblewrap)
if [ ${#need[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || { echo "setup: install these and run again: ${need[*]}" >&2; exit 1; }
  echo "setup: installing ${need[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi
hack/podman.sh install
hack/kube.sh install
hack/kubevirt.sh install
git --exec-path >/dev/null
[ -x "$(git --exec-path)/git-http-backend" ] || { echo "setup: this git has no http-backend; install the distribution's full git" >&2; exit 1; }
# GitHub's published API description, which the stand-in's answers are held
# against.
internal/githubtest/openapi.sh >/dev/null
# The published schema of SARIF, which kick's output is held against.
internal/sarif/schema.sh >/dev/null
