/* main.c - the process `hutch-node egress`: reads its configuration and keys from inherited descriptors, gives up all
 * other rights, serves until a signal ends it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/audit/audit.h"
#include "egress/control.h"
#include "egress/core/egress.h"
#include "egress/mint.h"
#include "egress/secrets/seal.h"
#include "egress/secrets/secrets-int.h"

enum { DRAIN_MS = 5000, DRAIN_POLL_MS = 50, CONFIG_MAX = 1 << 18, PEM_MAX = 1 << 16, TRUST_MAX = 8 << 20 };

struct process {
    struct egress g;
    uint64_t drain_until;
    bool stopping;
};

/* --- what it was given -------------------------------------------------------------------------------------------- */

/* Filled before anything else is opened: a number that was not handed over is free, and the next open() may take it. */
static bool given[EGRESS_FD_END];

static bool egress_fd_given(int fd) { return given[fd]; }

/* Reads a descriptor to its end and closes it. 1: there was none. */
static int egress_read_fd(int fd, size_t max, struct buf *ret, const char *what, struct err *err)
{
    char bytes[16384];
    if (!egress_fd_given(fd))
        return 1;
    (void)lseek(fd, 0, SEEK_SET);
    for (;;) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ERR_SETUP, errno, "cannot read the %s", what);
        if (n == 0)
            break;
        if (ret->n + (size_t)n > max)
            return err_set(err, ERR_SETUP, 0, "the %s is longer than %zu bytes", what, max);
        buf_add(ret, bytes, (size_t)n);
    }
    explicit_bzero(bytes, sizeof bytes);
    (void)close(fd);
    return 0;
}

static int egress_read_config(struct egress_config *ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    int rc = egress_read_fd(EGRESS_FD_CONFIG, CONFIG_MAX, &text, "configuration of egress", err);
    if (rc > 0)
        return err_set(err, ERR_USAGE, 0,
                       "egress is started by `hutch serve` and `hutch run`, with a configuration on descriptor %d",
                       EGRESS_FD_CONFIG);
    return rc < 0 ? -1 : egress_config_parse(buf_str(&text), text.n, ret, err);
}

/* Each run gets its own root certificate, which is forgotten when it ends. */
static int egress_make_root(struct buf *cert, struct buf *key, struct err *err)
{
    char *c = NULL, *k = NULL;
    if (mint_root("hutch run", &c, &k, err) < 0)
        return -1;
    buf_adds(cert, c);
    buf_adds(key, k);
    explicit_bzero(k, strlen(k));
    free(c);
    free(k);
    return 0;
}

static int egress_load_root(struct egress *g, struct err *err)
{
    _cleanup_buf_ struct buf cert = {0};
    _cleanup_buf_wipe_ struct buf key = {0};
    int a = egress_read_fd(EGRESS_FD_CA_CERT, PEM_MAX, &cert, "root certificate", err);
    int b = a < 0 ? -1 : egress_read_fd(EGRESS_FD_CA_KEY, PEM_MAX, &key, "key of the root certificate", err);
    if (a < 0 || b < 0)
        return -1;
    if (!cert.n && !key.n && g->config.run && !g->config.no_interception && egress_make_root(&cert, &key, err) < 0)
        return -1;
    if (g->config.no_interception || (!cert.n && !key.n)) {
        g->config.no_interception = true;
        log_text(LOG_LEVEL_WARN, "no root certificate: HTTPS is passed through or refused, never looked into");
        return 0;
    }
    if (mint_new(cert.p, cert.n, buf_str(&key), key.n, &g->mint, err) < 0)
        return -1;
    g->ca_pem = xstrndup(cert.p, cert.n);
    return 0;
}

/* ret_key: the public half, hex; "" without a vault. */
static int egress_load_vault(struct egress *g, char ret_key[2 * SEAL_KEY + 1], struct err *err)
{
    _cleanup_buf_wipe_ struct buf key = {0};
    unsigned char public[SEAL_KEY];
    ret_key[0] = '\0';
    int rc = egress_read_fd(EGRESS_FD_VAULT_KEY, SEAL_KEY, &key, "key of the vault", err);
    if (rc > 0 && g->config.run)
        g->vault = secrets_new(NULL);
    if (rc != 0)
        return rc < 0 ? -1 : 0;
    if (key.n != SEAL_KEY)
        return err_set(err, ERR_SETUP, 0, "the key of the vault has %zu bytes, not %d", key.n, SEAL_KEY);
    if (seal_public((const unsigned char *)key.p, public, err) < 0)
        return -1;
    for (size_t i = 0; i < SEAL_KEY; i++)
        (void)snprintf(ret_key + 2 * i, 3, "%02x", public[i]);
    g->vault = secrets_new((const unsigned char *)key.p);
    return 0;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void egress_drain(void *arg)
{
    struct process *p = arg;
    if (p->g.nflows == 0 || loop_now(p->g.loop) >= p->drain_until) {
        loop_stop(p->g.loop);
        return;
    }
    (void)loop_timer(p->g.loop, DRAIN_POLL_MS, egress_drain, p);
}

/* Stops accepting; open connections get DRAIN_MS to end by themselves. A second signal ends at once. */
static void egress_on_signal(void *arg, int signo)
{
    struct process *p = arg;
    size_t at = 0;
    (void)signo;
    if (p->stopping) {
        loop_stop(p->g.loop);
        return;
    }
    p->stopping = p->g.draining = true;
    p->drain_until = loop_now(p->g.loop) + DRAIN_MS;
    for (struct esb *s; (s = map_next(&p->g.sandboxes, &at));)
        esb_watch(s);
    egress_drain(p);
}

static void egress_end(struct process *p)
{
    struct egress *g = &p->g;
    if (g->loop)
        loop_settle(g->loop);
    esb_drop_all(g);
    http_stop(g);
    control_stop(g);
    dial_teardown(g);
    if (g->audit)
        audit_close(g->audit);
    if (g->loop)
        loop_free(g->loop);
    secrets_free(g->vault);
    if (g->mint)
        mint_free(g->mint);
    buf_done(&g->trust);
    free(g->ca_pem);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* For one run: tells it the audit line, for its record. */
static void egress_tell_record(void *arg, const struct buf *line)
{
    struct buf out = {0};
    buf_addf(&out, "{\"type\":\"record\",\"record\":%s}", line->p);
    control_tell(arg, &out);
}

static int egress_start(struct process *p, struct err *err)
{
    struct egress *g = &p->g;
    char key[2 * SEAL_KEY + 1];
    enum log_level level = LOG_LEVEL_INFO;
    int audit = egress_fd_given(EGRESS_FD_AUDIT) ? EGRESS_FD_AUDIT : -1;
    if (egress_read_config(&g->config, err) < 0)
        return -1;
    if (log_level_of(g->config.log_level, &level))
        log_open("egress", level, STDERR_FILENO);
    if (loop_new(&g->loop, err) < 0 || loop_signal(g->loop, SIGTERM, egress_on_signal, p, err) < 0 ||
        loop_signal(g->loop, SIGINT, egress_on_signal, p, err) < 0)
        return -1;
    if (egress_load_root(g, err) < 0 || egress_load_vault(g, key, err) < 0 ||
        egress_read_fd(EGRESS_FD_TRUST, TRUST_MAX, &g->trust, "bundle of trusted roots", err) < 0)
        return -1;
    if (audit >= 0 && (g->config.audit_file ? audit_open_file(g->loop, audit, &g->audit, err)
                                            : audit_open(g->loop, audit, !g->config.audit_drop, &g->audit, err)) < 0)
        return -1;
    if (g->audit)
        audit_set_sync(g->audit, (enum audit_sync)g->config.audit_sync);
    if (g->audit && g->config.run)
        audit_also_tell(g->audit, egress_tell_record, g);
    else if (g->config.run)
        g->audit = audit_tell(g->loop, egress_tell_record, g);
    if (dial_setup(g, err) < 0 || http_start(g, err) < 0)
        return -1;
    /* Give up rights before the first foreign byte is read. */
    if (egress_drop(g->config.audit_file ? -1 : audit, err) < 0)
        return -1;
    return control_start(g, egress_fd_given(EGRESS_FD_KEEPER) ? EGRESS_FD_KEEPER : -1,
                         egress_fd_given(EGRESS_FD_FRONT) ? EGRESS_FD_FRONT : -1, key, err);
}

static void egress_tell_ready(void)
{
    if (!egress_fd_given(EGRESS_FD_READY))
        return;
    (void)fd_write_all(EGRESS_FD_READY, "1", 1);
    (void)close(EGRESS_FD_READY);
}

int egress_main(int argc, char **argv)
{
    struct process p = {0};
    struct err err = {0};
    (void)argv;
    log_open("egress", LOG_LEVEL_INFO, STDERR_FILENO);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int fd = EGRESS_FD_CONFIG; fd < EGRESS_FD_END; fd++)
        given[fd] = fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
    int rc = argc > 1 ? err_set(&err, ERR_USAGE, 0, "egress takes no arguments") : egress_start(&p, &err);
    if (rc == 0) {
        egress_tell_ready();
        rc = loop_run(p.g.loop, &err);
    }
    egress_end(&p);
    if (rc < 0)
        log_text(LOG_LEVEL_ERROR, "egress ends: %s", err.msg);
    return rc < 0 ? (err.code ? err.code : ERR_INTERNAL) : 0;
}
