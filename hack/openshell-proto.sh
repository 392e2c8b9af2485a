#!/usr/bin/env bash
# Writes the Go code of internal/openshellapi/wire/*.proto anew, and the sums by
# which a test sees that the two belong together. The code is committed, so that
# nobody needs this to build kick. It takes Debian's protobuf-compiler and
# libprotobuf-dev, which has the well-known types.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=internal/openshellapi/wire
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
for tool in google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12 google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2; do
  GOBIN=$tools "${GO:-go}" install "$tool"
done
PATH=$tools:$PATH protoc -I. --go_out=. --go_opt=paths=source_relative \
  --go-grpc_out=. --go-grpc_opt=paths=source_relative "$dir"/*.proto
(cd "$dir" && sha256sum -- *.proto *.pb.go >SHA256SUMS)
