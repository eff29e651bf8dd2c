#!/bin/sh
# Runs the unit tests of cgroups, processes and id ranges on Debian's own kernel in a QEMU guest (software emulation, no
# KVM needed), because the machine at hand may have its controllers in v1 hierarchies. Four layouts in two boots:
#   v2 in the root cgroup and as a service (own cgroup, controllers passed on above it); v1 alone and hybrid.
#
#   cgroup_v2_guest.sh DIR     DIR holds the test binaries (test_cgroup, test_procs, test_idrange)
#
# Prints TAP. Installs QEMU, busybox and cpio with apt-get if they are missing. HUTCH_TEST_CACHE=DIR keeps the kernel
# between runs; without it nothing is left behind.
set -eu

bins=$(realpath "${1:?usage: cgroup_v2_guest.sh DIRECTORY-OF-TEST-BINARIES}")
tests="test_cgroup test_procs test_idrange"

cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/guest.sh
. tests/lib/guest.sh

for t in $tests; do
    [ -x "$bins/$t" ] || give_up "$bins/$t is not there; build first"
done
guest_start cgroup

# --- tools and kernel ----------------------------------------------------------------------------------------------

missing=
command -v qemu-system-x86_64 >/dev/null || missing="$missing qemu-system-x86"
[ -x /bin/busybox ] && /bin/busybox --list | grep -qx mount || missing="$missing busybox-static"
command -v cpio >/dev/null || missing="$missing cpio"
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || give_up "missing:$missing, and there is no apt-get"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >"$work/apt.log" 2>&1 ||
        give_up "apt-get install$missing failed: $(tail -n 1 "$work/apt.log")"
fi

guest_kernel

# --- initramfs -----------------------------------------------------------------------------------------------------

root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/run" "$root/etc"
chmod 1777 "$root/tmp"
echo root:x:0:0::/:/bin/sh >"$root/etc/passwd"
guest_copy "$root" /bin/busybox
for t in $tests; do
    guest_copy "$root" "$bins/$t" "/bin/$t"
done

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin CMOCKA_MESSAGE_OUTPUT=TAP
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
run() { # label command...
    label=$1; shift
    "$@" >/tmp/out 2>&1; rc=$?
    sed "s/^\(ok\|not ok\) [0-9]* - /@\1 $label: /; t
         s/^not ok [0-9]* # SKIP \(.*\)/@ok $label: \1 # SKIP for the reason printed before it/; t
         s/^/# $label: /" /tmp/out
    echo "@end $label $rc"
}
cg=/sys/fs/cgroup

if grep -q layout=v2 /proc/cmdline; then
mount -t cgroup2 none $cg
HUTCH_EXPECT_BACKEND=v2 run v2-root test_cgroup
run procs test_procs
run idrange test_idrange

# As a service manager would have it: controllers passed on down to the parent of the service's own cgroup.
echo "+cpu +memory +pids" >$cg/cgroup.subtree_control
mkdir $cg/system
echo "+cpu +memory +pids" >$cg/system/cgroup.subtree_control
mkdir $cg/system/service
echo $$ >$cg/system/service/cgroup.procs
HUTCH_EXPECT_BACKEND=v2 run v2-service test_cgroup
echo $$ >$cg/cgroup.procs
rmdir $cg/system/service $cg/system
else
mount -t tmpfs cg $cg
for c in cpu,cpuacct memory pids freezer blkio; do
    mkdir $cg/$c
    mount -t cgroup -o $c cgroup $cg/$c
done
HUTCH_EXPECT_BACKEND=v1 run v1 test_cgroup
mkdir $cg/unified
mount -t cgroup2 none $cg/unified
HUTCH_EXPECT_BACKEND=hybrid run hybrid test_cgroup
fi
echo "@left $(find $cg -name 'hutch-*' | wc -l)"
echo "@done"
sync
reboot -f
INIT
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

# --- boot ----------------------------------------------------------------------------------------------------------

# A controller cannot move between v2 and v1 while a dead cgroup still pins it, hence one boot for each.
guest_memory=512
for layout in v2 v1; do
    guest_boot 240 "layout=$layout" -initrd "$work/initrd"
done

# --- TAP -----------------------------------------------------------------------------------------------------------

awk '
    /^@(ok|not ok) / { n++; bad += /^@not ok/; sub(/^@/, ""); sub(/^(not )?ok/, "& " n " -"); print; next }
    /^@end / {
        suites++; n++
        if ($3 != 0) { bad++; printf "not " }
        print "ok " n " - " $2 ": test program ended with " $3
        next
    }
    /^@left / { n++; if ($2 != 0) { bad++; printf "not " } print "ok " n " - no cgroup is left behind (" $2 ")"; next }
    /^@done/ { done++; next }
    /^# / { print }
    END {
        n++
        if (done != 2 || suites != 6) { bad++; printf "not " }
        print "ok " n " - the guest ran all 6 suites to the end (" suites + 0 ")"
        print "1.." n
        exit bad > 0
    }' "$work/log" || {
    echo "# last lines of the console:"
    tail -n 25 "$work/log" | sed 's/^/#   /'
    sed 's/^/# qemu: /' "$work/qemu.log"
    exit 1
}
