#!/bin/sh
# setup.sh - the step of action.yml: HUTCH_ARCHIVE (path or URL), HUTCH_SHA256, HUTCH_PREFIX. It writes to $GITHUB_PATH and $GITHUB_OUTPUT.
set -eu
die() {
    echo "::error::hutch: $*"
    exit 1
}
prefix=${HUTCH_PREFIX:-$HOME/.local}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case ${HUTCH_ARCHIVE:?} in
https://*)
    [ -n "${HUTCH_SHA256:-}" ] || die "archive is a URL: give its digest as sha256"
    curl -fsSL --retry 3 --proto =https -o "$work/archive" "$HUTCH_ARCHIVE" || die "cannot fetch $HUTCH_ARCHIVE"
    ;;
*://*) die "$HUTCH_ARCHIVE: a path or an https URL is needed" ;;
*) cp "$HUTCH_ARCHIVE" "$work/archive" || die "there is no archive $HUTCH_ARCHIVE" ;;
esac
digest=$(sha256sum "$work/archive" | cut -d ' ' -f 1)
[ "${HUTCH_SHA256:-$digest}" = "$digest" ] || die "the archive has another digest than $HUTCH_SHA256: $digest"
mkdir "$work/tree"
tar -xz -C "$work/tree" --strip-components=1 -f "$work/archive" || die "$HUTCH_ARCHIVE is not an archive of make dist"
sh "$work/tree/install.sh" --prefix "$prefix"

# Ubuntu 24.04 keeps user namespaces from programs without an AppArmor profile; on a runner, which is one job's own machine, lift that.
restriction=/proc/sys/kernel/apparmor_restrict_unprivileged_userns
if [ "$(id -u)" != 0 ] && [ "$(cat "$restriction" 2>/dev/null || echo 0)" != 0 ]; then
    sudo -n sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 || die "AppArmor keeps user namespaces from this user, and sudo is not allowed"
fi
"$prefix/bin/hutch" run --enforcement best-effort -- true || die "hutch run does not work on this runner; hutch doctor says why"
echo "$prefix/bin" >>"${GITHUB_PATH:-/dev/null}"
echo "version=$("$prefix/bin/hutch" --version)" >>"${GITHUB_OUTPUT:-/dev/null}"
