#!/bin/sh
# What is kept of sandboxes, on Debian's own kernel in a QEMU guest, by a node of root and by one of an ordinary user: pause, snapshot,
# restore, fork, volumes; and `hutch run --tx` of both.
#
#   state_guest.sh [DIR]     DIR is not used; the programs are those of build/
#
# Prints TAP. Kernel: tests/lib/guest.sh.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/guest.sh
. tests/lib/guest.sh

[ "${HUTCH_SOAK:-}" = 1 ] || give_up "takes some minutes; \`make soak\` runs it"
[ -x build/hutch-node ] || give_up "build/hutch-node is not there; build first"
[ -x /bin/busybox ] || give_up "/bin/busybox is missing: apt-get install busybox-static"
guest_needs qemu-system-x86_64 mke2fs newuidmap

guest_start state
guest_kernel
root=$work/root
mkdir "$root"
guest_small_root "$root"
for program in newuidmap newgidmap; do
    guest_copy "$root" "/usr/bin/$program"
    chmod 4755 "$root/usr/bin/$program"
done
guest_copy "$root" /sbin/mkfs.ext4
guest_copy "$root" /sbin/e2fsck
guest_copy "$root" /sbin/resize2fs
cp /etc/mke2fs.conf "$root/etc/"
echo 'user:100000:65536' | tee "$root/etc/subuid" >"$root/etc/subgid"

# The same for both; it runs as whoever it is about.
cat >"$root/flow" <<'FLOW'
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
who=$1 driver=$2
. /words
state=$HOME/state
config() {
    printf 'state: %s\nrun: %s\ntemplates: {dir: %s, base: off}\nsandboxes: {driver: %s}\n' \
        "$state" "$HOME/run" "$HOME/templates" "$driver" >"$HOME/config.yaml"
    cp -a /templates "$HOME/" && hutch config check "$HOME/config.yaml"
}
serve() {
    hutch serve --config "$HOME/config.yaml" >>"$HOME/node.log" 2>&1 &
    node=$!
    within 300 answers || { tail -n 8 "$HOME/node.log"; return 1; }
}
answers() { HUTCH_API_KEY=$(cat "$state/admin.key") && export HUTCH_API_KEY && hutch ls; }
stop() { kill $node && wait $node; }
is() { [ "$1" = "$2" ] || { echo "is '$1', should be '$2'"; return 1; }; }
inside() { hutch exec "$@"; }
make_box() { id=$(hutch create --timeout 60m small) && inside $id -- sh -c 'echo one >/home/user/kept; mkdir /home/user/d; echo x >/home/user/d/x'; }
removed() { inside --user root $id -- sh -c 'rm -r /usr && [ ! -e /usr ] && mkdir -p /usr/new && [ "$(ls /usr)" = new ]'; }
paused() {
    inside $id -- sh -c '(while :; do sleep 1; done) >/dev/null 2>&1 & echo $! >/tmp/pid' && hutch pause $id && hutch ls | grep -q paused &&
        hutch resume --timeout 60m $id && is "$(inside $id -- cat /home/user/kept)" one && inside $id -- sh -c 'kill -0 $(cat /tmp/pid)'
}
paused_files() {
    hutch pause --files $id && hutch resume --timeout 60m $id && is "$(inside $id -- cat /home/user/kept)" two
}
snapshot() {
    s=$(hutch snapshot create --name first $id) && inside $id -- sh -c 'echo two >/home/user/kept; rm -r /home/user/d' &&
        new=$(hutch snapshot restore --timeout 60m "$s") && is "$(inside $new -- cat /home/user/kept)" one && inside $new -- test -e /home/user/d/x &&
        is "$(inside $id -- cat /home/user/kept)" two && hutch kill $new
}
forked() {
    two=$(hutch fork -n 2 --timeout 60m $id) && for one in $two; do is "$(inside $one -- cat /home/user/kept)" two || return 1; done &&
        hutch kill $two
}
restarted() { stop && serve && is "$(inside $id -- cat /home/user/kept)" two && new=$(hutch create --timeout 60m first) && is "$(inside $new -- cat /home/user/kept)" one && hutch kill $new; }
volume() {
    hutch volume create data $1 && new=$(hutch create --timeout 60m --volume data:/data small) && inside $new -- sh -c 'echo v >/data/v' &&
        hutch kill $new && is "$(hutch volume get data /v)" v && hutch volume rm data
}
store() { hutch snapshot rm first && hutch store gc && hutch store verify; }
project() { rm -rf "$HOME/p" && mkdir -p "$HOME/p/old" && cd "$HOME/p" && echo a >file && echo b >old/b; }
tx() { # as always: written, changed, removed; nothing on the host before it is applied
    project && hutch run --tx -- sh -c 'echo new >new; echo changed >file; rm old/b' && is "$(cat file)" a && [ ! -e new ] && [ -e old/b ] &&
        hutch diff && hutch apply && is "$(cat file)" changed && is "$(cat new)" new && [ ! -e old/b ]
}
# Where the kernel cannot (before Linux 6.6), doctor has said so.
tx_remove() {
    if hutch doctor --json | tr -d ' \n' | grep -q '"id":"fs.overlay-remove","state":"ok"'; then
        project && hutch run --commit-on-success -- rm -r old && [ ! -e old ]
    else
        hutch doctor | grep -i 'rm -r' && project && ! hutch run --tx -- rm -r old && [ -e old/b ]
    fi
}

cd "$HOME"
try "$who: the configuration is good" config
try "$who: the node starts" serve
try "$who: a sandbox" make_box
try "$who: a directory of the template is removed and made anew" removed
try "$who: pause and resume, with its processes" paused
try "$who: a snapshot, and a sandbox of it" snapshot
try "$who: forks" forked
try "$who: a restart of the node" restarted
try "$who: pause as files, resume" paused_files
try "$who: a volume" volume "$3"
try "$who: hutch kill" hutch kill $id
try "$who: what nobody needs goes, the rest is whole" store
try "$who: the node stops" stop
try "$who: hutch run --tx" tx
try "$who: hutch run --tx and rm -r" tx_remove
grep -E '"level":"(warn|error)"' "$HOME/node.log" | tail -n 4 | sed 's/^/# node: /'
FLOW
sed -n '/^try() {/,/^}/p; /^within() {/,/^}/p' "$root/init" | sed 's,/tmp/out,"$HOME/out",g' >"$root/words"

cat >"$root/try" <<'TRY'
chown -R 1000:1000 /home/user
chmod 666 /dev/ttyS0 /dev/console
HOME=/root sh /flow root auto "--quota 16MiB"
# A cgroup that is the user's, as `systemd-run --user --scope -p Delegate=yes` makes one.
cg=/sys/fs/cgroup
echo "+cpu +memory +pids" >$cg/cgroup.subtree_control
mkdir -p $cg/session
echo "+cpu +memory +pids" >$cg/session/cgroup.subtree_control
mkdir $cg/session/scope
chown -R 1000:1000 $cg/session
sh -c "echo \$\$ >$cg/session/scope/cgroup.procs; exec su user -s /bin/sh -c 'HOME=/home/user sh /flow user layers \"\"'"
try "nothing runs any more" sh -c '! pgrep -f hutch'
TRY

guest_disk "$root" "$work/disk" 900M -O ^has_journal
rm -rf "$root"
guest_boot 3000 "root=/dev/nvme0n1 rw init=/init" "$work/disk"
guest_report
