#!/bin/bash
# What `lab` replaces: one RAID 5 cell of bench/layouts.yaml by hand, with QEMU, ssh and a NoCloud seed. Knows
# nothing of the lab but its image's files. `make bench` times it; it can be run alone:
#   by_hand.sh IMAGE_DIR DISKS LAYOUT sync|assume-clean
# IMAGE_DIR holds disk.qcow2, kernel and initrd (`lab scenario plan` names it). sync: mdadm's own initial sync, and
# waiting for it; assume-clean: the disks are new and read as zeros, which is a clean RAID 5. ACCEL is tcg or kvm.
# Boots a fresh guest, builds the array, writes and reads 100 MiB with dd, ends the guest and removes its files.
# Prints key=value lines: *_at are seconds since the script began, *_bytes_per_second what dd said.
set -euo pipefail
export LC_ALL=C

if [[ $# -ne 4 || ! -r $1/disk.qcow2 || ! $2 =~ ^[0-9]+$ || ! $4 =~ ^(sync|assume-clean)$ ]]; then
    echo "usage: by_hand.sh IMAGE_DIR DISKS LAYOUT sync|assume-clean; IMAGE_DIR holds disk.qcow2, kernel, initrd" >&2
    exit 2
fi
image=$(realpath "$1") disks=$2 layout=$3 initial=$4
accel=${ACCEL:-tcg}
began=$EPOCHREALTIME

at() { echo "$1_at=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }')"; }
die() {
    echo "by_hand.sh: $*" >&2
    exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/by-hand.XXXXXX")
qemu=
cleanup() {
    if [[ -n $qemu ]]; then
        # Nothing in the guest is wanted any more: no shutting down.
        kill -KILL "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A key of our own, and a host key for the guest, so that the client can pin it and cloud-init need not make one.
ssh-keygen -q -t ed25519 -N "" -C "" -f "$work/key"
ssh-keygen -q -t ed25519 -N "" -C "" -f "$work/host"
cat >"$work/user-data" <<END
#cloud-config
disable_root: false
ssh_deletekeys: true
ssh_genkeytypes: []
ssh_keys:
  ed25519_public: $(<"$work/host.pub")
  ed25519_private: |
$(sed 's/^/    /' "$work/host")
users:
  - name: root
    lock_passwd: false
    ssh_authorized_keys: ["$(<"$work/key.pub")"]
END
printf '{"instance-id": "%s", "local-hostname": "by-hand"}\n' "${work##*.}" >"$work/meta-data"
xorriso -as genisoimage -quiet -output "$work/seed.iso" -volid cidata -joliet -rational-rock \
    "$work/user-data" "$work/meta-data" 2>"$work/xorriso.log" || die "no seed: $(<"$work/xorriso.log")"
qemu-img create -q -f qcow2 -b "$image/disk.qcow2" -F qcow2 "$work/root.qcow2"

drives=() members=()
for ((n = 1; n <= disks; n++)); do
    qemu-img create -q -f qcow2 -o lazy_refcounts=on "$work/disk$n.qcow2" 20G
    drives+=(-drive "if=none,id=d$n,file=$work/disk$n.qcow2,format=qcow2,cache=unsafe,throttling.bps-total=$((5 << 20))")
    drives+=(-device "virtio-blk-pci,drive=d$n,serial=disk$n")
    members+=("/dev/disk/by-id/virtio-disk$n")
done

# A port that nobody listens on: connecting to it fails.
port=
for _ in {1..50}; do
    candidate=$((20000 + RANDOM % 20000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
        port=$candidate
        break
    fi
done
[[ -n $port ]] || die "no free port was found in fifty tries"
echo "[127.0.0.1]:$port $(<"$work/host.pub")" >"$work/known_hosts"
guest() {
    # One connection for all commands: each handshake takes most of a second under software emulation.
    ssh -F none -p "$port" -i "$work/key" -o IdentitiesOnly=yes -o BatchMode=yes -o LogLevel=ERROR \
        -o UserKnownHostsFile="$work/known_hosts" -o ConnectTimeout=5 \
        -o ControlMaster=auto -o ControlPath="$work/ssh" -o ControlPersist=yes \
        root@127.0.0.1 "PATH=/usr/sbin:/usr/bin:/sbin:/bin; $*"
}

cpu=qemu64
[[ $accel != kvm ]] || cpu=host
at qemu
qemu-system-x86_64 -machine "pc,accel=$accel" -cpu "$cpu" -smp 1 -m 512 -nodefaults -no-user-config -no-reboot \
    -display none -serial "file:$work/console.log" \
    -kernel "$image/kernel" -initrd "$image/initrd" \
    -append "root=LABEL=root ro console=ttyS0 quiet mitigations=off net.ifnames=0 panic=-1" \
    -drive "if=virtio,file=$work/root.qcow2,format=qcow2,cache=unsafe" \
    -drive "if=virtio,file=$work/seed.iso,format=raw,readonly=on" \
    "${drives[@]}" \
    -device virtio-rng-pci \
    -netdev "user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net0 \
    </dev/null 2>"$work/qemu.log" &
qemu=$!

# Plain ssh, again and again: it gives up on its own where QEMU has taken the connection and nobody answers. Asking
# for the banner first, with a limit of a second, was no better: the guest starts an sshd for each try given up.
deadline=$((SECONDS + 300))
until said=$(guest true 2>&1); do
    kill -0 "$qemu" 2>/dev/null || die "QEMU ended early: $(<"$work/qemu.log") $(tail -n 5 "$work/console.log")"
    ((SECONDS < deadline)) || die "no answer on SSH after 300 seconds: $said"
    sleep 0.5
done
at ssh

assume=
[[ $initial == sync ]] || assume=--assume-clean
guest "set -e
udevadm settle
for disk in $(printf '%s ' "${members[@]}"); do
    disk=\$(readlink -f \$disk)
    echo none > /sys/block/\${disk#/dev/}/queue/scheduler
done
MDADM_NO_UDEV=1 mdadm --create /dev/md/bench --run --homehost=any --metadata=1.2 --level=5 --layout=$layout \
    --chunk=512K --raid-devices=$disks --size=256M --data-offset=8K --bitmap=none --consistency-policy=resync \
    $assume ${members[*]} </dev/null
udevadm settle
test -b /dev/md/bench" >"$work/create.log" 2>&1 || die "the array was not built: $(tail -n 5 "$work/create.log")"
at array

if [[ $initial == sync ]]; then
    guest "mdadm --wait /dev/md/bench || true"
    at synced
fi
state=$(guest "cd /sys/block/\$(basename \$(readlink -f /dev/md/bench))/md; echo \$(cat sync_action) \$(cat degraded)")
[[ $state == "idle 0" ]] || die "the array is '$state' (sync_action, degraded), not 'idle 0'"

# Bytes per second, from dd's own bytes and seconds.
rate() { awk '/copied/ { gsub(/\(.*\)/, ""); printf "%.0f", $1 / $4 }' <<<"$1"; }
fresh="sync; echo 3 > /proc/sys/vm/drop_caches"
said=$(guest "$fresh; dd if=/dev/urandom of=/dev/md/bench bs=1M count=100 iflag=fullblock oflag=direct 2>&1")
at written
echo "write_bytes_per_second=$(rate "$said")"
said=$(guest "$fresh; dd if=/dev/md/bench of=/dev/null bs=1M count=100 iflag=direct 2>&1")
at read
echo "read_bytes_per_second=$(rate "$said")"

trap - EXIT
cleanup
at end
