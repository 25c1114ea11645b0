#!/bin/bash
# Becomes PID 1 of a throw-away machine: the systemd that is installed here, on a copy of / that vanishes with it.
# Run by systemd_box.py in fresh mount, pid, net, uts and ipc namespaces:
#   systemd_box.sh SCRATCH ROOT      SCRATCH: an empty folder; SCRATCH/host/notify is the socket that is told READY=1
#                                    ROOT: the tree of which the machine is a copy, such as /
# SCRATCH/host/image, if there, is a folder of files to be laid over those of the new machine.
# SCRATCH/prepare, if there, is sourced in the new machine right before systemd begins.
set -eu
scratch=$1 lower=$2
# Otherwise mount(8) would write its table into the /run of the machine outside.
export LIBMOUNT_UTAB=/dev/null

if [[ ${3-} != inside ]]; then
    # systemd needs a cgroup tree that it owns: join a new group, and make it the root of the visible tree.
    mkdir "$scratch/cgroup"
    mount -t cgroup2 none "$scratch/cgroup"
    group=$scratch/cgroup/${scratch##*/}
    mkdir "$group"
    echo 0 > "$group/cgroup.procs"
    umount "$scratch/cgroup"
    exec unshare --cgroup "$BASH" "$0" "$scratch" "$lower" inside
fi

# /proc is still the one outside, so this is our number out there, by which nsenter finds us.
read -r pid _ < /proc/self/stat
echo "$pid" > "$scratch/pid"

mkdir "$scratch/layers"
mount -t tmpfs -o mode=755 none "$scratch/layers"
root=$scratch/layers/root
mkdir "$root" "$scratch/layers/changes" "$scratch/layers/work"
mount -t overlay none "$root" -o "lowerdir=$lower,upperdir=$scratch/layers/changes,workdir=$scratch/layers/work"
cd "$root"

mount -t proc -o nosuid,nodev,noexec none proc
# The kernel's switches belong to all machines; those of the network only to ours.
mount --bind proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,ro proc/sys
[[ ! -e proc/sysrq-trigger ]] || mount --bind /dev/null proc/sysrq-trigger
mount -t sysfs -o nosuid,nodev,noexec,ro none sys
mount -t cgroup2 -o nosuid,nodev,noexec none sys/fs/cgroup
mount -t tmpfs -o nosuid,mode=755 none dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 none dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o nosuid,nodev,mode=755 none run
mount -t tmpfs -o nosuid,nodev,mode=1777 none tmp
mkdir run/host
mount --bind "$scratch/host" run/host
# `nox -s coverage`: what a program in the machine measured must not vanish with it.
if [[ -n ${COVERAGE_FILE-} ]]; then
    mkdir -p ".${COVERAGE_FILE%/*}"
    mount --bind "${COVERAGE_FILE%/*}" ".${COVERAGE_FILE%/*}"
fi

# A machine on which nothing is installed yet: no units, mounts or networks of the one that it runs on, and nothing that
# hostrouting, the agent of a cloud or a CNI left there.
rm -rf etc/aks-flex-node var/lib/hostrouting etc/systemd/system etc/systemd/network etc/init.d etc/rc?.d var/log/journal \
    etc/waagent.conf var/lib/waagent var/lib/hyperv etc/cni etc/systemd/networkd.conf.d
mkdir -p etc/systemd/system
: > etc/fstab
echo box > etc/hostname
tr -d - < proc/sys/kernel/random/uuid > etc/machine-id
# Units that need hardware, consoles or kernel file systems, none of which belong to this machine.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-logind.service getty.target \
    systemd-networkd.service systemd-resolved.service systemd-journald-audit.socket systemd-ask-password-wall.path \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount; do
    ln -s /dev/null "etc/systemd/system/$unit"
done

prepare=$(cat "$scratch/prepare" 2> /dev/null || true)
mkdir .outside
pivot_root . .outside
cd /
umount -l /.outside
rmdir /.outside
[[ ! -d run/host/image ]] || cp -a run/host/image/. /
eval "$prepare"
# container=: systemd then does not touch objects of the machine outside. Without the capabilities it could not.
exec setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-syslog --inh-caps=-all env -i container=box TERM=linux \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin NOTIFY_SOCKET=/run/host/notify \
    /lib/systemd/systemd --system --show-status=no
