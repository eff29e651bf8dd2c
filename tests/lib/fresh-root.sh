# fresh-root.sh - a fresh Debian 12 with nothing installed, entered as the root of mount and pid namespaces of its own (a chroot may not make user
# namespaces). It shares the network and the kernel of this machine. To be sourced, with set -eu in force, $work and $cache set.
#
#   fresh_tar               $fresh: Debian's important packages and sudo, made once by mmdebstrap
#   fresh_root DIR          unpacks it, with what this machine needs to reach package mirrors, and an ordinary user `someone`
#   fresh_enter DIR SCRIPT  runs SCRIPT (a path inside) as its root user; processes left by it are killed at the end

fresh_tar() {
    fresh=$cache/fresh-bookworm.tar
    [ ! -s "$fresh" ] || return 0
    mmdebstrap --quiet --format=tar --variant=important --include=sudo bookworm "$work/fresh.part" >"$work/mm.log" 2>&1 || {
        tail -n 1 "$work/mm.log"
        return 1
    }
    mv "$work/fresh.part" "$fresh"
}

fresh_root() { # directory
    mkdir -p "$1"
    tar -x -C "$1" -f "$fresh"
    # What a machine behind a proxy has: its own authorities, mirrors and names.
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/npmrc /etc/apt/apt.conf.d/*proxy* /usr/local/share/ca-certificates/*.crt; do
        [ ! -e "$file" ] || { mkdir -p "$1${file%/*}" && cp -L "$file" "$1$file"; }
    done
    chroot "$1" useradd -m -s /bin/bash someone
    echo 'someone ALL=(ALL) NOPASSWD: ALL' >"$1/etc/sudoers.d/someone"
    rm -f "$1/usr/sbin/policy-rc.d"
}

fresh_enter() { # directory script
    cat >"$work/enter" <<'ENTER'
mount --bind "$1" "$1"
cd "$1"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run
mkdir .old
pivot_root . .old
umount -l .old
rmdir .old
exec chroot . env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8 TERM=xterm \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt bash "$2"
ENTER
    unshare --mount --pid --ipc --uts --fork --kill-child sh -e "$work/enter" "$1" "$2"
}
