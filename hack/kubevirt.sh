#!/usr/bin/env bash
# What tests of virtual machines need beside the cluster of kube.sh, from Debian's
# packages and KubeVirt's own Go module. It needs root.
#
#   kubevirt.sh install    installs QEMU from Debian or Ubuntu
#   kubevirt.sh image      makes the machine's image, once, with $KICK or bin/kick, and
#                          prints its directory, in $KICK_CACHE: disk.qcow2 is the disk,
#                          vmlinuz and initrd are its kernel
#   kubevirt.sh crds       prints the definitions of KubeVirt's instances and replica
#                          sets, with the schemas that KubeVirt's own operator installs
#
# The image is what docs/kubevirt.md wants of one: sshd, a user who is not root, and
# a start that takes keys and a lifetime from the disk with the serial kick-keys. It
# has Debian's kernel, and this script's own first process in place of systemd,
# which would take 40 s of a software CPU.
set -euo pipefail
shopt -s inherit_errexit # what fails in $(...) ends the script, too

die() { echo "kubevirt.sh: $*" >&2; exit 1; }

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

root=$(dirname "$(dirname "$(realpath "$0")")")
kubevirt_version=v1.5.0 # of the schemas

install_kubevirt() {
  local sudo=() need=() pair
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  for pair in qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils mke2fs:e2fsprogs cpio:cpio depmod:kmod genisoimage:genisoimage; do
    PATH=$PATH:/usr/sbin command -v "${pair%:*}" >/dev/null || need+=("${pair#*:}")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "install these by your distribution's means, this installs for Debian and Ubuntu only: ${need[*]}"
  echo "kubevirt.sh: installing ${need[*]}" >&2
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
}

# image prints the image's directory. Its name tells what it was made from.
image() {
  local cache=${KICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kick} layers digest dir new
  [ "$(id -u)" = 0 ] || die "the files of an image are root's: run this as root"
  mkdir -p "$cache"
  layers=$cache/kick-machine.tar
  "${KICK:-$root/bin/kick}" image build --package openssh-server --package busybox-static --package cloud-init --package mount --package linux-image-cloud-amd64 \
    --name localhost/kick-machine:latest --out "$layers" -o json >/dev/null
  digest=$(tar -xOf "$layers" index.json | grep -o 'sha256:[0-9a-f]*' | head -n 1)
  dir=$cache/machine-$({ echo "$digest"; declare -f make_image make_initrd machine_init machine_shutdown machine_sshd machine_cloud initrd_init; } | sha256sum | cut -c1-12)
  if [ ! -d "$dir" ]; then
    new=$(mktemp -d "$cache/machine-new-XXXXXX")
    # shellcheck disable=SC2064 # the directory as it is now
    trap "rm -rf '$new'" EXIT
    make_image "$layers" "${digest#sha256:}" "$new" >&2
    chmod 755 "$new"
    mv -T "$new" "$dir" 2>/dev/null || rm -rf "$new" # whoever made the same meanwhile has made it as well
    trap - EXIT
  fi
  [ -f "$dir/initrd" ] || die "$dir is not whole: remove it, and \`kubevirt.sh image\` makes it again"
  echo "$dir"
}

# make_image LAYERS MANIFEST DIR
make_image() {
  local layers=$1 manifest=$2 dir=$3 tree layer version
  tree=$dir/tree
  mkdir "$tree"
  for layer in $(tar -xOf "$layers" "blobs/sha256/$manifest" | grep -o '"digest":"sha256:[0-9a-f]*"' | tail -n +2 | grep -o '[0-9a-f]\{64\}'); do
    tar -xOf "$layers" "blobs/sha256/$layer" | tar -C "$tree" -xpf -
  done
  version=$(ls "$tree/usr/lib/modules")
  depmod -b "$tree" "$version"
  cp "$tree/boot/vmlinuz-$version" "$dir/vmlinuz"
  make_initrd "$tree" "$version" "$dir"
  rm -rf "$tree/boot"
  machine_init >"$tree/usr/sbin/init"
  machine_shutdown >"$tree/usr/sbin/shutdown"
  chmod 755 "$tree/usr/sbin/init" "$tree/usr/sbin/shutdown"
  # As its package would: else each start compiles it, on a software CPU.
  chroot "$tree" python3 -m compileall -q -x /test/ /usr/lib/python3 "/usr/lib/$(basename "$(realpath "$tree/usr/bin/python3")")"
  machine_cloud >"$tree/etc/cloud/cloud.cfg.d/99-kick.cfg"
  machine_sshd >"$tree/etc/ssh/sshd_config"
  echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >>"$tree/etc/passwd"
  echo machine >"$tree/etc/hostname"
  PATH=$PATH:/usr/sbin mke2fs -q -t ext4 -L kick -d "$tree" "$dir/disk.raw" 2G
  qemu-img convert -O qcow2 "$dir/disk.raw" "$dir/disk.qcow2"
  rm -rf "$tree" "$dir/disk.raw"
}

# make_initrd TREE VERSION DIR: busybox, and the modules on the way to the disk and
# to the network.
make_initrd() {
  local tree=$1 version=$2 dir=$3 initrd=$3/initrd.d module file
  mkdir -p "$initrd"/{bin,dev,proc,sys,new}
  cp "$tree/usr/bin/busybox" "$initrd/bin/"
  initrd_init >"$initrd/init"
  chmod 755 "$initrd/init"
  # All of a module's own modules come before it.
  for module in virtio_pci virtio_blk virtio_net ext4 isofs; do
    modprobe -d "$tree" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$initrd/"
    basename "$file" >>"$initrd/modules"
  done
  (cd "$initrd" && find . | cpio -o -H newc --quiet | gzip -1) >"$dir/initrd"
  rm -rf "$initrd"
}

initrd_init() {
  cat <<'END'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
while read -r m; do $b insmod /$m; done </modules
until $b mount -t ext4 /dev/vda /new; do $b sleep 0.1; done
$b umount /proc
$b mount --move /dev /new/dev
exec $b switch_root /new /usr/sbin/init
END
}

# machine_init is the machine's first process. Whatever goes wrong, the machine goes
# off, which is seen from outside.
machine_init() {
  cat <<'END'
#!/bin/sh
PATH=/usr/sbin:/usr/bin
off() { echo "machine: $*" >/dev/console; sync; busybox poweroff -f; sleep 60; }
trap 'off "the first process has ended"' EXIT
set -e
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/keys /run/sshd
busybox mount -t devpts -o mode=620,ptmxmode=666 pts /dev/pts
busybox ip link set lo up
busybox ip link set eth0 up
busybox ip addr add 10.0.2.15/24 dev eth0
busybox ip route add default via 10.0.2.2
if busybox findfs LABEL=cidata >/dev/null 2>&1; then
  # What systemd would do before it starts sshd, and after.
  cloud-init init --local >/dev/console 2>&1 || :
  cloud-init init >/dev/console 2>&1 || :
  ln -s /etc/ssh/ssh_host_ed25519_key /run/ssh_host_ed25519_key
  ln -s /home/agent/.ssh/authorized_keys /run/authorized_keys
  cloud-init modules --mode=final >/dev/console 2>&1 &
  /usr/sbin/sshd -D -e </dev/null 2>/dev/console
  exit
fi
for s in /sys/block/vd*/serial; do
  if [ "$(cat "$s")" = kick-keys ]; then
    d=${s#/sys/block/}
    busybox mount -t iso9660 -o ro,nosuid,nodev,noexec,mode=0400,dmode=0500 "/dev/${d%/serial}" /run/keys
  fi
done
install -m 600 /run/keys/ssh_host_ed25519_key /run/ssh_host_ed25519_key
install -m 644 /run/keys/authorized_keys /run/authorized_keys
chown agent:agent /home/agent
lifetime=$(cat /run/keys/lifetime)
# Nothing that ends kick, or cuts it off, makes the machine live longer.
(sleep "$lifetime"; off "its lifetime is over") &
busybox umount /run/keys
/usr/sbin/sshd -D -e </dev/null 2>/dev/console
END
}

# machine_shutdown is what cloud-init asks for a power-off later, as systemd's is.
machine_shutdown() {
  cat <<'END'
#!/bin/sh
[ "$1" = -P ] && minutes=${2#+} || exit 1
echo "off in $minutes minutes" >/dev/console
(busybox sleep "$((minutes * 60))"; busybox poweroff -f) </dev/null >/dev/null 2>&1 &
END
}

# machine_cloud has cloud-init look at its disk alone, leave the network, and load
# what takes part in what kick tells it: each module takes seconds of a software CPU.
machine_cloud() {
  cat <<'END'
datasource_list: [NoCloud]
network: {config: disabled}
cloud_init_modules: [write-files, users-groups, ssh]
cloud_config_modules: []
cloud_final_modules: [power-state-change]
END
}

machine_sshd() {
  cat <<'END'
Include /etc/ssh/sshd_config.d/*.conf
HostKey /run/ssh_host_ed25519_key
AuthorizedKeysFile /run/authorized_keys
AllowUsers agent
AuthenticationMethods publickey
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitTTY no
X11Forwarding no
AllowAgentForwarding no
AllowTcpForwarding remote
AllowStreamLocalForwarding remote
ClientAliveInterval 15
MaxSessions 32
UseDNS no
END
}

# crds prints the definitions. The schemas are in a Go map of strings, which the
# operator puts into its definitions as they are.
crds() {
  local module generated
  module=$(cd "$(mktemp -d)" && echo 'module crds' >go.mod && "${GO:-go}" mod download -json "kubevirt.io/kubevirt@$kubevirt_version" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')
  generated=$module/pkg/virt-operator/resource/generate/components/validations_generated.go
  [ -f "$generated" ] || die "kubevirt.io/kubevirt $kubevirt_version has no generated schemas where they were"
  crd "$generated" virtualmachineinstance VirtualMachineInstance '' '[vmi, vmis]'
  crd "$generated" virtualmachineinstancereplicaset VirtualMachineInstanceReplicaSet \
    '{scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.labelSelector}, status: {}}' '[vmirs, vmirss]'
}

# crd FILE NAME KIND SUBRESOURCES SHORTNAMES
crd() {
  cat <<END
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: $2s.kubevirt.io, labels: {app.kubernetes.io/version: $kubevirt_version}}
spec:
  group: kubevirt.io
  scope: Namespaced
  names: {plural: $2s, singular: $2, kind: $3, shortNames: $5, categories: [all]}
  versions:
    - name: v1
      served: true
      storage: true
END
  [ -z "$4" ] || echo "      subresources: $4"
  echo "      schema:"
  sed -n "/^\t\"$2\": \`/,/^\`,/{s/^\t\"$2\": \`//;/^\`,/d;s/^/        /;p}" "$1"
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
case $1 in
  help | -h | --help) usage ;;
  install) install_kubevirt ;;
  image) image ;;
  crds) crds ;;
  *) die "there is no $1: \`kubevirt.sh help\` lists what there is" ;;
esac
