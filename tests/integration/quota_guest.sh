#!/bin/sh
# Project quotas on Debian's own kernel in a QEMU guest, because the machine at hand may have none: a node whose state lies on ext4
# and on xfs, limits of bytes and files of sandboxes and volumes, and that nothing of them is left.
#
#   quota_guest.sh [DIR]     DIR is not used; the programs are those of build/
#
# Prints TAP. Kernel: tests/lib/guest.sh.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/guest.sh
. tests/lib/guest.sh

[ "${HUTCH_SOAK:-}" = 1 ] || give_up "takes some minutes; \`make soak\` runs it"
[ -x build/hutch-node ] || give_up "build/hutch-node is not there; build first"
[ -x /bin/busybox ] || give_up "/bin/busybox is missing: apt-get install busybox-static"
guest_needs qemu-system-x86_64 mke2fs mkfs.xfs gcc

guest_start quota
guest_kernel
root=$work/root
mkdir "$root"
guest_small_root "$root"
gcc -static -O1 -o "$root/bin/projects" tests/lib/projects.c ||
    give_up "tests/lib/projects.c cannot be compiled"

guest_copy "$root" /sbin/mkfs.ext4
guest_copy "$root" /sbin/e2fsck
guest_copy "$root" /sbin/resize2fs
cp /etc/mke2fs.conf "$root/etc/"

cat >"$root/try" <<'TRY'
config() {
    printf 'state: /mnt/state\nrun: /run/hutch\ntemplates: {dir: /templates, base: off}\nsandboxes: {driver: auto, disk: 16MiB, inodes: 1000, memory: 256MiB}\n' >/tmp/config.yaml
    hutch config check /tmp/config.yaml
}
serve() {
    hutch serve --config /tmp/config.yaml >>/tmp/node.log 2>&1 &
    node=$!
    within 300 answers
}
answers() { HUTCH_API_KEY=$(cat /mnt/state/admin.key) && export HUTCH_API_KEY && hutch ls; }
stop() { kill $node && wait $node; [ $? = 0 ]; }
inside() { hutch exec "$@"; }
is() { [ "$1" = "$2" ] || { echo "is '$1', should be '$2'"; return 1; }; }
has() { echo "$1" | grep -q "$2" || { echo "'$2' is not in: $1"; return 1; }; }
count() { projects /mnt | wc -l; }
none_left() { [ "$(count)" = 0 ]; }
make_box() { id=$(hutch create --timeout 30m small) && inside $id -- id -un; }
# What was written before the limit struck is close to it, and the error is that of a full disk or of a quota.
full() { # command that fills, in the sandbox
    out=$(inside --user root $id -- sh -c "$1" 2>&1)
    echo "$out"
    echo "$out" | grep -qiE 'No space left|quota exceeded'
}
bytes_held() {
    full 'dd if=/dev/zero of=/big bs=1M count=40 2>&1; sync; wc -c </big' || return 1
    size=$(echo "$out" | tail -n 1)
    [ "$size" -gt 12000000 ] && [ "$size" -le 16777216 ]
}
freed_again() { inside --user root $id -- sh -c 'rm /big && dd if=/dev/zero of=/small bs=1M count=8 && rm /small'; }
files_held() {
    full 'mkdir /many && i=0 && while [ $i -lt 1500 ] && touch /many/$i; do i=$((i + 1)); done; ls /many | wc -l' || return 1
    n=$(echo "$out" | tail -n 1)
    [ "$n" -gt 800 ] && [ "$n" -le 1000 ] && inside --user root $id -- rm -r /many
}
copied_up() { inside --user root $id -- sh -c 'dd if=/dev/zero of=/fill bs=64k count=1000; ! cp /bin/busybox /bin/two && rm -f /fill /bin/two' ; }
seen_by_df() { has "$(inside $id -- df -k / | tail -n 1)" ' 16384 '; }
said() { # driver quota
    has "$(wget -qO- --header "X-API-KEY: $HUTCH_API_KEY" http://127.0.0.1:7070/v1/capabilities)" "\"driver\":\"$1\",\"quota\":\"$2\""
}
# As seen from the host, too.
counted() { is "$(count)" "$1" && projects /mnt | grep -q "$2"; }
no_other_project() { # root inside may not leave its project
    is "$(inside --user root $id -- sh -c 'chattr -p 0 /etc 2>&1; mkdir -p /out; chattr -p 77 /out 2>&1; echo tried' | tail -n 1)" tried && ! projects /mnt | grep -q '^0x4d '
}
volume_made() { hutch volume create data --quota 16MiB --entries 200 && has "$(hutch volume inspect data)" 'project quota'; }
volume_box() { id=$(hutch create --timeout 30m --volume data:/data small) && inside $id -- id -un; }
volume_bytes_held() {
    full 'dd if=/dev/zero of=/data/big bs=1M count=40 2>&1; sync; wc -c </data/big' || return 1
    size=$(echo "$out" | tail -n 1)
    [ "$size" -gt 12000000 ] && [ "$size" -le 16777216 ] && inside --user root $id -- rm /data/big
}
volume_files_held() {
    full 'i=0 && while [ $i -lt 400 ] && touch /data/$i; do i=$((i + 1)); done; ls /data | wc -l' || return 1
    n=$(echo "$out" | tail -n 1)
    [ "$n" -gt 150 ] && [ "$n" -le 200 ]
}
used_is_shown() { hutch volume inspect data; hutch volume inspect data --json | grep -q '"entries": *[12][0-9][0-9]'; }
snapshot_works() {
    inside --user root $id -- sh -c 'echo kept >/kept' && s=$(hutch snapshot create $id) && new=$(hutch create --timeout 30m "$s") &&
        is "$(inside $new -- cat /kept)" kept && hutch kill $new && hutch snapshot rm "$s"
}
kept_by_restart() { stop && serve && full 'dd if=/dev/zero of=/big bs=1M count=40 2>&1'; }
all_at_once() {
    ids=; for i in 1 2 3 4; do ids="$ids $(hutch create --timeout 30m small)"; done
    [ "$(projects /mnt | cut -d ' ' -f 1 | sort -u | wc -l)" -ge 4 ] && hutch kill $ids
}
clean() { hutch store gc >/dev/null; within 240 none_left || { projects /mnt; ls -la /mnt/state/stock/uppers /mnt/state/stock/volumes; return 1; }; }
empty() { [ -z "$(ls -A /mnt/state/stock/uppers)$(ls -A /mnt/state/stock/volumes)" ]; }

walk() { # label driver
    try "$1: the node starts" serve
    try "$1: a sandbox" make_box
    try "$1: GET /v1/capabilities names driver and quota" said "$2" "project quota"
    try "$1: the kernel counts for one project, with both limits" counted 1 '/16777216 [0-9]*/1000$'
    try "$1: df inside shows the limit" seen_by_df
    try "$1: bytes end at the limit" bytes_held
    try "$1: what is removed can be written again" freed_again
    try "$1: files end at the limit" files_held
    try "$1: what is copied up counts" copied_up
    try "$1: no way into another project" no_other_project
    try "$1: a snapshot of it, and a sandbox of that" snapshot_works
    try "$1: the limit holds after a restart of the node" kept_by_restart
    try "$1: four more have a project each" all_at_once
    hutch kill $id >/dev/null 2>&1
    try "$1: projects of ended sandboxes are given back" clean
    try "$1: a volume with a quota" volume_made
    try "$1: in a sandbox" volume_box
    try "$1: bytes of the volume end at its quota" volume_bytes_held
    try "$1: files of the volume end at its quota" volume_files_held
    try "$1: hutch volume inspect counts them" used_is_shown
    hutch kill $id >/dev/null 2>&1
    try "$1: the volume is removed" hutch volume rm data
    try "$1: its project is given back" clean
    try "$1: no directory is left" empty
    try "$1: the node stops" stop
    sed 's/^/# node: /' /tmp/node.log | grep -iE 'warn|error' | tail -n 5
}

mkdir -p /mnt
try "the configuration is good" config
mount -t ext4 -o prjquota /dev/nvme1n1 /mnt
walk ext4 layers
umount /mnt || echo "@not ok ext4 cannot be unmounted"
mount -t xfs -o prjquota /dev/nvme2n1 /mnt
walk xfs layers
umount /mnt || echo "@not ok xfs cannot be unmounted"
mount -t ext4 /dev/nvme1n1 /mnt
try "without prjquota: the node starts" serve
try "without prjquota: auto without a pool writes to memory" make_box
try "without prjquota: GET /v1/capabilities says so" said tmpfs tmpfs
hutch kill $id >/dev/null 2>&1
try "without prjquota: the node stops" stop
TRY

guest_disk "$root" "$work/disk" 400M -O ^has_journal
guest_disk "" "$work/ext4" 256M -O quota,project -E quotatype=prjquota
truncate -s 400M "$work/xfs"
mkfs.xfs -q "$work/xfs" >>"$work/qemu.log" 2>&1
rm -rf "$root"
guest_boot 3000 "root=/dev/nvme0n1 rw init=/init" "$work/disk" "$work/ext4" "$work/xfs"
guest_report
