#!/usr/bin/env bash
# Podman for kick, on hosts where it does not just work: the settings that such
# hosts need, an API service of its own as root or as an ordinary user without a
# systemd session, and a newer Podman than the distribution's. The tests run on
# services that this script starts.
#
#   podman.sh install           installs Podman from Debian or Ubuntu, and what
#                               rootless containers need
#   podman.sh build [VERSION]   builds that Podman (default 5.8.3) from its Go
#                               module into $KICK_CACHE, once, and prints the
#                               program's path
#   podman.sh conf              prints a containers.conf for this host, with reasons
#   podman.sh up DIR [--user NAME] [--podman PROGRAM] [--runtime NAME]
#                               starts an API service that keeps everything in
#                               DIR, a new directory, and prints its environment
#                               when it answers. As root with --user it runs as
#                               that user, who is made if there is none. --runtime
#                               is what it starts containers with, crun or runc
#   podman.sh exec DIR COMMAND...
#                               runs a command as the service's user with the
#                               service's environment: `exec DIR podman load -i ...`
#   podman.sh down DIR          ends the service and all its containers, and
#                               removes DIR
#
# `up` prints lines of NAME=VALUE, of which the first is what clients need:
#   CONTAINER_HOST              the socket, as unix:///DIR/podman.sock
#   CONTAINERS_CONF, CONTAINERS_STORAGE_CONF, XDG_RUNTIME_DIR, HOME
#                               what the podman command needs for the same storage
#   KICK_PODMAN_DIR, KICK_PODMAN_USER, KICK_PODMAN
#                               DIR, the service's user and its podman program
# The lines are also in DIR/env, and what the service says is in DIR/service.log.
set -euo pipefail

die() { echo "podman.sh: $*" >&2; exit 1; }

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

default_version=5.8.3

# install_podman installs what is missing. runc stands beside crun, which refuses
# hybrid cgroups. newuidmap and catatonit, which holds the user namespace, are for
# rootless containers, slirp4netns and (for Podman 5) pasta for their networks, and gcc
# and libseccomp to build Podman.
install_podman() {
  local sudo=() need=() program
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  for program in podman crun runc newuidmap catatonit slirp4netns pasta gcc pkg-config; do
    command -v "$program" >/dev/null || need+=("$program")
  done
  [ -x /usr/lib/podman/netavark ] || [ -x /usr/libexec/podman/netavark ] || need+=(netavark)
  pkg-config --exists libseccomp 2>/dev/null || need+=(libseccomp-dev)
  [ ${#need[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "install these by your distribution's means, this installs for Debian and Ubuntu only: ${need[*]}"
  need=("${need[@]/#newuidmap/uidmap}")
  need=("${need[@]/#pasta/passt}")
  need=("${need[@]/#gcc/gcc libc6-dev}")
  echo "podman.sh: installing ${need[*]}" >&2
  "${sudo[@]}" apt-get update -qq
  # shellcheck disable=SC2068 # one of them is two packages
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends ${need[@]} >/dev/null
}

# build_podman builds Podman as its own Makefile would, as far as kick needs it:
# no GPG signatures, no btrfs, no systemd journal. Debian 12's conmon and runc
# serve it; its crun 1.8.1 does not ("unknown version specified").
build_podman() {
  local version=${1:-$default_version}
  local cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick}
  local program=$cache/podman-$version
  if [ ! -x "$program" ]; then
    local source
    source=$(mktemp -d)
    mkdir -p "$cache"
    # Without the go line every module that any other one names would be asked for.
    printf 'module build\n\ngo 1.24\n\nrequire github.com/containers/podman/v5 v%s\n' "$version" >"$source/go.mod"
    (
      cd "$source"
      CGO_ENABLED=1 GOFLAGS=-mod=mod "${GO:-go}" build -trimpath -ldflags '-s -w' \
        -tags 'containers_image_openpgp exclude_graphdriver_btrfs seccomp' \
        -o podman github.com/containers/podman/v5/cmd/podman
    ) >&2
    mv "$source/podman" "$program.new"
    mv "$program.new" "$program"
    rm -rf "$source"
  fi
  echo "$program"
}

# lower prints the smaller of a wanted limit and the hard one that is in force.
lower() {
  local want=$1 hard=$2
  if [ "$hard" = unlimited ] || [ "$hard" -gt "$want" ]; then echo "$want"; else echo "$hard"; fi
}

conf() {
  echo '[containers]'
  echo '# Podman as root raises these two for each container, which needs'
  echo '# CAP_SYS_RESOURCE where it exceeds the hard limits. Without that capability, as'
  echo '# root in a container or a small VM, every container fails with "setrlimit'
  echo '# RLIMIT_NOFILE: Operation not permitted". Both have to be named.'
  echo "default_ulimits = [\"nofile=$(lower 4096 "$(ulimit -Hn)"):$(lower 4096 "$(ulimit -Hn)")\", \"nproc=$(lower 4096 "$(ulimit -Hu)"):$(lower 4096 "$(ulimit -Hu)")\"]"
  echo "# Podman's command hands the host's proxy variables to containers by default,"
  echo '# with the passwords in them.'
  echo 'http_proxy = false'
  echo 'log_driver = "k8s-file"'
  echo
  echo '[engine]'
  if [ -d /sys/fs/cgroup/unified ]; then
    echo '# This host has hybrid cgroups: v1 with a v2 hierarchy at /sys/fs/cgroup/unified.'
    echo '# crun refuses that ("cgroups in hybrid mode not supported"); runc takes it. The'
    echo '# other way is to start the service where the v2 hierarchy is out of sight:'
    echo "#   unshare -m --propagation private sh -c 'umount /sys/fs/cgroup/unified; exec podman system service'"
    echo 'runtime = "runc"'
  fi
  if [ "$(cat /proc/1/comm)" != systemd ]; then
    echo '# systemd does not run here, so it cannot manage cgroups or keep the journal.'
    echo 'cgroup_manager = "cgroupfs"'
    echo 'events_logger = "file"'
  fi
  echo 'helper_binaries_dir = ["/usr/libexec/podman", "/usr/lib/podman"]'
}

# write_conf writes the service's settings: the host's, and places that no other
# Podman of the same user shares. Locks are files: in shared memory, they are one
# set for each user.
write_conf() {
  local dir=$1
  {
    conf
    echo "tmp_dir = \"$dir/run/libpod\""
    echo "image_copy_tmp_dir = \"$dir/tmp\""
    echo 'lock_type = "file"'
    echo
    echo '[network]'
    echo 'network_backend = "netavark"'
    echo "network_config_dir = \"$dir/networks\""
  } >"$dir/containers.conf"
  # Without a driver Podman 4 takes vfs for an ordinary user, ten times slower, and
  # stays with it: the first use decides.
  cat >"$dir/storage.conf" <<END
[storage]
driver = "overlay"
graphroot = "$dir/storage"
rootless_storage_path = "$dir/storage"
runroot = "$dir/run/storage"
END
}

# as is the command that runs what follows it as a user: empty if that is who
# runs this script.
as=()
as_user() {
  as=()
  [ "$1" = "$(id -un)" ] || as=(setpriv --reuid="$1" --regid="$(id -g "$1")" --init-groups --inh-caps=-all)
}

make_user() {
  local user=$1
  if ! id "$user" >/dev/null 2>&1; then
    # An ordinary user, as a system one is given no subordinate ids.
    useradd --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$user"
  fi
  grep -q "^$user:" /etc/subuid && grep -q "^$user:" /etc/subgid ||
    die "user $user has no subordinate ids: usermod --add-subuids 165536-231071 --add-subgids 165536-231071 $user"
}

up() {
  # What was made of a service that did not start goes.
  give_up() {
    rm -rf "$dir"
    die "$1"
  }
  local dir= user program=podman runtime= hide=()
  user=$(id -un)
  while [ $# -gt 0 ]; do
    case $1 in
      --user) user=${2:?"--user wants a name"}; shift 2 ;;
      --podman) program=${2:?"--podman wants a program"}; shift 2 ;;
      --runtime) runtime=${2:?"--runtime wants a name"}; shift 2 ;;
      -*) die "up knows no $1: \`podman.sh help\` lists the flags" ;;
      *) dir=$(realpath -m "$1"); shift ;;
    esac
  done
  [ -n "$dir" ] || die "up wants a directory"
  [ ! -e "$dir" ] || die "$dir exists: \`podman.sh down $dir\` ends a service there"
  # A socket's path may have 107 bytes.
  [ ${#dir} -le 80 ] || die "the path of $dir is too long for a socket: use one of 80 characters at most"
  program=$(command -v "$program") || die "there is no $program: \`podman.sh install\` installs Podman"
  if [ "$user" != "$(id -un)" ]; then
    [ "$(id -u)" = 0 ] || die "only root can start a service as another user: run this as $user, without --user"
    make_user "$user"
  fi

  mkdir -p "$dir"/{home,run,networks,tmp}
  write_conf "$dir"
  if [ -n "$runtime" ]; then
    sed -i '/^runtime = /d' "$dir/containers.conf"
    sed -i "s/^\[engine\]$/&\nruntime = \"$runtime\"/" "$dir/containers.conf"
    if [ "$runtime" = crun ] && [ -d /sys/fs/cgroup/unified ]; then
      # shellcheck disable=SC2016 # for the shell that is started
      hide=(unshare --mount --propagation slave sh -c 'umount /sys/fs/cgroup/unified && exec "$@"' sh)
    fi
  fi
  cat >"$dir/env" <<END
CONTAINER_HOST=unix://$dir/podman.sock
CONTAINERS_CONF=$dir/containers.conf
CONTAINERS_STORAGE_CONF=$dir/storage.conf
XDG_RUNTIME_DIR=$dir/run
HOME=$dir/home
KICK_PODMAN_DIR=$dir
KICK_PODMAN_USER=$user
KICK_PODMAN=$program
END
  # Where root's containers have user ids of their own, these pass through DIR and
  # DIR/tmp on the way to their root file systems.
  chmod 711 "$dir" "$dir/tmp"
  chmod 700 "$dir/run" "$dir/home"
  chown -R "$user:" "$dir"
  as_user "$user"
  "${as[@]}" test -r "$dir/env" || give_up "$user cannot reach $dir: put it where every directory above it is open to others, as below /tmp"
  "${as[@]}" test -x "$program" || give_up "$user cannot run $program: copy it to where every directory above it is open to others"

  # CONTAINER_HOST stays out of the service's environment: its own helpers are not
  # to call it. The service gets no limit of time, and ends by `down`.
  (
    cd "$dir"
    local env
    mapfile -t env < <(grep -v -e ^CONTAINER_HOST= "$dir/env")
    "${as[@]}" env -i PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" PODMAN_IGNORE_CGROUPSV1_WARNING=1 "${env[@]}" \
      setsid "${hide[@]}" "$program" system service --time=0 "unix://$dir/podman.sock" </dev/null >"$dir/service.log" 2>&1 &
    echo $! >"$dir/service.pid"
  )
  # Ready is what answers. Each question takes its time, so none is slept through.
  local pid began=$SECONDS
  pid=$(cat "$dir/service.pid")
  until in_dir "$dir" "$program" --remote --url "unix://$dir/podman.sock" info >/dev/null 2>&1; do
    if ! kill -0 "$pid" 2>/dev/null || [ $((SECONDS - began)) -gt 60 ]; then
      cat "$dir/service.log" >&2
      down "$dir"
      die "the service did not start: what it said is above"
    fi
  done
  cat "$dir/env"
}

# in_dir runs a command as the service's user, in its environment and directory.
in_dir() {
  local dir=$1 user env
  shift
  [ -f "$dir/env" ] || die "there is no service in $dir"
  mapfile -t env <"$dir/env"
  user=$(sed -n 's/^KICK_PODMAN_USER=//p' "$dir/env")
  as_user "$user"
  "${as[@]}" env PODMAN_IGNORE_CGROUPSV1_WARNING=1 "${env[@]}" "$@"
}

# ours prints the processes that belong to the service in a directory: those that
# name it in their arguments, and a pause process, which keeps its id there.
ours() {
  local dir=$1 pid
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    [ "$pid" != $$ ] && [ "$pid" != "$BASHPID" ] || continue
    if tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$dir/"; then echo "$pid"; fi
  done
  for pid in "$dir"/run/libpod/pause.pid "$dir"/run/libpod/tmp/pause.pid; do
    [ ! -f "$pid" ] || cat "$pid"
  done
}

down() {
  local dir
  dir=$(realpath -m "$1")
  [ -f "$dir/env" ] || die "there is no service in $dir"
  local user program pid
  user=$(sed -n 's/^KICK_PODMAN_USER=//p' "$dir/env")
  program=$(sed -n 's/^KICK_PODMAN=//p' "$dir/env")
  # The service first, so that it starts nothing more; then its containers.
  # A service that was ended before it began has none.
  pid=$(cat "$dir/service.pid" 2>/dev/null || true)
  if [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; then
    timeout 20 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
  fi
  (cd "$dir" && CONTAINER_HOST='' in_dir "$dir" env -u CONTAINER_HOST timeout 60 "$program" rm --all --force --time 0) >/dev/null 2>&1 || true
  if [ "$user" != root ]; then
    # Removes what belongs to subordinate ids, and ends the pause process.
    (cd / && in_dir "$dir" env -u CONTAINER_HOST "$program" unshare rm -rf "$dir/storage" "$dir/run/storage") >/dev/null 2>&1 || true
  fi
  for pid in $(ours "$dir"); do
    kill -KILL "$pid" 2>/dev/null || true
    timeout 10 tail --pid="$pid" -f /dev/null || true
  done
  # Innermost mounts first.
  awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r mount; do
    umount "$mount" || true
  done
  rm -rf "$dir"
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
verb=$1
shift
case $verb in
  help | -h | --help) usage ;;
  install) install_podman ;;
  build) build_podman "$@" ;;
  conf) conf ;;
  up) up "$@" ;;
  exec)
    [ $# -ge 2 ] || die "exec wants a directory and a command"
    in_dir "$(realpath -m "$1")" "${@:2}"
    ;;
  down)
    [ $# = 1 ] || die "down wants a directory"
    down "$1"
    ;;
  *) die "there is no $verb: \`podman.sh help\` lists what there is" ;;
esac
