#!/bin/sh
# A newcomer on a fresh Debian 12 with nothing installed: the archive, the package, the wheel, the npm package, the action and the devcontainer
# feature, then README from a checkout with `make run`, as root and as an ordinary user; commands as README prints them, with their times.
#
#   fresh_root.sh [DIR]     DIR is not used; what is installed is made from build/ (`make dist` first)
#
# Prints TAP. HUTCH_TEST_CACHE=DIR keeps the unpacked Debian (250 MB) between runs. HUTCH_FRESH=packages or source runs one half only.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/lib/guest.sh
. tests/lib/guest.sh
# shellcheck source=tests/lib/fresh-root.sh
. tests/lib/fresh-root.sh

[ "${HUTCH_SOAK:-}" = 1 ] || give_up "takes twenty minutes; \`make soak\` runs it"
[ "$(id -u)" = 0 ] || give_up "needs root, for a root directory of its own"
[ -x build/dist-hutch-node ] || give_up "build/dist-hutch-node is not there; run make dist first"
guest_needs mmdebstrap unshare git
guest_start fresh
fresh_tar || give_up "mmdebstrap failed: $(tail -n 1 "$work/mm.log")"

# --- what both halves begin with -----------------------------------------------------------------------------------

cat >"$work/head" <<'HEAD'
try() { # name command...
    local name=$1 start=$SECONDS
    shift
    if "$@" >"/tmp/try.$UID" 2>&1 </dev/null; then
        echo "@ok $name ($((SECONDS - start)) s)"
    else
        echo "@not ok $name (code $?, $((SECONDS - start)) s)" && tail -n 12 "/tmp/try.$UID" | sed 's/^/# /'
    fi
}
within() { # seconds command...
    local end=$((SECONDS + $1))
    until "${@:2}"; do [ $SECONDS -lt $end ] && sleep 0.2 || return 1; done
}
export -f within
as_someone() { runuser -l someone -w PIP_CERT,NODE_EXTRA_CA_CERTS -c "$*"; }
# node_start NAME HUTCH PORT [runuser...]: a node without slim and base; $pid_NAME is its process.
node_start() {
    local name=$1 program=$2 port=$3
    shift 3
    "$@" "$program" serve --no-base --state "/tmp/$name/state" --run "/tmp/$name/run" --listen "127.0.0.1:$port" >"/tmp/$name.log" 2>&1 &
    eval "pid_$name=$!"
    within 60 "$@" env HUTCH_STATE="/tmp/$name/state" HUTCH_URL="http://127.0.0.1:$port" "$program" ls -q
}
ports() { echo $((20000 + RANDOM % 10000)); }
HEAD

# --- without a compiler --------------------------------------------------------------------------------------------

cat >"$work/packages" <<'PACKAGES'
. /head
cd /dist
archive=$(echo hutch-*-linux-x86_64.tar.gz)
tree=/tmp/${archive%.tar.gz}
one=$(ports) two=$(ports)

try "no compiler, python, node or git is here" sh -c '! command -v gcc && ! command -v python3 && ! command -v node && ! command -v git'
try "the archives are those of SHA256SUMS" sha256sum -c SHA256SUMS
try "the archive is unpacked" tar -C /tmp -xzf "$archive"
try "root installs it to /usr/local" "$tree/install.sh"
try "its users are there, and its unit names its program" sh -c 'getent passwd hutch hutch-egress && grep -x "ExecStart=/usr/local/bin/hutch serve" /usr/local/lib/systemd/system/hutch.service'
try "root: hutch run" sh -c 'cd /root && hutch run -- true'
try "an ordinary user: hutch run of root's installation" as_someone 'hutch run -- true'
try "an ordinary user installs it to ~/.local" as_someone "$tree/install.sh"
try "and a new login finds it there" as_someone '[ "$(command -v hutch)" = ~/.local/bin/hutch ] && hutch run -- true'
try "network rules of hutch run" as_someone 'mkdir -p try && cd try && echo "network: {presets: [python]}" >net.yaml && hutch run --policy net.yaml -- true'
try "hutch selftest as an ordinary user" as_someone 'hutch selftest 2>&1 | tail -n 1 | grep " 0 fail,"'

mkdir -m 777 /tmp/first /tmp/second
try "root's node starts" node_start first /usr/local/bin/hutch "$one"
try "an ordinary user's node says which package it needs" sh -c "runuser -u someone -- /home/someone/.local/bin/hutch serve --no-base 2>&1 | grep 'apt-get install uidmap'"
try "which apt installs" sh -c 'apt-get -qq update && apt-get -y install uidmap'
try "an ordinary user's node starts" node_start second /home/someone/.local/bin/hutch "$two" runuser -u someone --
first() { HUTCH_STATE=/tmp/first/state HUTCH_URL=http://127.0.0.1:$one /usr/local/bin/hutch "$@"; }
second() { runuser -u someone -- env HUTCH_STATE=/tmp/second/state HUTCH_URL="http://127.0.0.1:$two" /home/someone/.local/bin/hutch "$@"; }
a=$(first create host)
b=$(second create host)
first_keeps() { [ "$(first exec "$a" -- cat own)" = first ]; }
second_keeps() { [ "$(second exec "$b" -- cat own)" = second ]; }
try "a sandbox of root's node" first exec "$a" -- sh -c 'echo first >own'
try "a sandbox of the user's node" second exec "$b" -- sh -c 'echo second >own'
try "an upgrade names the node that is to be restarted" sh -c "'$tree/install.sh' | grep 'still runs the former version'"
try "root's sandbox is still there" first_keeps
try "a removal is refused while the node runs" sh -c "'$tree/install.sh' uninstall 2>&1 | grep 'a node runs from /usr/local'"
try "hutch stop --all" first stop --all
kill $pid_first
wait $pid_first
try "root's installation is removed" /usr/local/libexec/hutch/install.sh uninstall
try "none of its files is left" sh -c '[ -z "$(find /usr/local -name "*hutch*")" ]'
try "the user's node and its sandbox survived both" second_keeps

try "the package is installed by apt, with what it needs" sh -c 'apt-get -qq update && apt-get -y install ./hutch_*.deb'
try "README is the project's" sh -c 'head -n 1 /usr/share/doc/hutch/README.md | grep "every AI agent"'
mkdir -m 777 /tmp/third
three=$(ports)
try "a second node of root's, from the archive" node_start third "$tree/bin/hutch" "$three"
third() { HUTCH_STATE=/tmp/third/state HUTCH_URL=http://127.0.0.1:$three "$tree/bin/hutch" "$@"; }
c=$(third create host)
third_keeps() { [ "$(third exec "$c" -- echo kept)" = kept ]; }
try "the package is upgraded" apt-get -y --reinstall install ./hutch_*.deb
try "the package is purged" apt-get -y purge hutch
try "the users that the other node uses are left" getent passwd hutch hutch-egress
try "root's second node survived" third_keeps
try "the user's node survived" second_keeps
third stop --all
kill $pid_third
wait $pid_third
second stop --all
try "the user's installation is removed" as_someone '.local/libexec/hutch/install.sh uninstall --force && [ -z "$(find .local -name "*hutch*" ! -path "*/state/*")" ]'

try "apt installs python3-venv, nodejs and npm" apt-get -y --no-install-recommends install python3-venv nodejs npm ca-certificates
try "pip installs the wheel from the file" as_someone 'python3 -m venv v && v/bin/pip install -q --no-index /dist/hutch-*.whl && v/bin/hutch run -- true'
try "python -m hutch" as_someone 'v/bin/python -m hutch run -- true'
try "network rules of the wheel" as_someone 'cd try && ~/v/bin/hutch run --policy net.yaml -- true'
try "uvx runs it from the file" as_someone 'v/bin/pip install -q uv && v/bin/uvx --from /dist/hutch-*.whl hutch run -- true'
try "pip removes it" as_someone 'v/bin/pip uninstall -q -y hutch && ! [ -e v/bin/hutch ]'
try "npm installs the package from the file" as_someone 'mkdir n && cd n && npm install --offline --no-audit --no-fund /dist/hutch-*.tgz && npx hutch run -- true'
try "npx runs it from the file" as_someone 'mkdir m && cd m && npx --yes --offline --package=$(echo /dist/hutch-*.tgz) hutch run -- true'
try "network rules of the npm package" as_someone 'cd try && ~/n/node_modules/.bin/hutch run --policy net.yaml -- true'
try "npm removes it" as_someone 'cd n && npm uninstall --no-audit --no-fund hutch && ! [ -e node_modules/.bin/hutch ]'
try "the action's step as an ordinary user" as_someone "cd /src/packaging/github-action && HUTCH_ARCHIVE=/dist/$archive HUTCH_SHA256=$(sha256sum "$archive" | cut -d ' ' -f 1) GITHUB_PATH=~/path sh setup.sh && [ \"\$(cat ~/path)\" = ~/.local/bin ]"
try "the action refuses another digest" as_someone "cd /src/packaging/github-action && ! HUTCH_ARCHIVE=/dist/$archive HUTCH_SHA256=$(printf '%064d' 0) sh setup.sh"
cp "$archive" /src/packaging/devcontainer-feature/
try "the devcontainer feature's script as root" sh -c 'sh /src/packaging/devcontainer-feature/install.sh && /usr/local/bin/hutch run -- true'
echo "@done"
PACKAGES

# --- README from a checkout ----------------------------------------------------------------------------------------

cat >"$work/readme" <<'README'
# As whom it is run: the commands of README, as it prints them; stdout is TAP.
. /head
readme=~/hutch/README.md
printed() { # code command...: as README prints it, in the shell of this script
    local want=$1 got=0 start=$SECONDS
    shift
    if ! grep -qF -e "$*" "$readme"; then
        echo "@not ok $(id -un): README does not print: $*"
        return
    fi
    eval "$*" >/tmp/out.$UID 2>&1 </dev/null || got=$?
    if [ "$got" = "$want" ]; then
        echo "@ok $(id -un): $* ($((SECONDS - start)) s)"
    else
        echo "@not ok $(id -un): $* (code $got, $((SECONDS - start)) s)" && tail -n 12 /tmp/out.$UID | sed 's/^/# /'
    fi
}
mkdir -p ~/project ~/cache && cd ~/project
printf 'all:\n\ttrue\ninstall:\n\ttrue\n' >Makefile
printf '#!/bin/sh\necho changed >>Makefile\n' >refactor.sh && chmod 755 refactor.sh
echo 'print(42)' >job.py
case $(id -u) in
0) printed 0 hutch run --memory 512M --cpus 1.5 --pids 100 --timeout 30s -- make -j2 ;;
*) ;; # an ordinary user without delegated cgroups is told that cpus cannot be held
esac
printed 2 "hutch run --explain -- sh -c 'echo x >/etc/x'"
printed 0 hutch run --learn policy.yaml -- make install
printed 0 "hutch run --allow-host pypi.org -- curl -s -o /dev/null -w '%{http_code}\n' https://example.org/x"
try "$(id -un): it was refused with 403" grep -x 403 /tmp/out.$UID
printed 0 hutch run --tx -- ./refactor.sh
printed 0 hutch run --json record.json -- python3 job.py
printed 0 'hutch doctor && hutch selftest'
if grep -qF 'sudo hutch serve' "$readme"; then
    # As README says: root with sudo, an ordinary user without. Its port is taken from this machine, which others use.
    export HUTCH_URL=http://127.0.0.1:$(ports)
    hutch serve --listen "${HUTCH_URL#http://}" >/tmp/serve.$UID 2>&1 &
    node=$!
    try "$(id -un): the node starts" within 60 hutch ls -q
    printed 0 'id=$(hutch create host)'
    printed 0 "hutch exec \$id -- sh -c 'id -un; echo 42 >answer'"
    printed 0 'hutch cp $id:answer -'
    try "$(id -un): 42 came out" grep -x 42 /tmp/out.$UID
    try "$(id -un): slim, which the first start builds" hutch template wait slim
    slim=$(hutch create slim) && try "$(id -un): a sandbox of slim" hutch exec "$slim" -- grep bookworm /etc/os-release
    KEY=sk-test
    printed 0 'printf %s "$KEY" | hutch secret set llm --host api.llm.example --path '"'/v1/**'"' --env LLM_API_KEY'
    printed 0 'id=$(hutch create --secret llm --allow pypi.org host)'
    printed 0 "hutch exec \$id -- sh -c 'echo \$LLM_API_KEY'"
    try "$(id -un): the placeholder is not the key" sh -c "! grep -F sk-test /tmp/out.$UID"
    printed 0 'hutch exec $id -- curl -s https://paste.example/ | head -c 60'
    printed 0 'hutch audit tail -n 3'
    printed 0 'hutch network allow $id paste.example'
    printed 0 'eval "$(hutch env)"'
    hutch stop --all >/dev/null 2>&1
    kill "$node"
    wait "$node"
fi
README

cat >"$work/source" <<'SOURCE'
. /head
try "what README says a fresh machine needs" sh -c 'apt-get -qq update && apt-get install -y git make'
# A terminal, as a newcomer has one: the demo then stays until Ctrl-C, and bars move.
demo() {
    export HUTCH_DEMO_PORT=$(ports)
    rm -f /tmp/screen
    ( for _ in {1..1800}; do
        sleep 1
        grep -q 'The node is running at' /tmp/screen && break
        grep -q '^Script done' /tmp/screen && exit
    done
    printf '\003'
    sleep 5 ) | script -fqec "$1" /tmp/screen
    tr '\r' '\n' </tmp/screen | grep -v '\[#* *\]' | tail -n 40 # what is shown if this fails
    grep -q 'The node is running at' /tmp/screen
}
export -f demo ports
start=$SECONDS
try "root: make run" bash -c 'demo "cd /root/hutch && make run"'
echo "# make run took $((SECONDS - start)) s on $(nproc) processors, load $(cut -d ' ' -f 1 /proc/loadavg)"
bars() { tr '\r' '\n' <"/tmp/screen" | grep -c "^$1 \[#* *\]"; }
for name in packages build slim; do
    echo "# bar $name: $(bars $name) positions"
done
try "bars moved while packages were installed, files compiled, slim built" sh -c '[ "$0" -gt 5 ] && [ "$1" -gt 20 ] && [ "$2" -gt 5 ]' "$(bars packages)" "$(bars build)" "$(bars slim)"
try "root: make install" make -C /root/hutch install
bash /readme
chown -R someone: /home/someone/hutch
cp -a /root/hutch/build /home/someone/hutch/ && rm -rf /home/someone/hutch/build/run && chown -R someone: /home/someone/hutch/build
try "someone: make run" bash -c 'demo "runuser -l someone -w HUTCH_DEMO_PORT -c \"cd hutch && make run\""'
runuser -l someone -c 'bash /readme'
try "root: make uninstall" make -C /root/hutch uninstall
try "no program of it is left" sh -c '[ -z "$(find /usr/local -name "*hutch*")" ]'
echo "@done"
SOURCE

# --- both ----------------------------------------------------------------------------------------------------------

half() { # packages|source
    root=$work/root
    fresh_root "$root"
    cp "$work/head" "$work/readme" "$work/$1" "$root/"
    case $1 in
    packages)
        packaging/build-dist --here "$work/dist" >/dev/null
        packaging/build-deb >/dev/null
        cp build-deb/hutch_*.deb "$work/dist/"
        mkdir "$root/src"
        cp -R packaging "$root/src/"
        mv "$work/dist" "$root/dist"
        ;;
    source)
        for home in root home/someone; do
            git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --transform 's|^|hutch/|' | tar -x -C "$root/$home"
        done
        ;;
    esac
    chmod -R go=rX "$root/dist" "$root/src" 2>/dev/null || true
    fresh_enter "$root" "/$1" >>"$work/log" 2>&1 || true
    rm -rf "$root"
    halves=$((halves + 1))
}
halves=0
for part in ${HUTCH_FRESH:-packages source}; do
    half "$part"
done
guest_report "$halves"
