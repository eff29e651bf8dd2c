/* The keys of the configuration: one table drives reading, showing and the documentation. */
#include <stddef.h>

#include "config/config-int.h"

#define AT(field) offsetof(struct config, field)
#define KIB       1024ULL
#define MIB       (1024 * KIB)
#define GIB       (1024 * MIB)
#define TIB       (1024 * GIB)

const char *const config_enforcement[] = {"required", "best-effort", NULL};
const char *const config_privilege[] = {"computer", "strict", NULL};
const char *const config_drivers[] = {"auto", "pool", "tmpfs", "btrfs", "layers", NULL};
const char *const config_levels[] = {"error", "warn", "info", "debug", NULL};
const char *const config_base[] = {"auto", "slim", "off", NULL};
const char *const config_sync[] = {"off", "interval", "each", NULL};
const char *const config_on_full[] = {"block", "drop", NULL};
const char *const config_refusals[] = {"auto", "readable", "closed", NULL};
const char *const config_build_network[] = {"public", "off", NULL};

const struct config_key config_keys[] = {
    {"state", KEY_PATH, AT(state), 0, 0, "", NULL,
     "directory for what outlives a restart: database, layers, templates, keys. Default for root /var/lib/hutch, else "
     "$XDG_STATE_HOME/hutch"},
    {"run", KEY_PATH, AT(run), 0, 0, "", NULL,
     "directory for sockets and keeper's journal. Default for root /run/hutch, else $XDG_RUNTIME_DIR/hutch, "
     "or STATE/run where that is not set"},
    {"listen", KEY_ADDRESS, AT(listen), 0, 0, "127.0.0.1:7070", NULL,
     "where plain HTTP is served: ADDR:PORT. Anything but loopback should use TLS"},
    {"listen_tls", KEY_ADDRESS, AT(listen_tls), 0, 0, "", NULL,
     "where HTTPS is served: ADDR:PORT. Default, when tls is set: the address of listen with port 7443"},
    {"domain", KEY_DOMAIN, AT(domain), 0, 0, "", NULL,
     "NAME[:PORT] under which clients reach this node; sandboxes are PORT-ID.NAME. Default hutch.localhost with the "
     "port of "
     "HTTPS, else of HTTP"},
    {"tls.cert", KEY_PATH, AT(tls_cert), 0, 0, "", NULL, "certificate chain, PEM; must hold for NAME and *.NAME"},
    {"tls.key", KEY_PATH, AT(tls_key), 0, 0, "", NULL, "its private key, PEM"},
    {"tls.dev", KEY_BOOL, AT(tls_dev), 0, 0, "false", NULL,
     "make a certificate authority of this machine's own in STATE/tls, for development"},
    {"user", KEY_NAME, AT(user), 0, 0, "hutch", NULL,
     "user of the process that speaks HTTP, when root starts the node. Without that user a free system uid is taken"},
    {"files", KEY_WORD, AT(files), 0, 0, "auto", config_drivers,
     "where the files that a sandbox writes lie while it lives (docs/store.md): pool, a btrfs in a file of the node's "
     "own; "
     "tmpfs, in memory; the others, on the disk of the state directory; auto takes that disk if it has snapshots or "
     "reflinks, "
     "else the pool if root starts the node, else memory. Without this key, a store that is older than this default "
     "keeps memory. sandboxes.driver is an older name of this key"},
    {"pool.size", KEY_SIZE, AT(pool_size), 0, 64 * TIB, "0", NULL,
     "how large the pool may become, 1GiB at least; the disk gives it space when it is written. 0: half of what is "
     "free when the "
     "pool is made. A larger value than the pool has lets it grow at the next start; `hutch store shrink` makes it "
     "smaller"},
    {"sandboxes.cpu", KEY_CPUS, AT(default_cpu_milli), 10, 1000000, "2", NULL, "CPUs of one sandbox"},
    {"sandboxes.memory", KEY_SIZE, AT(default_memory), 16 * MIB, 16 * TIB, "2GiB", NULL,
     "memory of one sandbox; with the driver tmpfs, files written inside count too"},
    {"sandboxes.disk", KEY_SIZE, AT(default_disk), MIB, 64 * TIB, "1GiB", NULL,
     "bytes one sandbox may write. Without it 10GiB where sandboxes write to a disk (pool, btrfs, layers)"},
    {"sandboxes.inodes", KEY_U64, AT(default_inodes), 1000, 1000000000, "200000", NULL, "files one sandbox may make"},
    {"sandboxes.pids", KEY_U32, AT(default_pids), 8, 1000000, "512", NULL, "processes and threads of one sandbox"},
    {"sandboxes.open_files", KEY_U32, AT(default_open_files), 64, 1048576, "4096", NULL,
     "open files of one process inside"},
    {"sandboxes.timeout", KEY_SECONDS, AT(default_timeout_s), 1, 31536000, "300s", NULL,
     "life of a sandbox that is created without a timeout"},
    {"sandboxes.max_timeout", KEY_SECONDS, AT(max_timeout_s), 1, CONFIG_UNTIL_KILLED_S, "35040h", NULL,
     "longest life that may be asked for; only the default admits a sandbox that lives until it is killed"},
    {"sandboxes.max", KEY_U32, AT(max_sandboxes), 1, 4096, "1000", NULL, "sandboxes of this node at the same time"},
    {"sandboxes.enforcement", KEY_WORD, AT(best_effort), 0, 0, "required", config_enforcement,
     "required: a sandbox whose wall this host cannot build is refused; best-effort: it is built without that part, "
     "and "
     "every answer says so"},
    {"sandboxes.privilege", KEY_WORD, AT(strict), 0, 0, "computer", config_privilege,
     "computer: root and sudo work inside; strict: no root inside"},
    {"sandboxes.network", KEY_NETWORK, AT(network), 0, 0, "", NULL,
     "network of sandboxes that are created without one: public, off, or the path of a document (docs/network.md). "
     "Default public for E2B's API, as at E2B, and off for the native API"},
    {"sandboxes.refusals", KEY_WORD, AT(refusals), 0, 0, "auto", config_refusals,
     "how a refused connection looks to programs, unless the network document says it: readable answers with the "
     "reason, also inside TLS; closed fails the connection; auto is closed for E2B's API, as at E2B, and readable for "
     "the native API (docs/network.md)"},
    {"egress.enabled", KEY_BOOL, AT(egress), 0, 0, "true", NULL, "false: no sandbox reaches any network"},
    {"egress.user", KEY_NAME, AT(egress_user), 0, 0, "hutch-egress", NULL,
     "user of the process that holds the only way out, when root starts the node. Without that user a free system uid "
     "is taken"},
    {"egress.trust", KEY_PATH, AT(trust), 0, 0, "", NULL,
     "PEM bundle of the authorities that upstream servers are checked against; sandboxes trust them too. Default "
     "/etc/ssl/certs/ca-certificates.crt; of those, sandboxes trust the ones in /usr/local/share/ca-certificates"},
    {"egress.resolvers", KEY_SERVERS, AT(resolvers), 0, 0, "", NULL,
     "name servers for upstream names: ADDR:PORT, several with commas. Default: those of /etc/resolv.conf"},
    {"egress.private", KEY_CIDRS, AT(private), 0, 0, "", NULL,
     "private networks that rules of sandboxes may open with `private`: ADDR/BITS, several with commas. Default none"},
    {"egress.infra", KEY_CIDRS, AT(infra), 0, 0, "", NULL,
     "networks that no document can open and no image is fetched from, besides this machine's own addresses: "
     "ADDR/BITS, "
     "several with commas"},
    {"egress.audit_on_full", KEY_WORD, AT(audit_drop), 0, 0, "block", config_on_full,
     "when the audit log cannot be written: block refuses requests, drop counts the missing lines"},
    {"egress.audit_sync", KEY_WORD, AT(audit_sync), 0, 0, "off", config_sync,
     "when the audit log is forced to the disk: off leaves it to the kernel, interval does it every second, each after "
     "every batch of lines, during which no sandbox is served"},
    {"egress.test_loopback", KEY_CIDRS, AT(loopback), 0, 0, "", NULL,
     "for tests only: networks that count as public, so that a server on this machine can play the internet. Leave it "
     "empty"},
    {"approvals.webhook", KEY_URL, AT(webhook), 0, 0, "", NULL,
     "http:// or https:// URL that gets what sandboxes ask to reach, and may decide (docs/network.md). Default "
     "none"},
    {"approvals.secret_file", KEY_PATH, AT(webhook_secret), 0, 0, "", NULL,
     "file with one line of 16 bytes or more that the webhook knows, too: signs what is sent to it"},
    {"approvals.timeout", KEY_SECONDS, AT(webhook_timeout_s), 1, 60, "10s", NULL,
     "how long the webhook may take for an answer; three attempts are made"},
    {"oauth.issuer", KEY_URL, AT(oauth_issuer), 0, 0, "", NULL,
     "URL of an OAuth issuer whose tokens /mcp takes beside keys of this node, as in their claim iss (docs/mcp.md). "
     "Default none"},
    {"oauth.jwks", KEY_URL, AT(oauth_jwks), 0, 0, "", NULL, "http:// or https:// URL of the issuer's public keys"},
    {"oauth.audience", KEY_URL, AT(oauth_audience), 0, 0, "", NULL,
     "what tokens must name in their claim aud: the URL under which clients reach /mcp of this node"},
    {"oauth.tenant", KEY_NAME, AT(oauth_tenant), 0, 0, "", NULL,
     "tenant of tokens without the claim hutch_tenant. Default none: such tokens are refused"},
    {"templates.dir", KEY_PATH, AT(templates), 0, 0, "", NULL, "directory of templates. Default STATE/templates"},
    {"templates.base", KEY_WORD, AT(build_base), 0, 0, "auto", config_base,
     "which of its own templates the node builds with mmdebstrap if they are missing: auto, \"slim\" and \"base\"; "
     "slim, "
     "only that one; off, none"},
    {"templates.per_tenant", KEY_U32, AT(templates_per_tenant), 1, 100000, "1000", NULL,
     "templates of one tenant, built and imported, each with all its tags; snapshots are counted by kept.snapshots"},
    {"mirrors.apt", KEY_PATH, AT(mirror_apt), 0, 0, "", NULL,
     "directory with package sources (*.list, *.sources) and settings (*.conf) of apt that \"slim\" and \"base\" are "
     "built from and have inside. Default: the sources of this host, without its settings"},
    {"mirrors.pip", KEY_PATH, AT(mirror_pip), 0, 0, "", NULL,
     "pip.conf that \"slim\" and \"base\" have inside, with a mirror of your own. One with a password is refused. "
     "Default none"},
    {"mirrors.npm", KEY_PATH, AT(mirror_npm), 0, 0, "", NULL,
     "npmrc that \"base\" has inside; its registry is also where Node.js is fetched from. One with a password is "
     "refused. "
     "Default none"},
    {"builds.upload_max", KEY_SIZE, AT(build_upload_max), MIB, 64 * TIB, "4GiB", NULL,
     "bytes of one upload: the files of a COPY step, an image, an exported template"},
    {"builds.uploads_bytes", KEY_SIZE, AT(uploads_bytes), 0, 64 * TIB, "0", NULL,
     "bytes of all uploads of a tenant for COPY steps, which are kept for a week; as many may arrive or wait to be "
     "processed at a time. 0: eight times builds.upload_max"},
    {"builds.disk", KEY_SIZE, AT(build_disk), MIB, 64 * TIB, "8GiB", NULL,
     "bytes that the steps of a build may write on top of what they stand on. Without it sandboxes.disk where "
     "sandboxes write to memory"},
    {"builds.max", KEY_U32, AT(build_max), 1, 64, "2", NULL, "template builds at the same time; further ones wait"},
    {"builds.network", KEY_WORD, AT(build_offline), 0, 0, "public", config_build_network,
     "what the commands of a template build reach: public, or off"},
    {"images.pull", KEY_BOOL, AT(image_pull), 0, 0, "false", NULL,
     "true: an image that was not imported is fetched from its registry when a build, or a tenant's import, names it"},
    {"images.registries", KEY_HOSTS, AT(image_registries), 0, 0, "", NULL,
     "registries that may be on this machine or in a network of egress.infra, and for tenants in a private network or "
     "without TLS: HOST or HOST:PORT as references name them, several with commas. Default none"},
    {"images.ecr_endpoint", KEY_URL, AT(ecr_endpoint), 0, 0, "", NULL,
     "http:// or https:// URL that is asked for a token when a build has credentials of AWS, for a private endpoint. "
     "Default "
     "api.ecr.REGION.amazonaws.com"},
    {"kept.snapshots", KEY_U32, AT(state_snapshots), 0, 10000, "1000", NULL,
     "snapshots and paused sandboxes, together, of a tenant whose quota names none; 0: 10000"},
    {"kept.bytes", KEY_SIZE, AT(state_bytes), 0, 64 * TIB, "0", NULL,
     "bytes of snapshots, templates, paused sandboxes, histories and volumes of a tenant whose quota names none; 0: no "
     "limit"},
    {"kept.entries", KEY_U64, AT(state_entries), 0, 1000000000000, "0", NULL,
     "files, directories and links in them, of a tenant whose quota names none; 0: no limit"},
    {"volumes.per_tenant", KEY_U32, AT(volumes_per_tenant), 0, 10000, "100", NULL, "volumes of one tenant"},
    {"volumes.quota", KEY_SIZE, AT(volume_bytes), 0, 16 * TIB, "10GiB", NULL,
     "bytes of a volume that is created without a quota; 0: no quota. A host that cannot enforce the built-in default "
     "makes volumes without; a value that is set here is enforced or refused"},
    {"volumes.host_dirs", KEY_DIRS, AT(host_dirs), 0, 0, "", NULL,
     "directories of this machine that sandboxes of every tenant may mount: NAME=PATH or NAME=PATH:ro, several with "
     "commas. Default none"},
    {"http.max_connections", KEY_U32, AT(max_connections), 16, 1000000, "10000", NULL, "connections at the same time"},
    {"http.max_connections_per_peer", KEY_U32, AT(max_connections_per_peer), 0, 1000000, "0", NULL,
     "connections of one address; 0: no limit"},
    {"http.max_upload", KEY_SIZE, AT(max_upload), 0, 64 * TIB, "0", NULL,
     "bytes of one uploaded file; 0: the sandbox's disk and memory decide"},
    {"http.answer_timeout", KEY_SECONDS, AT(answer_timeout_s), 1, 86400, "15m", NULL,
     "how long a service on a sandbox's port may take until its answer begins; what follows has no limit"},
    {"log.level", KEY_WORD, AT(log_level), 0, 0, "info", config_levels, "error, warn, info or debug"},
    {0},
};
