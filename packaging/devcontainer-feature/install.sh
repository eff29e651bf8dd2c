#!/bin/sh
# install.sh - of the devcontainer feature: runs as root while the image is built, with the options ARCHIVE and SHA256 in its environment. What the
# container itself must allow is `securityOpt` of devcontainer-feature.json: sandboxes need user namespaces, mounts and a proc of their own.
set -eu
die() {
    echo "hutch: $*" >&2
    exit 1
}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case ${ARCHIVE:-} in
'')
    set -- "$here"/hutch-*-linux-x86_64.tar.gz
    [ -f "$1" ] || die "no archive lies beside $here/install.sh: copy one of make dist there, or give the option archive a URL"
    cp "$1" "$work/archive"
    ;;
https://*)
    [ -n "${SHA256:-}" ] || die "archive is a URL: give its digest by the option sha256"
    command -v curl >/dev/null || { apt-get -qq update && apt-get -qq -y --no-install-recommends install curl ca-certificates; }
    curl -fsSL --retry 3 --proto =https -o "$work/archive" "$ARCHIVE" || die "cannot fetch $ARCHIVE"
    ;;
*) die "$ARCHIVE: an https URL is needed, or nothing" ;;
esac
digest=$(sha256sum "$work/archive" | cut -d ' ' -f 1)
[ "${SHA256:-$digest}" = "$digest" ] || die "the archive has another digest than $SHA256: $digest"
mkdir "$work/tree"
tar -xz -C "$work/tree" --strip-components=1 -f "$work/archive" || die "this is not an archive of make dist"
sh "$work/tree/install.sh" --prefix /usr/local
