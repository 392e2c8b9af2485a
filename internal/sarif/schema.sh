#!/bin/sh
# Fetches the published JSON schema of SARIF 2.1.0, as the npm package
# @microsoft/jest-sarif carries it, into the cache, for the test that holds
# kick's output against it. Prints the file. Does nothing when it is there
# already.
set -eu
version=1.0.0-beta.0
sum=748e2c3d1a842e7bb258416685c7ea3a0da40005b72267b2052c2856d48ad102
cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
file=$cache/sarif-2.1.0-rtm.5.json
if [ ! -f "$file" ]; then
	command -v npm >/dev/null || { echo "schema.sh: npm is not installed; install Node.js to fetch the schema of SARIF" >&2; exit 1; }
	mkdir -p "$cache"
	tmp=$(mktemp -d "$cache/sarif.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	(cd "$tmp" && npm pack --silent "@microsoft/jest-sarif@$version" >/dev/null)
	echo "$sum  $tmp/microsoft-jest-sarif-$version.tgz" | sha256sum -c --quiet -
	tar -xzf "$tmp/microsoft-jest-sarif-$version.tgz" -C "$tmp" package/lib/schemas/sarif-2.1.0-rtm.5.json
	mv "$tmp/package/lib/schemas/sarif-2.1.0-rtm.5.json" "$file"
fi
echo "$file"
