#!/bin/sh
# Fetches GitHub's published OpenAPI description (npm package @octokit/openapi)
# into the cache, for the tests that hold the stand-in's answers against it.
# Prints the directory. Does nothing when it is there already.
set -eu
version=23.0.2
sum=71a18407dd5e8464f4e0525daf03deabbe65abd9287d6adc7b5d98f516cd0d0c
cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
dir=$cache/octokit-openapi-$version
if [ ! -f "$dir/api.github.com.json" ]; then
	command -v npm >/dev/null || { echo "openapi.sh: npm is not installed; install Node.js to fetch GitHub's API description" >&2; exit 1; }
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/openapi.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	(cd "$tmp" && npm pack --silent "@octokit/openapi@$version" >/dev/null)
	echo "$sum  $tmp/octokit-openapi-$version.tgz" | sha256sum -c --quiet -
	tar -xzf "$tmp/octokit-openapi-$version.tgz" -C "$tmp" package/generated/api.github.com.json package/generated/ghes-3.19.json
	mkdir -p "$dir"
	mv "$tmp"/package/generated/*.json "$dir/"
fi
echo "$dir"
