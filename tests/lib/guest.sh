# guest.sh - what the guest scripts of tests/integration share: Debian's kernel, a disk, a boot in QEMU (software emulation, no KVM
# needed), and TAP from what the guest wrote on its console. To be sourced, with set -eu in force.
#
#   guest_start NAME        a working directory $work that is gone at the end, and $cache
#   guest_kernel            $kernel and $modules of Debian's cloud kernel
#   guest_small_root DIR    busybox, the programs of build/, their libraries and the kernel's modules, below DIR
#   guest_disk DIR FILE SIZE [mke2fs option...]
#   guest_boot SECONDS APPEND DISK...    the first disk is nvme0n1, the second nvme1n1, ...; `-initrd FILE` instead of disks. The
#                           console is added to $work/log
#   guest_report            TAP; the exit code says whether all is well
#
# In the guest a line "@ok NAME" or "@not ok NAME" is a result, "# ..." goes with the one before, "@done" is the end.
# HUTCH_TEST_CACHE=DIR keeps the kernel between runs; without it nothing is left behind.

give_up() {
    echo "1..0 # SKIP $*"
    exit 77
}

guest_start() { # name
    [ "$(uname -m)" = x86_64 ] || give_up "the guest is x86-64, this machine is $(uname -m)"
    work=$(mktemp -d "/tmp/hutch-$1.XXXXXX")
    qemu=
    trap guest_end EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    cache=${HUTCH_TEST_CACHE:-$work}
    mkdir -p "$cache"
    : >"$work/log"
    : >"$work/qemu.log"
}

guest_end() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true
    rm -rf "$work"
}

guest_needs() { # tool...
    for tool in "$@"; do
        command -v "$tool" >/dev/null || give_up "$tool is not installed"
    done
}

guest_kernel() {
    kernel=$cache/kernel/vmlinuz
    modules=$cache/kernel/modules
    [ ! -s "$kernel" ] || return 0
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    [ -n "$package" ] || give_up "apt knows no linux-image-cloud-amd64; apt-get update?"
    (cd "$work" && apt-get download "$package" >apt.log 2>&1) ||
        give_up "cannot download $package: $(tail -n 1 "$work/apt.log")"
    mkdir "$work/deb" "$work/kernel.part"
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work/deb" ./boot ./lib/modules
    mv "$work"/deb/boot/vmlinuz-* "$work/kernel.part/vmlinuz"
    mv "$work/deb/lib/modules" "$work/kernel.part/modules"
    rm -rf "$cache/kernel" "$work"/linux-image-*.deb
    mv "$work/kernel.part" "$cache/kernel"
}

# The modules that sandboxes and these tests need, as files in the order in which they can be loaded; Debian's package has no table of
# what needs what, which depmod would make.
guest_modules() { # directory
    mkdir -p "$1/modules"
    n=10
    for module in libcrc32c overlay quota_tree quota_v2 xfs loop nfnetlink nf_defrag_ipv4 nf_defrag_ipv6 nf_conntrack nf_tables \
        nf_tproxy_ipv4 nf_tproxy_ipv6 nft_tproxy nf_socket_ipv4 nf_socket_ipv6 nft_socket nf_nat nft_redir nft_ct \
        nf_reject_ipv4 nf_reject_ipv6 nft_reject nft_reject_ipv4 nft_reject_ipv6 nft_reject_inet; do
        find "$modules" -name "$module.ko" -exec cp {} "$1/modules/$n-$module.ko" \;
        n=$((n + 1))
    done
}

guest_copy() { # root program [place]: with the libraries it is linked with
    place=$1${3:-$2}
    mkdir -p "$(dirname "$place")"
    cp -L "$2" "$place"
    # ldd lines: "name => /path (addr)" and "/path (addr)"
    { ldd "$2" 2>/dev/null || true; } | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' |
    while read -r library; do
        mkdir -p "$1$(dirname "$library")"
        cp -L "$library" "$1$library"
    done
}

guest_busybox() { # root
    mkdir -p "$1/bin" "$1/proc" "$1/sys" "$1/dev" "$1/tmp" "$1/run" "$1/etc" "$1/root" "$1/var/lib" "$1/home/user" "$1/usr/bin" \
        "$1/usr/sbin" "$1/sbin"
    chmod 1777 "$1/tmp"
    cp /bin/busybox "$1/bin/busybox"
    for name in $(/bin/busybox --list); do
        [ "$name" = busybox ] || ln -sf busybox "$1/bin/$name"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n' >"$1/etc/passwd"
    printf 'root:x:0:\nuser:x:1000:\n' >"$1/etc/group"
}

# A root without a service manager, in which /try runs as pid 1, and a template `small`.
guest_small_root() { # directory
    guest_busybox "$1"
    mkdir -p "$1/templates/small"
    guest_busybox "$1/templates/small/root"
    rm -f "$1/templates/small/root/bin/bash"
    printf '#!/bin/sh\nexec /bin/sh "$@"\n' >"$1/templates/small/root/bin/bash"
    chmod 755 "$1/templates/small/root/bin/bash"
    chmod 777 "$1/templates/small/root/home/user" # whoever its user is: ids of a template differ with and without root
    for id in 990:hutch 991:hutch-egress; do
        echo "${id#*:}:x:${id%:*}:${id%:*}::/nonexistent:/bin/false" >>"$1/etc/passwd"
        echo "${id#*:}:x:${id%:*}:" >>"$1/etc/group"
    done
    guest_copy "$1" build/hutch /usr/bin/hutch
    guest_copy "$1" build/hutch-node /usr/libexec/hutch/hutch-node
    guest_copy "$1" build/hutch-client /usr/libexec/hutch/hutch-client
    # Names are looked up by libraries that nobody is linked with.
    for library in /lib/x86_64-linux-gnu/libnss_files.so.2 /lib/x86_64-linux-gnu/libnss_dns.so.2; do
        [ ! -e "$library" ] || cp -L "$library" "$1$library"
    done
    guest_modules "$1"
    cat >"$1/init" <<'INIT'
#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 none /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
for m in /modules/*.ko; do insmod "$m" || echo "# insmod $m failed"; done
try() { # name command...
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then echo "@ok $name"; else echo "@not ok $name" && tail -n 12 /tmp/out | sed 's/^/# /'; fi
}
within() { # seconds command...
    left=$(($1 * 2))
    shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] && sleep 0.5 || return 1
    done
}
. /try
echo "@done"
sync
poweroff -f
INIT
    chmod 755 "$1/init"
}

guest_disk() { # directory file size option...
    dir=$1 file=$2 size=$3
    shift 3
    mke2fs -q -t ext4 "$@" ${dir:+-d "$dir"} "$file" "$size" >>"$work/qemu.log" 2>&1
}

guest_boot() { # seconds append disk...
    seconds=$1 append=$2 n=0
    shift 2
    for disk in "$@"; do
        [ "$1" != -initrd ] || break
        shift
        set -- "$@" -drive "file=$disk,format=raw,if=none,id=disk$n,cache=unsafe" -device "nvme,drive=disk$n,serial=$n"
        n=$((n + 1))
    done
    # Emulated processors sometimes lock up in the guest's own kernel, which says so, or is too far gone to: that boot proves nothing, and
    # is made once more. What hangs for another reason hangs again.
    for attempt in 1 2; do
        timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m "${guest_memory:-2048}" -smp 2 -no-reboot -nodefaults \
            -display none -serial stdio -kernel "$kernel" "$@" \
            -append "console=ttyS0 no_timer_check quiet panic=-1 softlockup_panic=1 loglevel=1 $append" \
            >"$work/console" 2>>"$work/qemu.log" </dev/null &
        qemu=$!
        code=0
        wait "$qemu" || code=$?
        qemu=
        [ "$attempt" = 1 ] || break
        [ "$code" = 124 ] || grep -q 'soft lockup' "$work/console" || break
        echo "# the guest's kernel locked up; once more"
    done
    tr -d '\r' <"$work/console" >>"$work/log"
}

guest_report() { # [how many guests there were]
    awk -v guests="${1:-1}" '
        /@(ok|not ok) / { n++; bad += /@not ok/; sub(/^.*@/, ""); sub(/^(not )?ok/, "& " n " -"); print; next }
        /@done/ { done++; next }
        /^# / { print }
        END {
            n++
            if (done != guests) { bad++; printf "not " }
            print "ok " n " - the guest came to its end"
            print "1.." n
            exit bad > 0
        }' "$work/log" && return 0
    echo "# last lines of the console:"
    tail -n 25 "$work/log" | sed 's/^/#   /'
    sed 's/^/# qemu: /' "$work/qemu.log"
    return 1
}
