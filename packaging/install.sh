#!/bin/sh
# install.sh [install|uninstall] [--prefix DIR] [--force] - put Hutch below DIR, upgrade what is there, or remove it.
#
# DIR is /usr/local for root and ~/.local for everybody else. Nothing is fetched: the files stand beside this script, and are compared with
# SHA256SUMS first. Programs that run keep the files they have; each new file takes the place of the old one at once. State
# (/var/lib/hutch, ~/.local/state/hutch), configuration (/etc/hutch) and users stay when Hutch is removed.
set -eu
own=$(cd "$(dirname "$0")" && pwd -P)

say() { echo "hutch: $*"; }
die() {
    echo "install.sh: $*" >&2
    exit 1
}
usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    exit "$1"
}

prefix='' action=install force=''
while [ $# -gt 0 ]; do
    case $1 in
    install | uninstall) action=$1 ;;
    --prefix) [ $# -gt 1 ] && prefix=$2 && shift || die "--prefix needs a directory" ;;
    --prefix=*) prefix=${1#*=} ;;
    --force) force=1 ;;
    -h | --help) usage 0 ;;
    *) die "unknown argument '$1'; there are install, uninstall, --prefix DIR, --force" ;;
    esac
    shift
done
if [ -z "$prefix" ]; then
    case $own in
    */libexec/hutch) prefix=${own%/libexec/hutch} ;; # the copy that an installation keeps
    *) if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=${HOME:?}/.local; fi ;;
    esac
fi
case $prefix in /*) ;; *) die "--prefix $prefix: an absolute path is needed" ;; esac
list=$prefix/share/hutch/files
# A service and its users belong to an installation for the whole machine.
system=''
case $(id -u):$prefix in 0:/usr | 0:/usr/local) system=1 ;; esac

# nodes_here - process ids of supervisors that were started from this prefix, also from files that an upgrade has replaced.
nodes_here() {
    for link in /proc/[0-9]*/exe; do
        file=$(readlink "$link" 2>/dev/null) || continue
        [ "${file%% (deleted)}" = "$prefix/libexec/hutch/hutch-node" ] || continue
        pid=${link%/exe}
        pid=${pid#/proc/}
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q '^[^ ]*hutch-node serve' && echo "$pid"
    done
    true
}

# unit_is_ours - systemd runs, and its unit hutch.service is the one of this prefix.
unit_is_ours() {
    [ -n "$system" ] && [ -d /run/systemd/system ] &&
        [ "$(systemctl show -p FragmentPath --value hutch.service 2>/dev/null)" = "$prefix/lib/systemd/system/hutch.service" ]
}

# remove_files LIST - remove each file that is named in LIST (and not in $2, if given), then directories of ours that are empty.
remove_files() {
    while read -r file; do
        case $file in '' | /* | *..*) continue ;; esac
        [ -z "${2:-}" ] || ! grep -qxF -e "$file" "$2" || continue
        rm -f "$prefix/$file"
        printf '%s\n' "${file%/*}"
    done <"$1" | LC_ALL=C sort -ru | while read -r dir; do
        while case $dir in */hutch | */hutch/*) true ;; *) false ;; esac; do
            rmdir "$prefix/$dir" 2>/dev/null || break
            dir=${dir%/*}
        done
    done
}

uninstall() {
    [ -e "$list" ] || die "no Hutch is installed below $prefix: there is no $list"
    nodes=$(nodes_here | tr '\n' ' ')
    if [ -n "$nodes" ] && [ -z "$force" ]; then
        die "a node runs from $prefix (process ${nodes% }). End it and its sandboxes with \`hutch stop --all\`, or give --force: its
  sandboxes then live on until their time is over, and another installation of Hutch is needed to reach them"
    fi
    ! unit_is_ours || systemctl disable --now hutch.service >/dev/null 2>&1 || true
    remove_files "$list"
    rm -f "$list"
    rmdir "$prefix/share/hutch" 2>/dev/null || true
    [ -z "$system" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
    say "removed from $prefix"
    for kept in /var/lib/hutch /etc/hutch "${HOME:-/nonexistent}/.local/state/hutch" "${HOME:-/nonexistent}/.config/hutch"; do
        [ ! -e "$kept" ] || say "$kept stays: sandboxes, keys, configuration; remove it yourself"
    done
}

verify() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "this archive is for Linux on x86-64; this machine is $(uname -s) on $(uname -m)"
    [ -f "$own/SHA256SUMS" ] || die "$own/SHA256SUMS is missing; unpack the whole archive"
    # Options of busybox's sha256sum, too; lines that end in OK are of no interest.
    wrong=$(cd "$own" && sha256sum -c SHA256SUMS 2>&1 | grep -v ': OK$' || true)
    [ -z "$wrong" ] || die "a file differs from SHA256SUMS or is missing; fetch the archive again:
$wrong"
    [ -f "$own/share/hutch/files" ] || die "$own/share/hutch/files is missing; unpack the whole archive"
}

# place FILE - put one file of the archive below the prefix, by a rename.
place() {
    mkdir -p "$prefix/$(dirname "$1")"
    mode=644
    [ ! -x "$own/$1" ] || mode=755
    new=$prefix/$(dirname "$1")/.hutch-new.$$
    rm -f "$new"
    cp "$own/$1" "$new" # busybox may have no `install`
    chmod "$mode" "$new"
    case $1 in
    */hutch.service) sed -e "s|^ExecStart=[^ ]*|ExecStart=$prefix/bin/hutch|" -e "s|file:[^ ]*|file:$prefix/share/doc/hutch/README.md|" "$own/$1" >"$new" ;;
    esac
    mv -f "$new" "$prefix/$1"
}

make_users() {
    for user in hutch hutch-egress; do
        getent passwd "$user" >/dev/null 2>&1 || ! command -v useradd >/dev/null ||
            useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin "$user"
    done
}

install_files() {
    verify
    if command -v dpkg-query >/dev/null 2>&1 && dpkg-query -S "$prefix/bin/hutch" >/dev/null 2>&1; then
        die "$prefix/bin/hutch is of the Debian package hutch; upgrade that, or choose another --prefix"
    fi
    umask 022
    before=''
    [ ! -x "$prefix/bin/hutch" ] || before=$("$prefix/bin/hutch" --version 2>/dev/null || true)
    mkdir -p "$prefix/share/hutch" 2>/dev/null && [ -w "$prefix/share/hutch" ] ||
        die "cannot write below $prefix; run it as root, or choose another --prefix"
    while read -r file; do
        case $file in */hutch.service) [ -n "$system" ] || continue ;; esac
        place "$file"
    done <"$own/share/hutch/files"
    [ ! -e "$list" ] || remove_files "$list" "$own/share/hutch/files"
    place share/hutch/files
    [ -z "$system" ] || make_users
    say "$("$prefix/bin/hutch" --version) is below $prefix${before:+ (it was $before)}"
    "$prefix/libexec/hutch/hutch-node" serve --help >/dev/null 2>&1 ||
        say "hutch-node does not start here: it needs glibc @GLIBC@ or newer. hutch run works, without network rules; hutch serve does not"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) say "$prefix/bin is not in your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    tell_nodes
}

# Running nodes go on with the programs that they have until they are restarted; systemd's is, and its sandboxes outlive that.
tell_nodes() {
    if [ -n "$system" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        ! unit_is_ours || systemctl try-restart hutch.service
    fi
    for pid in $(nodes_here); do
        case $(readlink "/proc/$pid/exe") in
        *' (deleted)') say "the node of process $pid still runs the former version; stop and start it when it suits you: its sandboxes stay" ;;
        esac
    done
}

case $action in
install) install_files ;;
uninstall) uninstall ;;
esac
