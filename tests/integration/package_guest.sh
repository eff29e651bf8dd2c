#!/bin/sh
# The Debian package on a fresh Debian: installed, used and purged in a plain root, then under a real systemd in a QEMU guest
# (Debian's kernel, software emulation, no KVM needed): start, sandboxes across restarts, certificates, upgrade, removal.
#
#   package_guest.sh [DIR]     DIR is not used; the package is made from build/
#
# Prints TAP. HUTCH_TEST_CACHE=DIR keeps the kernel and the root (150 MB) between runs; without it nothing is left behind.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/guest.sh
. tests/lib/guest.sh

[ "${HUTCH_SOAK:-}" = 1 ] || give_up "takes three minutes; \`make soak\` runs it"
[ "$(id -u)" = 0 ] || give_up "needs root, for a root directory of its own"
[ -x build/hutch-node ] || give_up "build/hutch-node is not there; build first"
guest_needs qemu-system-x86_64 mmdebstrap mke2fs unshare

# --- kernel, root, package -----------------------------------------------------------------------------------------

guest_start package
guest_kernel
packaging/build-deb >/dev/null
deb=$(echo build-deb/hutch_*.deb)
# What the package says it depends on, and nothing that it might have forgotten. A root that was kept is of the same list.
include=systemd-sysv,kmod,procps,openssl,$(dpkg-deb -f "$deb" Depends | sed 's/([^)]*)//g; s/ //g')
fresh=$cache/root-$(echo "$include" | cksum | cut -d ' ' -f 1).tar
if [ ! -s "$fresh" ]; then
    rm -f "$cache"/root-*.tar
    mmdebstrap --quiet --format=tar --variant=minbase --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' --include="$include" \
        --customize-hook='rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists' bookworm "$work/root.part" \
        >"$work/mm.log" 2>&1 || give_up "mmdebstrap failed: $(tail -n 1 "$work/mm.log")"
    mv "$work/root.part" "$fresh"
fi

# --- in a plain root -----------------------------------------------------------------------------------------------

cat >"$work/plain" <<'PLAIN'
try() { # name command...
    name=$1
    shift
    if "$@" >/tmp.out 2>&1; then echo "@ok $name"; else echo "@not ok $name" && sed 's/^/# /' /tmp.out; fi
}
list() { find / -xdev \( -path /proc -o -path /var/lib/dpkg -o -path /var/log -o -path /dev -o -path /sys -o -path /.old -o -path /tmp.\* \) -prune -o -print | sort; }
only_ours() { dpkg -L hutch | grep -vE '^/(\.|usr(/(bin|lib|lib/systemd|lib/systemd/system|libexec|share|share/.*)?)?)$' | grep -v hutch && return 1 || true; }
owned_by_root() { [ -z "$(dpkg -L hutch | xargs -d '\n' find -maxdepth 0 \( ! -user root -o -perm /022 -o -perm /6000 \) ! -type l)" ]; }
list >/tmp.before
try "it installs with what it depends on" dpkg -i /hutch.deb
try "its files have its name, or lie below share" only_ours
try "they belong to root, nobody else may change them, none is set-uid" owned_by_root
try "hutch --version" sh -c 'hutch --version | grep -E "^hutch [0-9]"'
try "hutch doctor looks at the host" sh -c 'hutch doctor | grep -i landlock'
try "the user of front is there" sh -c 'getent passwd hutch | grep nologin'
try "hutch run, where it can" sh -c 'hutch run --enforcement best-effort -- true || hutch doctor'
try "hutch config check of what hutch config show prints" sh -c 'hutch config show >/tmp.yaml && hutch config check /tmp.yaml'
try "it is removed" dpkg -r hutch
try "a removal leaves the user" getent passwd hutch
try "it is purged" dpkg -P hutch
try "no user and no group is left" sh -c '! getent passwd hutch && ! getent group hutch'
list >/tmp.after
try "no file is left" diff /tmp.before /tmp.after
rm -f /tmp.*
PLAIN
mkdir "$work/root"
tar -x -C "$work/root" -f "$fresh"
cp "$deb" "$work/root/hutch.deb"
cp "$work/plain" "$work/root/tmp/plain"
# A chroot may not have user namespaces; the root of a mount namespace may.
cat >"$work/enter" <<'ENTER'
mount --bind "$1" "$1"
cd "$1"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mkdir .old
pivot_root . .old
umount -l .old
rmdir .old
exec chroot . sh /tmp/plain
ENTER
unshare --mount --pid --fork --kill-child sh -e "$work/enter" "$work/root" >"$work/log" 2>&1 || true

# --- in a guest ----------------------------------------------------------------------------------------------------

cat >"$work/try" <<'TRY'
#!/bin/bash
exec >/dev/ttyS0 2>&1
export HOME=/root PATH=/usr/sbin:/usr/bin
try() { # name command...
    name=$1
    shift
    if "$@" >/tmp/out 2>&1; then echo "@ok $name"; else echo "@not ok $name" && tail -n 5 /tmp/out | sed 's/^/# /' && journalctl -u hutch -o cat -n 8 | sed 's/^/# /'; fi
}
within() { # seconds command...
    local end=$((SECONDS + $1))
    until "${@:2}"; do [ $SECONDS -lt $end ] && sleep 0.2 || return 1; done
}
no_key_in_journal() { ! journalctl -u hutch -o cat | grep -qE 'e2b_[0-9a-f]{40}' && grep -qE '^e2b_[0-9a-f]{40}$' /var/lib/hutch/admin.key; }
inits() { pgrep -cx hutch-init; }
limited() { local g=/sys/fs/cgroup/system.slice/hutch/hutch-*; systemctl daemon-reload && grep -x 2147483648 $g/memory.max && grep -x 512 $g/pids.max && grep -x '200000 100000' $g/cpu.max; }
reads() { [ "$(hutch exec "$id" -- cat /tmp/kept)" = kept ]; }
killed() { local was; was=$(systemctl show -p MainPID --value hutch) && kill -9 "$was" && within 180 running_anew "$was"; }
running_anew() { systemctl is-active --quiet hutch && [ "$(systemctl show -p MainPID --value hutch)" != "$1" ]; }
sure() { [ "$id" != none ] && within 180 reads; }
# A small authority, and a certificate of it for the node's name.
issue() { # serial
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /etc/hutch/key.pem -out /tmp/req -subj /CN=node &&
        printf 'subjectAltName=DNS:node.example,DNS:*.node.example\n' >/tmp/ext &&
        openssl x509 -req -in /tmp/req -CA /tmp/ca.pem -CAkey /tmp/ca.key -set_serial "$1" -days 30 -extfile /tmp/ext -out /etc/hutch/cert.pem
}
authority() {
    mkdir -p /etc/hutch && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /tmp/ca.key -out /tmp/ca.pem -subj /CN=test -days 30 &&
        issue 1001 && chmod 600 /etc/hutch/key.pem &&
        printf 'listen: 127.0.0.1:7171\ndomain: node.example\nlisten_tls: 127.0.0.1:7443\ntls: {cert: /etc/hutch/cert.pem, key: /etc/hutch/key.pem}\n' >/etc/hutch/config.yaml && hutch config check /etc/hutch/config.yaml
}
serves() { # serial
    openssl s_client -connect 127.0.0.1:7443 -servername "49999-x.node.example" -verify_hostname 49999-x.node.example -CAfile /tmp/ca.pem -verify_return_error </dev/null >/tmp/tls 2>&1 &&
        openssl x509 -noout -serial </tmp/tls | grep -qix "serial=0*$(printf %X "$1")"
}
own_template() {
    mkdir -p /var/lib/hutch/templates/.new/root/{usr,etc,proc,sys,dev,tmp,home/user,run,root,var/tmp} &&
        cp -a /usr/bin /usr/lib /usr/lib64 /usr/sbin /var/lib/hutch/templates/.new/root/usr/ &&
        cp -a /bin /lib /lib64 /sbin /var/lib/hutch/templates/.new/root/ && cp /etc/passwd /etc/group /var/lib/hutch/templates/.new/root/etc/ &&
        chroot /var/lib/hutch/templates/.new/root useradd -m -u 1000 user && mv /var/lib/hutch/templates/.new /var/lib/hutch/templates/mine &&
        own=$(hutch create mine) && [ "$(hutch exec "$own" -- id -un)" = user ] && hutch exec --user root "$own" -- sh -c 'echo x >/etc/x' && hutch kill "$own"
}
selftest() { hutch selftest >self 2>&1; grep -E 'FAIL|fail,' self; tail -n 1 self | grep -q ' 0 fail,'; }
nothing_left() { ! pgrep -x hutch-init && [ ! -e /var/lib/hutch ] && [ ! -e /run/hutch ] && [ ! -e /etc/hutch ] && ! getent passwd hutch && ! systemctl cat hutch; }

for m in /modules/*.ko; do insmod "$m"; done
try "the package installs" dpkg -i /hutch.deb
try "the unit is one that systemd likes" systemd-analyze verify --man=no hutch.service
try "the unit starts and tells when it is ready" systemctl enable --now hutch
try "the operator's key is kept, and not in the journal" no_key_in_journal
id=$(hutch create host) || id=none
try "a sandbox: hutch create, hutch exec" sh -c "hutch exec $id -- sh -c 'id -un; echo kept >/tmp/kept' | grep -x user"
try "its limits are held by a cgroup beside the service's, also after a daemon-reload" limited
try "a restart keeps it" sh -c 'systemctl restart hutch'
try "what it wrote is there" sure
try "a supervisor that is killed comes back" killed
try "and so does the sandbox" sure
try "the service stops" systemctl stop hutch
try "the sandbox lives on without it" [ "$(inits)" = 1 ]
try "a certificate of an authority of one's own is accepted" authority
export HUTCH_URL=http://127.0.0.1:7171
try "the service starts with it" systemctl start hutch
try "it is served for a sandbox's name" within 120 serves 1001
try "the sandbox is still there" sure
try "a renewed certificate" issue 1002
try "is served after a restart" sh -c 'systemctl restart hutch'
try "with its new number" within 120 serves 1002
try "a template of one's own" own_template
useradd -m -s /bin/bash someone
try "hutch run as root" sh -c 'cd /root && [ "$(hutch run -- sh -c "echo x >here && cat here")" = x ]'
try "hutch run as an ordinary user" runuser -l someone -c '[ "$(hutch run -- sh -c "echo y >there && id -un >>there && cat there")" = "$(printf "y\nsomeone")" ]'
try "hutch run --root" sh -c '[ "$(hutch run --root /var/lib/hutch/templates/mine/root --chdir / -- sh -c "echo z >/etc/z && cat /etc/z")" = z ]'
try "hutch selftest as root" selftest
try "hutch selftest as an ordinary user" runuser -l someone -c "$(declare -f selftest); selftest"
try "an upgrade restarts the service" sh -c 'was=$(systemctl show -p MainPID --value hutch); dpkg -i /hutch.deb && [ "$(systemctl show -p MainPID --value hutch)" != "$was" ]'
try "and keeps the sandbox" sure
try "a removal ends service and sandboxes, also when the service was stopped" sh -c 'systemctl stop hutch && dpkg -r hutch && ! systemctl is-active hutch && ! pgrep -x hutch-init'
try "a purge leaves nothing" sh -c 'dpkg -P hutch'
try "no process, state, user or unit" nothing_left
echo "@done"
systemctl poweroff --force --force
TRY

cat >"$work/try.service" <<'UNIT'
[Unit]
After=basic.target
[Service]
Type=oneshot
ExecStart=/try
TimeoutStartSec=infinity
UNIT
rm -rf "$work/root/tmp/plain"
guest_modules "$work/root"
install -m 755 "$work/try" "$work/root/try"
install -m 644 "$work/try.service" "$work/root/etc/systemd/system/"
ln -s /etc/systemd/system/try.service "$work/root/etc/systemd/system/multi-user.target.wants/"
guest_disk "$work/root" "$work/disk" 1500M -O ^has_journal
rm -rf "$work/root"
guest_boot 2400 "root=/dev/nvme0n1 rw init=/lib/systemd/systemd systemd.show_status=false systemd.mask=serial-getty@ttyS0.service" \
    "$work/disk"
guest_report
