/* The process that speaks HTTP. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "front/boxes.h"
#include "front/builds.h"
#include "front/events.h"
#include "front/front.h"
#include "front/generations.h"
#include "front/idseal.h"
#include "front/keyfile.h"
#include "front/metrics.h"
#include "front/net-doc.h"
#include "front/nets.h"
#include "front/procs.h"
#include "front/state.h"
#include "front/tenants.h"
#include "front/transactions.h"
#include "front/volumes.h"
#include "front/webhook.h"
#include "http/h2.h"
#include "http/server.h"
#include "http/tls.h"
#include "sandbox/stockc.h"
#include "store/store.h"

enum { DRAIN_MS = 4000, DRAIN_POLL_MS = 50, EGRESS_MS = 2000, CONFIG_MAX = 1 << 18 };

struct process {
    struct front front;
    struct config config;
    struct http_server *server;
    struct tls_server *tls;
    uint64_t stop_at;
    bool told_ready, stopping, no_egress;
};

/* The one process of this kind: the loop's callbacks get the front, which is its first member. */
static struct process *process_of(void *front) { return front; }

/* --- keeper ------------------------------------------------------------------------------------------------------- */

static void keeper_up(void *arg)
{
    struct process *p = process_of(arg);
    boxes_keeper_up(&p->front);
    if (p->told_ready)
        return;
    p->told_ready = true;
    (void)fd_write_all(FRONT_FD_READY, "1", 1);
    (void)close(FRONT_FD_READY);
}
static void keeper_down(void *arg) { boxes_keeper_down(arg); }
static void keeper_died(void *arg, const struct keeper_death *d) { boxes_keeper_died(arg, d); }

static const struct keeperc_ops keeper_ops = {.up = keeper_up, .down = keeper_down, .died = keeper_died};

static void stock_up(void *arg) { state_meet(arg); }

/* --- start -------------------------------------------------------------------------------------------------------- */

static int read_config(struct config *c, struct err *err)
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

/* Sandboxes that are paused as files are known by their ids alone, and nobody without the key can read those. */
static int need_key(struct front *f, const char *shown, struct err *err)
{
    size_t stored;
    if (!idseal_missing(FRONT_FD_STORE))
        return 0;
    if (store_stored_boxes(f->store, &stored, err) < 0)
        return -1;
    if (stored == 0)
        return 0;
    return err_set(
        err, ERR_SETUP, 0,
        "%s/" IDSEAL_FILE " is missing, and the ids of %zu paused sandboxes in " STORE_FILE
        " cannot be read without it; put it back from the backup, or give these sandboxes and their files up "
        "with: sqlite3 %s/" STORE_FILE " 'DELETE FROM boxes WHERE state=%d'",
        shown, stored, shown, STORE_BOX_STORED);
}

static int open_store(struct front *f, struct err *err)
{
    char shown[1200];
    uint64_t epoch;
    (void)snprintf(shown, sizeof shown, "%s/front", f->config->state);
    if (store_open(f->loop, FRONT_FD_STORE, shown, &f->store, err) < 0 || need_key(f, shown, err) < 0)
        return -1;
    if (store_put_back(f->store))
        log_text(LOG_LEVEL_WARN,
                 "%s/" STORE_FILE
                 " is not the one that was used last, but a copy that was put back: stacks and volumes that "
                 "it does not name are kept",
                 shown);
    if (store_count_up(f->store, "epoch", &epoch, err) < 0 ||
        idseal_open(FRONT_FD_STORE, 0, (uint16_t)epoch, &f->ids, err) < 0 ||
        keyfile_open(FRONT_FD_STORE, "link.key", f->link_key, sizeof f->link_key, err) < 0)
        return -1;
    if (events_load(f, err) < 0 || tenants_load(f, err) < 0)
        return -1;
    return boxes_load(f, err) < 0 || generations_load(f, err) < 0 || volumes_load(f, err) < 0 ||
                   transactions_load(f, err) < 0
               ? -1
               : 0;
}

/* What sandboxes get whose creator says nothing. */
static int read_network(struct front *f, struct err *err)
{
    static struct net_doc doc, e2b;
    _cleanup_buf_ struct buf text = {0};
    const char *what = f->config->network;
    char path[40];
    if (!what)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_NETWORK);
    if (what[0] == '/' && fd_read_file(AT_FDCWD, path, NET_DOC_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "sandboxes.network: cannot read %s", what);
    if (what[0] != '/')
        buf_adds(&text, what);
    const char *name = what[0] == '/' ? what : "sandboxes.network";
    if (net_doc_file(buf_str(&text), text.n, name, NET_NATIVE, &doc, err) < 0 ||
        net_doc_file(buf_str(&text), text.n, name, NET_E2B, &e2b, err) < 0)
        return -1;
    f->network = &doc;
    f->network_e2b = &e2b;
    return 0;
}

static int open_sandboxes(struct front *f, struct err *err)
{
    templates_open(f, FRONT_FD_TEMPLATES);
    if (fcntl(FRONT_FD_PRESETS, F_GETFD) >= 0)
        net_doc_presets(FRONT_FD_PRESETS);
    net_doc_private(f->config->private);
    net_doc_refusals(f->config->refusals);
    if (read_network(f, err) < 0)
        return -1;
    if (links_new(f->loop, FRONT_FD_RUN, &f->links, err) < 0)
        return -1;
    return 0;
}

static int open_webhook(struct front *f, struct err *err)
{
    _cleanup_buf_ struct buf secret = {0}, trust = {0};
    char path[40];
    if (!f->config->webhook)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_WEBHOOK_SECRET);
    if (f->config->webhook_secret && fd_read_file(AT_FDCWD, path, CONFIG_MAX, &secret) < 0)
        return err_set(err, ERR_SETUP, errno, "approvals.secret_file: cannot read %s", f->config->webhook_secret);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", FRONT_FD_WEBHOOK_TRUST);
    if (strncmp(f->config->webhook, "https:", 6) == 0 && fd_read_file(AT_FDCWD, path, NODE_TRUST_MAX, &trust) < 0)
        return err_set(err, ERR_SETUP, errno, "approvals.webhook: cannot read the roots");
    while (secret.n > 0 && (secret.p[secret.n - 1] == '\n' || secret.p[secret.n - 1] == '\r'))
        secret.p[--secret.n] = '\0';
    return webhook_open(f, f->config->webhook_secret ? buf_str(&secret) : NULL, &trust, err);
}

static int open_server(struct process *p, struct err *err)
{
    struct http_limits limits = http_default_limits;
    limits.connections = p->config.max_connections;
    limits.connections_per_peer = p->config.max_connections_per_peer;
    if (http_server_new(p->front.loop, &limits, front_handle, &p->front, &p->server, err) < 0)
        return -1;
    http_server_set_h2(p->server, h2_serve);
    if (http_server_listen(p->server, FRONT_FD_LISTEN, NULL, NULL, err) < 0)
        return -1;
    if (!p->config.listen_tls) /* their numbers may be anything by now */
        return 0;
    char cert[40], key[40];
    (void)snprintf(cert, sizeof cert, "/proc/self/fd/%d", FRONT_FD_TLS_CERT);
    (void)snprintf(key, sizeof key, "/proc/self/fd/%d", FRONT_FD_TLS_KEY);
    if (tls_server_new(cert, key, true, &p->tls, err) < 0)
        return -1;
    return http_server_listen(p->server, FRONT_FD_LISTEN_TLS, tls_server_accept, p->tls, err);
}

/* --- stop --------------------------------------------------------------------------------------------------------- */

static void drained(void *arg)
{
    struct process *p = process_of(arg);
    bool busy = http_server_connections(p->server) > 0 || state_dropping(&p->front);
    if (!busy || loop_now(p->front.loop) >= p->stop_at)
        loop_stop(p->front.loop);
    else
        (void)loop_timer(p->front.loop, DRAIN_POLL_MS, drained, p);
}

static void on_stop(void *arg, int signo)
{
    struct process *p = process_of(arg);
    (void)signo;
    if (p->stopping)
        return;
    p->stopping = true;
    p->stop_at = loop_now(p->front.loop) + DRAIN_MS;
    http_server_drain(p->server);
    drained(p);
}

/* Who is told that this node serves may bring a secret next, and that needs egress's key. */
static int await_egress(struct process *p, struct err *err)
{
    struct loop *l = p->front.loop;
    unsigned char key[EGRESSC_KEY];
    for (uint64_t end = loop_now(l) + EGRESS_MS; !p->no_egress && !nets_key(&p->front, key) && loop_now(l) < end;)
        if (loop_step(l, 20, err) < 0)
            return -1;
    return 0;
}

static int run(struct process *p, struct err *err)
{
    struct front *f = &p->front;
    f->config = &p->config;
    f->own_dir = FRONT_FD_STORE;
    if (loop_new(&f->loop, err) < 0 || loop_signal(f->loop, SIGTERM, on_stop, p, err) < 0)
        return -1;
    f->started_ms = loop_now(f->loop);
    if (open_sandboxes(f, err) < 0 || open_webhook(f, err) < 0 || open_store(f, err) < 0)
        return -1;
    if (keeperc_new(f->loop, FRONT_FD_RUN, &keeper_ops, f, &f->keeper, err) < 0 ||
        stockc_new(f->loop, FRONT_FD_RUN, stock_up, f, &f->stock, err) < 0)
        return -1;
    transactions_resume(f);
    if (nets_open(f, FRONT_FD_RUN, p->no_egress, err) < 0 || await_egress(p, err) < 0 || builds_open(f, err) < 0 ||
        open_server(p, err) < 0)
        return -1;
    metrics_start(f);
    log_text(LOG_LEVEL_INFO, "serving");
    return loop_run(f->loop, err);
}

static void take_down(struct process *p)
{
    struct front *f = &p->front;
    if (f->loop)
        loop_settle(f->loop);
    if (f->links)
        links_leave(f->links);
    if (p->server)
        http_server_free(p->server);
    if (f->loop)
        loop_settle(f->loop);
    tls_server_free(p->tls);
    webhook_free(f);
    metrics_free(f);
    builds_free(f);
    if (f->keeper)
        keeperc_free(f->keeper);
    stockc_free(f->stock);
    f->stock = NULL;
    if (f->links)
        links_free(f->links);
    if (f->loop) /* what those left to be done needs what goes now */
        loop_settle(f->loop);
    /* Rows that wait are written before anything they point into goes. */
    store_close(f->store);
    volumes_free(f);
    transactions_free(f);
    generations_free(f);
    boxes_free(f);
    tenants_free(f);
    events_free(f);
    templates_free(f);
    idseal_free(f->ids);
    if (f->loop)
        loop_free(f->loop);
    if (f->network)
        net_doc_done(f->network);
    if (f->network_e2b)
        net_doc_done(f->network_e2b);
    config_done(&p->config);
}

static void read_args(struct process *p, int argc, char **argv)
{
    struct front *f = &p->front;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--admin=", 8) == 0)
            (void)snprintf(f->admin_digest, sizeof f->admin_digest, "%s", argv[i] + 8);
        else if (strncmp(argv[i], "--admin-hint=", 13) == 0)
            (void)snprintf(f->admin_hint, sizeof f->admin_hint, "%s", argv[i] + 13);
        else if (strcmp(argv[i], "--no-egress") == 0)
            p->no_egress = true;
    }
}

int front_main(int argc, char **argv)
{
    static struct process p;
    struct err err = {0};
    enum log_level level = LOG_LEVEL_INFO;
    (void)signal(SIGPIPE, SIG_IGN);
    read_args(&p, argc, argv);
    for (int fd = 3; fd < FRONT_FD_END; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    log_open("front", level, STDERR_FILENO);
    int rc = read_config(&p.config, &err);
    if (rc == 0) {
        (void)log_level_of(p.config.log_level, &level);
        log_open("front", level, STDERR_FILENO);
        rc = front_drop(&err);
    }
    if (rc == 0)
        rc = run(&p, &err);
    if (rc < 0)
        log_text(LOG_LEVEL_ERROR, "%s", err.msg);
    take_down(&p);
    return rc < 0 ? (err.code ? err.code : ERR_INTERNAL) : 0;
}
