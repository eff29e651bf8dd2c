#!/bin/sh
# scope-scene.sh USER PROGRAM... - runs a program as an ordinary user with a systemd manager of its own, as on a host that
# was booted with systemd. To be started as root in a mount namespace of its own (unshare -m); the cgroups it makes are
# called hutch-scene-PID and are removed.
set -eu
user=$1
shift
uid=$(id -u "$user") home=$(getent passwd "$user" | cut -d: -f6)
top=/sys/fs/cgroup/hutch-scene-$$
manager=

finish() {
    [ -z "$manager" ] || kill "$manager" 2>/dev/null || true
    wait 2>/dev/null || true
    for _ in $(seq 100); do
        find "$top" -depth -type d -exec rmdir {} \; 2>/dev/null || true
        [ -d "$top" ] || break
        sleep 0.1
    done
}

mount --make-rprivate /
mount -t cgroup2 none /sys/fs/cgroup
mkdir "$top" "$top/manager" "$top/session"
trap finish EXIT
# Where the controllers are in v2 the scope gets them; elsewhere it is a scope without any.
for dir in /sys/fs/cgroup "$top"; do
    echo "+cpu +memory +pids" 2>/dev/null >"$dir/cgroup.subtree_control" || true
done
# The session is nobody's to divide, as after a login; what moves processes out of it is, for want of a system manager, the
# user's right to do so.
chown -R "$user" "$top/manager"
chown "$user" "$top/cgroup.procs"
mount -t tmpfs none /run
mkdir -p /run/systemd/system "/run/user/$uid"
chown "$user" "/run/user/$uid"
chmod 700 "/run/user/$uid"

as_user() {
    cgroup=$1
    shift
    echo 0 >"$top/$cgroup/cgroup.procs"
    cd "$home"
    exec setpriv --reuid "$user" --regid "$user" --clear-groups env -i PATH="$PATH" HOME="$home" \
        HUTCH_TEST_RUN="${HUTCH_TEST_RUN:-}" XDG_RUNTIME_DIR="/run/user/$uid" "$@"
}
(as_user manager /lib/systemd/systemd --user --unit=basic.target) </dev/null >/dev/null 2>&1 &
manager=$!
for _ in $(seq 1200); do
    [ ! -S "/run/user/$uid/systemd/private" ] || break
    sleep 0.1
done
code=0
(as_user session "$@") || code=$?
exit "$code"
