/* The process front, which speaks HTTP: start, stop, and the connections to its peers. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "api/api.h"
#include "api/daytona/daytona.h"
#include "api/e2b/e2b.h"
#include "api/gateway/gateway.h"
#include "api/mcp/mcp.h"
#include "api/native/native.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "builds/builds.h"
#include "db/db.h"
#include "db/keyfile.h"
#include "http/h2.h"
#include "http/server.h"
#include "http/tls.h"
#include "network/doc/documents.h"
#include "network/networks.h"
#include "network/webhook.h"
#include "node/procs.h"
#include "oauth/oauth.h"
#include "peers/layersc.h"
#include "sandboxes/events.h"
#include "sandboxes/idseal.h"
#include "sandboxes/metrics.h"
#include "sandboxes/sandboxes.h"
#include "snapshots/generations.h"
#include "snapshots/snapshots.h"
#include "snapshots/transactions.h"
#include "tenants/tenants.h"
#include "volumes/volumes.h"

enum { DRAIN_MS = 4000, DRAIN_POLL_MS = 50, EGRESS_MS = 2000, CONFIG_MAX = 1 << 18 };

/* Everything of this process. Rooms are handed what they need of it, never the whole. */
struct front {
    struct config config;
    struct loop *loop;
    struct db *db;
    struct peers peers;
    struct idseal *ids;
    struct tenants *tenants;
    struct stacks *stacks;
    struct templates *templates;
    struct events *events;
    struct sandboxes *sandboxes;
    struct networks *network;
    struct snapshots *snapshots;
    struct volumes *volumes;
    struct builds *builds;
    struct api api;
    struct net_doc default_net, default_net_e2b;
    struct http_server *server;
    struct tls_server *tls;
    char admin_digest[72]; /* SHA-256 of the operator's key */
    char admin_hint[12];
    uint64_t stop_at;
    bool told_ready, stopping, no_egress;
};

/* --- keeper ------------------------------------------------------------------------------------------------------- */

static void front_on_keeper_up(void *arg)
{
    struct front *f = arg;
    sandboxes_keeper_up(f->sandboxes);
    if (f->told_ready)
        return;
    f->told_ready = true;
    (void)fd_write_all(FRONT_FD_READY, "1", 1);
    (void)close(FRONT_FD_READY);
}
static void front_on_keeper_down(void *arg) { sandboxes_keeper_down(((struct front *)arg)->sandboxes); }
static void front_on_keeper_died(void *arg, const struct keeper_death *d)
{
    sandboxes_keeper_died(((struct front *)arg)->sandboxes, d);
}

static const struct keeperc_ops keeper_ops = {
    .up = front_on_keeper_up, .down = front_on_keeper_down, .died = front_on_keeper_died};

static void front_on_layers_up(void *arg) { state_meet(((struct front *)arg)->stacks); }

/* --- start -------------------------------------------------------------------------------------------------------- */

static int front_read_config(struct config *c, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_CONFIG);
    config_start(c);
    if (fd_read_file(AT_FDCWD, path, CONFIG_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "front is started by hutch serve, not by hand");
    if (config_text(c, buf_str(&text), text.n, "configuration", err) < 0)
        return -1;
    return config_finish(c, err);
}

/* Fails if id.key is lost while there are sandboxes stored as files: without the key their ids cannot be verified. */
static int front_need_key(struct front *f, const char *shown, struct err *err)
{
    size_t stored;
    if (!idseal_missing(FRONT_FD_DB))
        return 0;
    if (db_stored_sandboxes(f->db, &stored, err) < 0)
        return -1;
    if (stored == 0)
        return 0;
    return err_set(
        err, ERR_SETUP, 0,
        "%s/" IDSEAL_FILE " is missing, and the ids of %zu paused sandboxes in " DB_FILE
        " cannot be read without it; put it back from the backup, or give these sandboxes and their files up "
        "with: sqlite3 %s/" DB_FILE " 'DELETE FROM boxes WHERE state=%d'",
        shown, stored, shown, DB_SANDBOX_STORED);
}

static int front_open_db(struct front *f, struct err *err)
{
    char shown[1200];
    uint64_t epoch;
    (void)snprintf(shown, sizeof shown, "%s/front", f->config.state);
    if (db_open(f->loop, FRONT_FD_DB, shown, &f->db, err) < 0 || front_need_key(f, shown, err) < 0)
        return -1;
    if (db_put_back(f->db))
        log_text(LOG_LEVEL_WARN,
                 "%s/" DB_FILE
                 " is not the one that was used last, but a copy that was put back: stacks and volumes that "
                 "it does not name are kept",
                 shown);
    if (db_count_up(f->db, "epoch", &epoch, err) < 0 ||
        idseal_open(FRONT_FD_DB, 0, (uint16_t)epoch, &f->ids, err) < 0 ||
        keyfile_open(FRONT_FD_DB, "link.key", f->api.link_key, sizeof f->api.link_key, err) < 0)
        return -1;
    return 0;
}

static void front_make_rooms(struct front *f)
{
    f->tenants = tenants_new(&(struct tenants_deps){
        .loop = f->loop, .db = f->db, .admin_digest = f->admin_digest, .admin_hint = f->admin_hint});
    f->stacks =
        stacks_new(&(struct stacks_deps){.loop = f->loop, .config = &f->config, .db = f->db, .peers = &f->peers});
    f->templates = templates_new(&(struct templates_deps){.loop = f->loop,
                                                          .config = &f->config,
                                                          .db = f->db,
                                                          .stacks = f->stacks,
                                                          .tenants = f->tenants,
                                                          .dir = FRONT_FD_TEMPLATES});
    f->sandboxes = sandboxes_new(&(struct sandboxes_deps){.loop = f->loop,
                                                          .config = &f->config,
                                                          .db = f->db,
                                                          .peers = &f->peers,
                                                          .tenants = f->tenants,
                                                          .stacks = f->stacks,
                                                          .templates = f->templates,
                                                          .events = f->events,
                                                          .ids = f->ids});
    f->network = nets_new(&(struct nets_deps){.loop = f->loop,
                                              .config = &f->config,
                                              .db = f->db,
                                              .tenants = f->tenants,
                                              .sandboxes = f->sandboxes,
                                              .events = f->events});
    f->snapshots = snapshots_new(&(struct snapshots_deps){.loop = f->loop,
                                                          .db = f->db,
                                                          .peers = &f->peers,
                                                          .stacks = f->stacks,
                                                          .templates = f->templates,
                                                          .sandboxes = f->sandboxes,
                                                          .events = f->events,
                                                          .ids = f->ids});
    f->volumes = volumes_new(&(struct volumes_deps){.loop = f->loop,
                                                    .config = &f->config,
                                                    .db = f->db,
                                                    .peers = &f->peers,
                                                    .tenants = f->tenants,
                                                    .stacks = f->stacks,
                                                    .sandboxes = f->sandboxes});
}

/* Each room reads its rows; what a row names is loaded before it. */
static int front_load(struct front *f, struct err *err)
{
    if (events_open(f->db, &f->events, err) < 0)
        return -1;
    front_make_rooms(f);
    if (tenants_load(f->tenants, err) < 0 || templates_load(f->templates, err) < 0 ||
        sandboxes_load(f->sandboxes, err) < 0 || nets_load(f->network, err) < 0)
        return -1;
    return snapshots_load(f->snapshots, err) < 0 || volumes_load(f->volumes, err) < 0 ? -1 : 0;
}

/* Reads sandboxes.network, the network of sandboxes that are created without one. */
static int front_read_network(struct front *f, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    const char *what = f->config.network;
    char path[40];
    if (!what)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_NETWORK);
    if (what[0] == '/' && fd_read_file(AT_FDCWD, path, NET_DOC_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "sandboxes.network: cannot read %s", what);
    if (what[0] != '/')
        buf_adds(&text, what);
    const char *name = what[0] == '/' ? what : "sandboxes.network";
    if (net_doc_file(buf_str(&text), text.n, name, NET_NATIVE, &f->default_net, err) < 0 ||
        net_doc_file(buf_str(&text), text.n, name, NET_E2B, &f->default_net_e2b, err) < 0)
        return -1;
    f->api.default_net = &f->default_net;
    f->api.default_net_e2b = &f->default_net_e2b;
    return 0;
}

static int front_open_network_docs(struct front *f, struct err *err)
{
    if (fcntl(FRONT_FD_PRESETS, F_GETFD) >= 0)
        net_doc_presets(FRONT_FD_PRESETS);
    net_doc_private(f->config.private);
    net_doc_refusals(f->config.refusals);
    if (front_read_network(f, err) < 0)
        return -1;
    if (links_new(f->loop, FRONT_FD_RUN, &f->peers.links, err) < 0)
        return -1;
    return 0;
}

static int front_open_webhook(struct front *f, struct err *err)
{
    _cleanup_buf_ struct buf secret = {0}, trust = {0};
    char path[40];
    if (!f->config.webhook)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_WEBHOOK_SECRET);
    if (f->config.webhook_secret && fd_read_file(AT_FDCWD, path, CONFIG_MAX, &secret) < 0)
        return err_set(err, ERR_SETUP, errno, "approvals.secret_file: cannot read %s", f->config.webhook_secret);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_WEBHOOK_TRUST);
    if (strncmp(f->config.webhook, "https:", 6) == 0 && fd_read_file(AT_FDCWD, path, NODE_TRUST_MAX, &trust) < 0)
        return err_set(err, ERR_SETUP, errno, "approvals.webhook: cannot read the roots");
    while (secret.n > 0 && (secret.p[secret.n - 1] == '\n' || secret.p[secret.n - 1] == '\r'))
        secret.p[--secret.n] = '\0';
    return webhook_open(f->network, f->config.webhook_secret ? buf_str(&secret) : NULL, &trust, err);
}

static int front_open_oauth(struct front *f, struct err *err)
{
    const struct oauth_deps d = {.loop = f->loop, .config = &f->config, .tenants = f->tenants};
    _cleanup_buf_ struct buf trust = {0};
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_WEBHOOK_TRUST);
    if (f->config.oauth_jwks && strncmp(f->config.oauth_jwks, "https:", 6) == 0 &&
        fd_read_file(AT_FDCWD, path, NODE_TRUST_MAX, &trust) < 0)
        return err_set(err, ERR_SETUP, errno, "oauth.jwks: cannot read the roots");
    return oauth_open(&d, &trust, &f->api.oauth, err);
}

static int front_open_server(struct front *f, struct err *err)
{
    struct http_limits limits = http_default_limits;
    limits.connections = f->config.max_connections;
    limits.connections_per_peer = f->config.max_connections_per_peer;
    if (http_server_new(f->loop, &limits, api_handle, &f->api, &f->server, err) < 0)
        return -1;
    http_server_set_h2(f->server, h2_serve);
    if (http_server_listen(f->server, FRONT_FD_LISTEN, NULL, NULL, err) < 0)
        return -1;
    if (!f->config.listen_tls) /* without TLS these descriptor numbers may be reused */
        return 0;
    char cert[40], key[40];
    (void)snprintf(cert, sizeof cert, "/proc/self/fd/%d", FRONT_FD_TLS_CERT);
    (void)snprintf(key, sizeof key, "/proc/self/fd/%d", FRONT_FD_TLS_KEY);
    if (tls_server_new(cert, key, true, &f->tls, err) < 0)
        return -1;
    return http_server_listen(f->server, FRONT_FD_LISTEN_TLS, tls_server_accept, f->tls, err);
}

/* --- stop --------------------------------------------------------------------------------------------------------- */

static void front_stop_when_drained(void *arg)
{
    struct front *f = arg;
    bool busy = http_server_connections(f->server) > 0 || state_dropping(f->stacks);
    if (!busy || loop_now(f->loop) >= f->stop_at)
        loop_stop(f->loop);
    else
        (void)loop_timer(f->loop, DRAIN_POLL_MS, front_stop_when_drained, f);
}

static void front_on_stop(void *arg, int signo)
{
    struct front *f = arg;
    (void)signo;
    if (f->stopping)
        return;
    f->stopping = true;
    if (!f->server) /* still waiting for egress: front_run() sees `stopping` */
        return;
    f->stop_at = loop_now(f->loop) + DRAIN_MS;
    http_server_drain(f->server);
    front_stop_when_drained(f);
}

/* Waits for egress's key: a client may set a secret as soon as the node is ready, and that needs the key. */
static int front_await_egress(struct front *f, struct err *err)
{
    struct loop *l = f->loop;
    unsigned char key[EGRESSC_KEY];
    if (f->no_egress)
        return 0;
    for (uint64_t end = loop_now(l) + EGRESS_MS; !f->stopping && !nets_key(f->network, key) && loop_now(l) < end;)
        if (loop_step(l, 20, err) < 0)
            return -1;
    return 0;
}

static int front_open_builds(struct front *f, struct err *err)
{
    return builds_open(&(struct builds_deps){.loop = f->loop,
                                             .config = &f->config,
                                             .db = f->db,
                                             .peers = &f->peers,
                                             .tenants = f->tenants,
                                             .stacks = f->stacks,
                                             .templates = f->templates,
                                             .sandboxes = f->sandboxes,
                                             .network = nets_on(f->network),
                                             .own_dir = FRONT_FD_DB,
                                             .id_key = f->api.link_key},
                       &f->builds, err);
}

static void front_fill_api(struct front *f)
{
    f->api.loop = f->loop;
    f->api.config = &f->config;
    f->api.domain = &api_domain_local;
    f->api.db = f->db;
    f->api.peers = &f->peers;
    f->api.tenants = f->tenants;
    f->api.stacks = f->stacks;
    f->api.templates = f->templates;
    f->api.events = f->events;
    f->api.sandboxes = f->sandboxes;
    f->api.network = f->network;
    f->api.snapshots = f->snapshots;
    f->api.builds = f->builds;
    f->api.volumes = f->volumes;
    f->api.own_dir = FRONT_FD_DB;
}

/* All that this node speaks; the first route that fits a request wins. */
static const struct api_dialect *const dialects[] = {
    &e2b_dialect, &native_dialect, &mcp_dialect, &daytona_absent_dialect, &daytona_dialect, &gateway_dialect};

static int front_run(struct front *f, struct err *err)
{
    if (loop_new(&f->loop, err) < 0 || loop_signal(f->loop, SIGTERM, front_on_stop, f, err) < 0)
        return -1;
    f->api.started_ms = loop_now(f->loop);
    if (front_open_network_docs(f, err) < 0 || front_open_db(f, err) < 0 || front_load(f, err) < 0 ||
        front_open_webhook(f, err) < 0 || front_open_oauth(f, err) < 0)
        return -1;
    if (keeperc_new(f->loop, FRONT_FD_RUN, &keeper_ops, f, &f->peers.keeper, err) < 0 ||
        layersc_new(f->loop, FRONT_FD_RUN, front_on_layers_up, f, &f->peers.layers, err) < 0)
        return -1;
    transactions_resume(f->snapshots);
    if (nets_open(f->network, FRONT_FD_RUN, f->no_egress, err) < 0 || front_await_egress(f, err) < 0)
        return -1;
    if (f->stopping)
        return 0;
    if (front_open_builds(f, err) < 0)
        return -1;
    front_fill_api(f);
    api_open(&f->api, dialects, ARRAY_LEN(dialects));
    if (front_open_server(f, err) < 0)
        return -1;
    metrics_start(f->sandboxes);
    log_text(LOG_LEVEL_INFO, "serving");
    return loop_run(f->loop, err);
}

static void front_settle(struct front *f)
{
    if (f->loop)
        loop_settle(f->loop);
}

/* The clients go before the rooms that ask them; rooms go after those that stand on them. */
static void front_take_down(struct front *f)
{
    front_settle(f);
    if (f->peers.links)
        links_leave(f->peers.links);
    if (f->server)
        http_server_free(f->server);
    oauth_free(f->api.oauth);
    f->api.oauth = NULL;
    front_settle(f);
    tls_server_free(f->tls);
    if (f->network)
        webhook_free(f->network);
    if (f->sandboxes)
        metrics_free(f->sandboxes);
    builds_free(f->builds);
    if (f->peers.keeper)
        keeperc_free(f->peers.keeper);
    f->peers.keeper = NULL;
    layersc_free(f->peers.layers);
    f->peers.layers = NULL;
    if (f->peers.links)
        links_free(f->peers.links);
    f->peers.links = NULL;
    front_settle(f); /* run deferred calls while the objects that they use still exist */
    /* Pending rows are written before the objects that they borrow from are freed. */
    db_close(f->db);
    volumes_free(f->volumes);
    snapshots_free(f->snapshots);
    nets_free(f->network);
    sandboxes_free(f->sandboxes);
    templates_free(f->templates);
    stacks_free(f->stacks);
    tenants_free(f->tenants);
    events_free(f->events);
    idseal_free(f->ids);
    api_close(&f->api);
    if (f->loop)
        loop_free(f->loop);
    net_doc_done(&f->default_net);
    net_doc_done(&f->default_net_e2b);
    config_done(&f->config);
}

static void front_read_args(struct front *f, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--admin=", 8) == 0)
            (void)snprintf(f->admin_digest, sizeof f->admin_digest, "%s", argv[i] + 8);
        else if (strncmp(argv[i], "--admin-hint=", 13) == 0)
            (void)snprintf(f->admin_hint, sizeof f->admin_hint, "%s", argv[i] + 13);
        else if (strcmp(argv[i], "--no-egress") == 0)
            f->no_egress = true;
        else if (strcmp(argv[i], "--no-freezer") == 0)
            f->api.no_freezer = true;
        else if (strncmp(argv[i], "--files-driver=", 15) == 0)
            f->api.files_driver = argv[i] + 15;
        else if (strncmp(argv[i], "--files-why=", 12) == 0)
            f->api.files_why = argv[i] + 12;
    }
}

int front_main(int argc, char **argv)
{
    static struct front f;
    struct err err = {0};
    enum log_level level = LOG_LEVEL_INFO;
    (void)signal(SIGPIPE, SIG_IGN);
    front_read_args(&f, argc, argv);
    for (int fd = 3; fd < FRONT_FD_END; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    log_open("front", level, STDERR_FILENO);
    int rc = front_read_config(&f.config, &err);
    if (rc == 0) {
        config_settle_disk(&f.config, f.api.files_driver);
        (void)log_level_of(f.config.log_level, &level);
        log_open("front", level, STDERR_FILENO);
        rc = front_drop(&err);
    }
    if (rc == 0)
        rc = front_run(&f, &err);
    if (rc < 0)
        log_text(LOG_LEVEL_ERROR, "%s", err.msg);
    front_take_down(&f);
    return rc < 0 ? (err.code ? err.code : ERR_INTERNAL) : 0;
}
