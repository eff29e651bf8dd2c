# finish-root.sh ROOT - the last step of building `slim` and `base`; the builder hands it to mmdebstrap as a hook.
# What the builder uploaded lies in ROOT/var/tmp/hutch: node.tgz and npm.tgz, pip.conf, npmrc. Each may be missing.
set -eu
root=$1
given=$root/var/tmp/hutch

# The user's number is fixed, because file requests and commands use the number.
chroot "$root" groupadd -g 1000 user
chroot "$root" useradd -m -u 1000 -g 1000 -s /bin/bash user
echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"
echo hutch >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
: >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"
printf 'LANG=C.UTF-8\n' >"$root/etc/default/locale"

# Keys that the sources name, where Debian's own package does not bring them.
cat "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* 2>/dev/null |
    sed -n 's/.*[Ss]igned-[Bb]y[:=] *\(\/[^] ]*\).*/\1/p' | sort -u | while read -r key; do
    [ -e "$root$key" ] || [ ! -e "$key" ] || install -D -m 0644 "$key" "$root$key"
done

# A sandbox is an environment of its own: pip may install into it.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

if [ -e "$given/node.tgz" ]; then
    lib=$root/usr/local/lib
    mkdir -p "$lib/nodejs" "$lib/node_modules/npm"
    tar -xzf "$given/node.tgz" -C "$lib/nodejs" --strip-components=1 --no-same-owner package/bin package/include package/LICENSE
    tar -xzf "$given/npm.tgz" -C "$lib/node_modules/npm" --strip-components=1 --no-same-owner
    rm -rf "$lib/node_modules/npm/docs" "$lib/node_modules/npm/man"
    # Headers for modules in C++; those of OpenSSL for other processors are most of them.
    find "$lib/nodejs/include/node/openssl/archs" -mindepth 1 -maxdepth 1 ! -name linux-x86_64 -exec rm -rf {} +
    chmod 0755 "$lib/nodejs/bin/node"
    # Node has roots of its own and must be told about the system's, where the node's authorities are.
    cat >"$root/usr/local/bin/node" <<'NODE'
#!/bin/sh
export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}"
exec /usr/local/lib/nodejs/bin/node "$@"
NODE
    chmod 0755 "$root/usr/local/bin/node"
    for name in npm npx; do
        chmod 0755 "$lib/node_modules/npm/bin/$name-cli.js"
        ln -s "../lib/node_modules/npm/bin/$name-cli.js" "$root/usr/local/bin/$name"
    done
    printf 'prefix=/usr/local\ncafile=/etc/ssl/certs/ca-certificates.crt\nnodedir=/usr/local/lib/nodejs\n%s\n' \
        'update-notifier=false' >"$lib/node_modules/npm/npmrc"
fi
[ ! -e "$given/pip.conf" ] || install -m 0644 "$given/pip.conf" "$root/etc/pip.conf"
[ ! -e "$given/npmrc" ] || install -D -m 0644 "$given/npmrc" "$root/usr/local/etc/npmrc"

# `pip install` and `npm install -g` work without sudo, and what they install is in everyone's PATH.
chown -R 1000:1000 "$root/usr/local"
rm -rf "$given"
