#!/usr/bin/env bash
# A real Kubernetes of one node for kick, without a registry and beside whatever
# else runs on the host: etcd, API server, controller manager, scheduler, kubelet,
# containerd, runc, and what enforces NetworkPolicies. The tests run on a cluster
# that this script starts. It needs root.
#
#   kube.sh install             installs from Debian or Ubuntu what the cluster needs
#   kube.sh build               builds the programs from their Go modules into
#                               $KICK_CACHE, once (ten minutes on two CPUs), and
#                               prints the directory that they are in
#   kube.sh up DIR              starts a cluster that keeps everything in DIR, a new
#                               directory, and prints its environment when the node
#                               is ready
#   kube.sh agent-sandbox DIR   installs agent-sandbox in the cluster: its kinds, and
#                               its controller, as a program of the node
#   kube.sh load DIR FILE...    gives the node the images of OCI layouts in tar files,
#                               as `kick image build` writes them, and prints each
#                               one's name with its digest
#   kube.sh stop [-KILL] DIR PROGRAM...
#                               ends programs of the cluster: kubelet, kube-apiserver,
#                               etcd, kube-controller-manager, kube-scheduler,
#                               containerd, netpol, agent-sandbox-controller
#   kube.sh start DIR PROGRAM...
#                               starts them again, if they do not run
#   kube.sh exec DIR COMMAND... runs a command in the cluster's environment:
#                               `exec DIR kubectl get pods -A`, `exec DIR ctr images ls`
#   kube.sh enter DIR COMMAND...
#                               the same on the node: in its network, with its mounts
#   kube.sh down DIR            ends the cluster with all its containers, and removes
#                               DIR
#
# `up` prints lines of NAME=VALUE, of which the first is what clients need:
#   KUBECONFIG                  the cluster's administrator
#   KICK_KUBE, KICK_KUBE_DIR, KICK_KUBE_BIN
#                               this script, DIR, and where the programs are
#   KICK_KUBE_NODE              the node's name
#   KICK_KUBE_HOST              the host's address, as pods see it
#   KICK_KUBE_PODS              the pods' addresses, which the host reaches
# The lines are also in DIR/env, and what each program says is in DIR/log.
#
# The node is a set of namespaces: network, mounts, processes. So nothing that
# Kubernetes does to a host (bridges, iptables, ipsets, mounts, processes that
# outlive their makers) is done to this one, and all of it goes with the node's
# first process. A pair of interfaces joins the node to the host. Control groups
# are the host's, below one that is named as the interface is.
set -euo pipefail
shopt -s inherit_errexit # what fails in $(...) ends the script, too

die() { echo "kube.sh: $*" >&2; exit 1; }

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

source=$(dirname "$(realpath "$0")")/kube
kubernetes_version=$(sed -n 's/^\tk8s.io\/kubernetes v//p' "$source/go.mod")

# install_kube installs what is missing. catatonit is the first process of the node
# and of every pod. runc is the one program with C in it, for libseccomp.
install_kube() {
  local sudo=() need=() pair
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  for pair in iptables:iptables ipset:ipset ip:iproute2 conntrack:conntrack openssl:openssl unshare:util-linux \
    catatonit:catatonit gcc:gcc gcc:libc6-dev pkg-config:pkg-config; do
    PATH=$PATH:/usr/sbin command -v "${pair%:*}" >/dev/null || need+=("${pair#*:}")
  done
  [ -x /usr/lib/cni/bridge ] || need+=(containernetworking-plugins)
  pkg-config --exists libseccomp 2>/dev/null || need+=(libseccomp-dev)
  [ ${#need[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "install these by your distribution's means, this installs for Debian and Ubuntu only: ${need[*]}"
  echo "kube.sh: installing ${need[*]}" >&2
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
}

# build_kube prints the directory of the programs, and makes it if it is not
# there. Its name tells what it was made from.
build_kube() {
  local cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick} made bin new
  made=$({ cat "$source"/*.go "$source"/go.*; declare -f build_kubernetes build_node build_module; } | sha256sum | cut -c1-12)
  bin=$cache/kube-$kubernetes_version-$made
  if [ ! -d "$bin" ]; then
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/kube-new-XXXXXX")
    # shellcheck disable=SC2064 # the directory as it is now
    trap "rm -rf '$new'" EXIT
    { build_node "$new"; build_kubernetes "$new"; } >&2
    chmod 755 "$new"
    # Whoever built the same meanwhile has built it as well.
    mv -T "$new" "$bin" 2>/dev/null || rm -rf "$new"
    trap - EXIT
  fi
  [ -x "$bin/kubelet" ] || die "$bin is not whole: remove it, and \`kube.sh build\` makes it again"
  echo "$bin"
}

# build_agent_sandbox does the same for agent-sandbox, which not every cluster has.
# It is as large as Kubernetes and made from another version of it.
build_agent_sandbox() {
  local cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick} module=sigs.k8s.io/agent-sandbox version=v0.5.6 made bin new kinds file
  made=$(declare -f build_agent_sandbox build_module | sha256sum | cut -c1-12)
  bin=$cache/agent-sandbox-$version-$made
  if [ ! -d "$bin" ]; then
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/agent-sandbox-new-XXXXXX")
    # shellcheck disable=SC2064 # the directory as it is now
    trap "rm -rf '$new'" EXIT
    CGO_ENABLED=0 build_module "$new" $module $version $module/cmd/agent-sandbox-controller >&2
    # One version of the kinds is used, so nothing converts them.
    kinds=$("${GO:-go}" mod download -json $module@$version | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')/k8s/crds
    for file in "$kinds"/*.yaml; do sed '/^  conversion:$/,$d' "$file"; echo ---; done >"$new/kinds.yaml"
    chmod 755 "$new"
    mv -T "$new" "$bin" 2>/dev/null || rm -rf "$new"
    trap - EXIT
  fi
  echo "$bin"
}

build_kubernetes() {
  local bin=$1 stamp program
  stamp="-X k8s.io/component-base/version.gitVersion=v$kubernetes_version -X k8s.io/client-go/pkg/version.gitVersion=v$kubernetes_version"
  stamp+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$kubernetes_version")"
  (cd "$source" && CGO_ENABLED=0 "${GO:-go}" build -trimpath -ldflags "-s -w $stamp" -o "$bin/kube" .)
  for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl netpol; do
    ln -s kube "$bin/$program"
  done
}

# build_node builds what runs containers.
build_node() {
  local bin=$1 containerd=github.com/containerd/containerd/v2 runc=github.com/opencontainers/runc
  CGO_ENABLED=1 build_module "$bin" $runc v1.3.7 -tags 'seccomp urfave_cli_no_docs' $runc
  CGO_ENABLED=0 build_module "$bin" $containerd v2.2.9 -tags 'no_btrfs no_zfs no_devmapper urfave_cli_no_docs' \
    $containerd/cmd/containerd $containerd/cmd/containerd-shim-runc-v2 $containerd/cmd/ctr
}

# build_module DIR MODULE VERSION ARGUMENTS...: builds programs of one module.
build_module() {
  local bin=$1 module=$2 version=$3 build
  shift 3
  build=$(mktemp -d)
  # Without the go line every module that any other one names would be asked for.
  printf 'module build\n\ngo 1.24\n\nrequire %s %s\n' "$module" "$version" >"$build/go.mod"
  (cd "$build" && GOFLAGS=-mod=mod "${GO:-go}" build -trimpath -ldflags "-s -w -X $module/version.Version=$version" -o "$bin/" "$@")
  rm -rf "$build"
}

up() {
  local dir=$1 bin net host link=
  dir=$(realpath -m "$dir")
  [ "$(id -u)" = 0 ] || die "a node needs root: run this as root"
  [ ! -e "$dir" ] || die "$dir exists: \`kube.sh down $dir\` ends a cluster there"
  # A socket's path may have 107 bytes.
  [ ${#dir} -le 80 ] || die "the path of $dir is too long for a socket: use one of 80 characters at most"
  bin=$(build_kube)
  PATH=$PATH:/usr/sbin
  mkdir -p "$dir"/{log,run,pki,cni,containerd,etcd,kubelet,pods,volumes}
  # Until the cluster is up, whatever ends this script ends what it started.
  # shellcheck disable=SC2064 # the directory as it is now
  trap "down '$dir' || true" EXIT

  # The first number that no other cluster has: a link is made by one alone.
  for net in $(seq 0 255); do
    link=kick-kube$net
    ip link add "$link" type veth peer name "${link}n" 2>/dev/null && break
    link=
  done
  [ -n "$link" ] || die "this host has no free link of the names kick-kube0 to kick-kube255"
  host=10.210.$net.1
  cat >"$dir/env" <<END
KUBECONFIG=$dir/admin.kubeconfig
KICK_KUBE=$(realpath "$0")
KICK_KUBE_DIR=$dir
KICK_KUBE_BIN=$bin
KICK_KUBE_NODE=kick-node
KICK_KUBE_HOST=$host
KICK_KUBE_PODS=10.211.$net.0/24
END
  # What the programs' command lines are made of.
  cat >"$dir/run/node" <<END
link=$link
host=$host
node=10.210.$net.2
pods=10.211.$net.0/24
services=10.212.$net.0/24
END
  make_node "$dir"
  make_pki "$dir"
  make_programs "$dir"

  launch "$dir" etcd kube-apiserver containerd
  until_ready "$dir" containerd
  make_pause "$dir" "$dir/run/pause.tar"
  load "$dir" "$dir/run/pause.tar" >/dev/null
  until_ready "$dir" kube-apiserver
  launch "$dir" kube-controller-manager kube-scheduler kubelet
  until_ready "$dir" kubelet
  start "$dir" netpol # asks for the node when it starts
  until_ready "$dir" kube-controller-manager
  trap - EXIT
  cat "$dir/env"
}

# agent_sandbox installs agent-sandbox. Its controller ends where its kinds are not
# served.
agent_sandbox() {
  local dir bin
  dir=$(realpath -m "$1")
  bin=$(build_agent_sandbox)
  in_dir "$dir" kubectl apply --server-side --filename "$bin/kinds.yaml" >/dev/null
  in_dir "$dir" kubectl wait --for=condition=Established --timeout=60s --filename "$bin/kinds.yaml" >/dev/null
  program agent-sandbox-controller --kubeconfig="$dir/admin.kubeconfig" --extensions --leader-elect=false \
    --enable-webhook=false --manage-webhook-certs=false --metrics-bind-address=0 --health-probe-bind-address=127.0.0.1:8081
  start "$dir" agent-sandbox-controller
}

# make_node starts the node's first process, which reaps what its containers
# leave, and gives it its end of the link.
make_node() {
  local dir=$1 link host node pods services pid
  . "$dir/run/node"
  # Root's own directories are where programs put what they cannot be told to put
  # elsewhere.
  mkdir -p /var/lib/cni /var/lib/kubelet
  setsid unshare --net --mount --pid --fork --kill-child --mount-proc --propagation slave \
    bash -c 'for d in /run /var/log /var/lib/cni /var/lib/kubelet; do mount -t tmpfs -o mode=755 kick-kube $d; done
      mount --make-rshared /
      echo ready >"$0/run/ready"; exec catatonit -P' "$dir" </dev/null >"$dir/log/node" 2>&1 &
  echo $! >"$dir/run/unshare.pid"
  until [ -s "$dir/run/ready" ]; do
    kill -0 "$(cat "$dir/run/unshare.pid")" 2>/dev/null || { cat "$dir/log/node" >&2; die "the node's namespaces cannot be made: what was said is above"; }
  done
  pid=$(pgrep -P "$(cat "$dir/run/unshare.pid")")
  echo "$pid" >"$dir/run/init.pid"

  ip link set "${link}n" netns "$pid" name node
  ip addr add "$host/30" dev "$link"
  ip link set "$link" up
  ip route add "$pods" via "$node"
  enter "$dir" sh -ec "
    ip link set lo up
    ip addr add $node/30 dev node
    ip link set node up
    ip route add default via $host
    echo 1 >/proc/sys/net/ipv4/ip_forward"
  # The kubelet wants every controller there that the host has. A group of version
  # 2 has those that the one above it gives.
  local controller
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
      echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || true
    done
  fi
  for group in $(cgroups "$link"); do mkdir -p "$group"; done
}

# cgroups prints the cluster's control group in each hierarchy.
cgroups() {
  local hierarchy
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    echo "/sys/fs/cgroup/$1"
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do
    [ ! -e "${hierarchy}cgroup.procs" ] || echo "$hierarchy$1"
  done
}

# make_pki makes a certificate authority and a certificate and kubeconfig for each
# who speaks to the API server. They last as long as a test may.
make_pki() {
  local dir=$1 link host node pods services
  . "$dir/run/node"
  (
    umask 077
    cd "$dir/pki"
    key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key" 2>/dev/null; }
    for ca in ca front-proxy-ca; do
      key "$ca"
      openssl req -x509 -new -key "$ca.key" -subj "/CN=kick-kube-$ca" -days 30 -out "$ca.crt" -addext keyUsage=critical,keyCertSign,digitalSignature
    done
    key accounts # signs the tokens of service accounts
    # leaf NAME SUBJECT [SUBJECTALTNAME [AUTHORITY]]
    leaf() {
      local ca=${4:-ca}
      key "$1"
      openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
      openssl x509 -req -in "$1.csr" -CA "$ca.crt" -CAkey "$ca.key" -CAcreateserial -days 30 -out "$1.crt" 2>/dev/null \
        -extfile <(echo 'keyUsage=critical,digitalSignature'; echo 'extendedKeyUsage=serverAuth,clientAuth'; [ -z "${3:-}" ] || echo "subjectAltName=$3")
    }
    leaf apiserver /CN=kube-apiserver "DNS:kubernetes.default.svc,IP:$node,IP:127.0.0.1,IP:${services%.0/24}.1"
    leaf apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client
    leaf admin /O=system:masters/CN=admin
    leaf controller-manager /CN=system:kube-controller-manager
    leaf scheduler /CN=system:kube-scheduler
    leaf kubelet /O=system:nodes/CN=system:node:kick-node "IP:$node"
    # As whom the API server passes requests on to servers of further APIs.
    leaf front-proxy /CN=front-proxy-client '' front-proxy-ca
  )
  for who in admin controller-manager scheduler kubelet; do
    cat >"$dir/$who.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: kick-kube
contexts: [{name: kick-kube, context: {cluster: kick-kube, user: $who}}]
clusters: [{name: kick-kube, cluster: {server: "https://$node:6443", certificate-authority-data: $(base64 -w0 "$dir/pki/ca.crt")}}]
users: [{name: $who, user: {client-certificate-data: $(base64 -w0 "$dir/pki/$who.crt"), client-key-data: $(base64 -w0 "$dir/pki/$who.key")}}]
END
    chmod 600 "$dir/$who.kubeconfig"
  done
}

# program NAME ARGUMENTS...: remembers how a program is started.
program() {
  printf '%q ' "$bin/$1" "${@:2}" >"$dir/run/$1.command"
}

make_programs() {
  local dir=$1 bin link host node pods services
  bin=$(setting "$dir" KICK_KUBE_BIN)
  . "$dir/run/node"
  local pki=$dir/pki

  program etcd --data-dir="$dir/etcd" --unsafe-no-fsync \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 --initial-cluster=default=http://127.0.0.1:2380

  # The kubelet is asked for logs by its address: nothing here resolves names. That
  # privileged pods are refused is for the namespaces to say.
  program kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address="$node" --advertise-address="$node" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/accounts.key" \
    --service-account-signing-key-file="$pki/accounts.key" --service-cluster-ip-range="$services" \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" --requestheader-client-ca-file="$pki/front-proxy-ca.crt" \
    --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged --anonymous-auth=false --profiling=false

  # A claim that finds no volume at first would be tried again after 15 s.
  program kube-controller-manager --kubeconfig="$dir/controller-manager.kubeconfig" --authentication-skip-lookup \
    --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials --service-account-private-key-file="$pki/accounts.key" \
    --root-ca-file="$pki/ca.crt" --pvclaimbinder-sync-period=2s --kube-api-qps=500 --kube-api-burst=1000 --concurrent-job-syncs=20

  program kube-scheduler --kubeconfig="$dir/scheduler.kubeconfig" --authentication-skip-lookup --bind-address=127.0.0.1 --leader-elect=false \
    --kube-api-qps=500 --kube-api-burst=1000

  cat >"$dir/cni/kick.conflist" <<END
{"cniVersion": "0.4.0", "name": "kick", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
  # Without CAP_SYS_RESOURCE runc may not lower an OOM score, and every pod fails
  # with "can't get final child's PID from pipe: EOF" unless it need not. A profile
  # of AppArmor would be the host's, and stay.
  cat >"$dir/containerd.toml" <<END
version = 3
root = "$dir/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:kick"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$dir/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "$bin/runc"
  SystemdCgroup = false
END
  program containerd --config "$dir/containerd.toml"

  cat >"$dir/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $node
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
containerRuntimeEndpoint: unix://$dir/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$link
podLogsDir: $dir/pods
volumePluginDir: $dir/run/volumeplugins
resolvConf: ""
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: true
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
shutdownGracePeriod: 0s
END
  program kubelet --config="$dir/kubelet.yaml" --kubeconfig="$dir/kubelet.kubeconfig" --root-dir="$dir/kubelet" --cert-dir="$pki" \
    --node-ip="$node" --hostname-override=kick-node

  program netpol --kubeconfig="$dir/admin.kubeconfig" --node=kick-node --services="$services"
}

# make_pause writes the image that holds a pod's namespaces: catatonit alone.
make_pause() {
  local dir=$1 out=$2 layout layer config manifest
  layout=$(mktemp -d "$dir/run/pause-XXXXXX")
  mkdir -p "$layout/blobs/sha256"
  blob() { # puts standard input there and prints its digest
    cat >"$layout/blob"
    set -- "$(sha256sum <"$layout/blob" | cut -d' ' -f1)"
    mv "$layout/blob" "$layout/blobs/sha256/$1"
    echo "$1"
  }
  size() { stat -c %s "$layout/blobs/sha256/$1"; }
  layer=$(tar -C "$(dirname "$(command -v catatonit)")" --owner=0 --group=0 --numeric-owner --mtime=@0 -c catatonit | blob)
  config=$(echo "{\"architecture\":\"$("${GO:-go}" env GOARCH)\",\"os\":\"linux\",\"config\":{\"Cmd\":[\"/catatonit\",\"-P\"]},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:$layer\"]}}" | blob)
  manifest=$(echo "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"sha256:$config\",\"size\":$(size "$config")},\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"sha256:$layer\",\"size\":$(size "$layer")}]}" | blob)
  echo "{\"schemaVersion\":2,\"manifests\":[{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"sha256:$manifest\",\"size\":$(size "$manifest"),\"annotations\":{\"io.containerd.image.name\":\"localhost/pause:kick\"}}]}" >"$layout/index.json"
  echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
  tar -C "$layout" -cf "$out" oci-layout index.json blobs
  rm -rf "$layout"
}

# load imports images. The kubelet finds one that is asked for by digest under the
# name with the digest, which an import alone does not make.
load() {
  local dir file index name digest
  dir=$(realpath -m "$1")
  shift
  for file; do
    index=$(tar -xOf "$file" index.json) || die "$file is no OCI layout"
    name=$(sed -n 's/.*"io.containerd.image.name":"\([^"]*\)".*/\1/p' <<<"$index")
    digest=$(grep -o 'sha256:[0-9a-f]*' <<<"$index" | head -n 1)
    [ -n "$name" ] || die "the image in $file has no name"
    in_dir "$dir" ctr images import "$file" >/dev/null
    in_dir "$dir" ctr images tag --force "$name" "${name%:*}@$digest" >/dev/null
    echo "${name%:*}@$digest"
  done
}

# start runs programs, and waits until they do their work.
start() {
  local dir name
  dir=$(realpath -m "$1")
  shift
  launch "$dir" "$@"
  for name; do until_ready "$dir" "$name"; done
}

# launch runs programs on the node that do not run yet.
launch() {
  local dir=$1 name
  shift
  for name; do
    [ -f "$dir/run/$name.command" ] || die "there is no $name: the programs are $(cd "$dir/run" && echo *.command | sed 's/\.command//g')"
    ! running "$dir" "$name" || continue
    enter "$dir" setsid bash -c 'echo $$ >"$0/run/$1.pid"; eval "exec $(cat "$0/run/$1.command")"' "$dir" "$name" </dev/null >>"$dir/log/$name" 2>&1 &
    until running "$dir" "$name"; do
      kill -0 $! 2>/dev/null || break # it has ended already, which until_ready says
    done
  done
}

running() { [ -s "$1/run/$2.pid" ] && enter "$1" kill -0 "$(cat "$1/run/$2.pid")" 2>/dev/null; }

# ready finds out whether a program does its work, of those of which that is seen
# from outside.
ready() {
  local dir=$1
  case $2 in
    etcd | kube-apiserver) in_dir "$dir" kubectl get --raw /readyz ;;
    containerd) in_dir "$dir" ctr version ;;
    kubelet)
      in_dir "$dir" kubectl get --raw /api/v1/nodes/kick-node/proxy/healthz &&
        in_dir "$dir" kubectl wait --for=condition=Ready --timeout=5s node/kick-node
      ;;
    # Pods are refused where it has not made an account for them.
    kube-controller-manager) in_dir "$dir" kubectl get serviceaccount default ;;
    netpol) enter "$dir" iptables -n -L KUBE-ROUTER-FORWARD ;;
    agent-sandbox-controller) enter "$dir" bash -c 'exec 3<>/dev/tcp/127.0.0.1/8081; printf "GET /readyz HTTP/1.0\r\n\r\n" >&3; grep -q "200 OK" <&3' ;;
    *) running "$dir" "$2" ;;
  esac >/dev/null 2>&1
}

# until_ready waits for a program. Each question takes its time, so none is slept
# through.
until_ready() {
  local dir=$1 name=$2 began=$SECONDS
  until ready "$dir" "$name"; do
    if ! running "$dir" "$name" || [ $((SECONDS - began)) -gt 180 ]; then
      tail -n 20 "$dir/log/$name" >&2
      die "$name does not do its work: the last that it said is above"
    fi
  done
}

# stop ends programs. What they started goes on: containers outlive containerd and
# the kubelet.
stop() {
  local signal=-TERM dir name
  case $1 in -*) signal=$1; shift ;; esac
  dir=$(realpath -m "$1")
  shift
  for name; do
    running "$dir" "$name" || die "$name does not run"
    enter "$dir" bash -c 'kill "$1" "$2"; timeout 60 tail --pid="$2" -f /dev/null || kill -KILL "$2"' stop "$signal" "$(cat "$dir/run/$name.pid")"
    rm -f "$dir/run/$name.pid"
  done
}

setting() { sed -n "s/^$2=//p" "$1/env"; }

# in_dir runs a command in the cluster's environment.
in_dir() {
  local dir=$1 env
  shift
  [ -f "$dir/env" ] || die "there is no cluster in $dir"
  mapfile -t env <"$dir/env"
  env "${env[@]}" PATH="$(setting "$dir" KICK_KUBE_BIN):$PATH" CONTAINERD_ADDRESS="$dir/containerd.sock" CONTAINERD_NAMESPACE=k8s.io CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 "$@"
}

enter() {
  local dir=$1
  shift
  PATH=$PATH:/usr/sbin:/sbin in_dir "$dir" nsenter --target "$(cat "$dir/run/init.pid")" --net --mount --pid "$@"
}

down() {
  local dir pid link group began
  dir=$(realpath -m "$1")
  [ -f "$dir/env" ] || [ -d "$dir/run" ] || die "there is no cluster in $dir"
  if [ -f "$dir/run/unshare.pid" ]; then
    # The namespace's first process takes all others with it. unshare waits for it.
    pid=$(cat "$dir/run/unshare.pid")
    pkill -KILL -P "$pid" || true
    timeout 60 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
  fi
  if [ -f "$dir/run/node" ]; then
    link=$(sed -n 's/^link=//p' "$dir/run/node")
    ip link del "$link" 2>/dev/null || true
    # A control group can be removed when the last process in it is reaped.
    began=$SECONDS
    for group in $(cgroups "$link"); do
      until [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; do
        [ $((SECONDS - began)) -le 20 ] || die "control group $group has processes that do not end"
      done
    done
  fi
  rmdir --ignore-fail-on-non-empty /var/lib/cni /var/lib/kubelet 2>/dev/null || true
  rm -rf "$dir"
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
verb=$1
shift
case $verb in
  help | -h | --help) usage ;;
  install) install_kube ;;
  build)
    build_kube
    build_agent_sandbox >/dev/null
    ;;
  up | down)
    [ $# = 1 ] || die "$verb wants a directory"
    "$verb" "$1"
    ;;
  agent-sandbox)
    [ $# = 1 ] || die "$verb wants a directory"
    agent_sandbox "$1"
    ;;
  load)
    [ $# -ge 2 ] || die "load wants a directory and tar files"
    load "$@"
    ;;
  start | stop)
    [ $# -ge 2 ] || die "$verb wants a directory and programs"
    "$verb" "$@"
    ;;
  exec)
    [ $# -ge 2 ] || die "exec wants a directory and a command"
    in_dir "$(realpath -m "$1")" "${@:2}"
    ;;
  enter)
    [ $# -ge 2 ] || die "enter wants a directory and a command"
    enter "$(realpath -m "$1")" "${@:2}"
    ;;
  *) die "there is no $verb: \`kube.sh help\` lists what there is" ;;
esac
