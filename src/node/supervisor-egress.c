/* Prepares what egress needs: its user, its two sockets, the installation's certificate authority and vault key, the
 * directory of the audit log, and its configuration. The keys are made once and kept in STATE/egress, which only
 * supervisor opens; egress gets copies in memory.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "egress/core/proto.h"
#include "egress/mint.h"
#include "egress/secrets/seal.h"
#include "node/procs.h"

#define CA_CERT   "ca.crt"
#define TRUSTED   "trusted.crt"
#define CA_KEY    "ca.key"
#define VAULT_KEY "vault.key"

/* Where an administrator puts authorities of their own (update-ca-certificates(8)). */
#define HOST_AUTHORITIES "/usr/local/share/ca-certificates"

enum { PEM_MAX = 1 << 16, HOST_AUTHORITIES_MAX = 64 };

/* Writes atomically, and syncs before anything is sealed to the key. */
static int egress_write_file(int dir, const char *name, mode_t mode, const void *p, size_t n, struct err *err)
{
    char tmp[40];
    (void)snprintf(tmp, sizeof tmp, "%s.tmp", name);
    _cleanup_close_ int fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 || fchmod(fd, mode) < 0 || fd_write_all(fd, p, n) < 0 || fsync(fd) < 0 ||
        renameat(dir, tmp, dir, name) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "cannot write egress/%s in the state directory", name);
        (void)unlinkat(dir, tmp, 0);
        return -1;
    }
    return 0;
}

static bool egress_file_exists(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int egress_make_authority(int dir, const char *state, struct err *err)
{
    _cleanup_free_ char *cert = NULL, *key = NULL;
    char host[65] = "", name[96];
    if (egress_file_exists(dir, CA_CERT) && egress_file_exists(dir, CA_KEY))
        return 0;
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(name, sizeof name, "Hutch sandboxes on %.60s", *host ? host : "this machine");
    if (mint_root(name, &cert, &key, err) < 0)
        return -1;
    /* The key last: the authority exists only if both files do. */
    int rc = egress_write_file(dir, CA_CERT, 0644, cert, strlen(cert), err);
    if (rc == 0)
        rc = egress_write_file(dir, CA_KEY, 0600, key, strlen(key), err);
    explicit_bzero(key, strlen(key));
    if (rc == 0)
        log_text(LOG_LEVEL_INFO, "made the authority that sandboxes trust: %s/egress/" CA_CERT, state);
    return rc;
}

static int egress_is_certificate(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".crt") == 0;
}

/* The authorities that this host has besides those of its distribution, in the order of their names. */
static void egress_add_host_authorities(struct buf *text)
{
    struct dirent **v = NULL;
    int n = scandir(HOST_AUTHORITIES, &v, egress_is_certificate, alphasort), added = 0;
    for (int i = 0; i < n; i++) {
        _cleanup_buf_ struct buf one = {0};
        _cleanup_free_ char *path = path_join(HOST_AUTHORITIES, v[i]->d_name);
        if (added < HOST_AUTHORITIES_MAX && fd_read_file(AT_FDCWD, path, PEM_MAX, &one) == 0 &&
            strstr(buf_str(&one), "-----BEGIN CERTIFICATE-----")) {
            buf_addf(text, "%s%s", text->n && text->p[text->n - 1] != '\n' ? "\n" : "", buf_str(&one));
            added++;
        } else
            log_text(LOG_LEVEL_WARN, "%s is not among what sandboxes trust: %s", path,
                     added < HOST_AUTHORITIES_MAX ? "it is no PEM of at most 64 KiB" : "there are 64 others");
        free(v[i]);
    }
    free(v);
}

/* Writes the certificates that sandboxes trust besides the roots of their template: our authority, and the operator's
 * egress.trust, else the host's own, because sandboxes themselves check the servers of streams that are passed
 * through. */
static int egress_write_trusted(int dir, const struct config *c, struct err *err)
{
    _cleanup_buf_ struct buf text = {0}, more = {0}, old = {0};
    if (fd_read_file(dir, CA_CERT, PEM_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read egress/%s", CA_CERT);
    if (c->trust && fd_read_file(AT_FDCWD, c->trust, NODE_TRUST_MAX, &more) < 0)
        return err_set(err, ERR_SETUP, errno, "egress.trust: cannot read %s", c->trust);
    if (c->trust)
        buf_add(&text, more.p, more.n);
    else
        egress_add_host_authorities(&text);
    bool there = fd_read_file(dir, TRUSTED, PEM_MAX + NODE_TRUST_MAX, &old) == 0 && old.n > 0;
    /* Only if it changed: a node must start on a full disk, so that files can be deleted. */
    if (there && old.n == text.n && memcmp(old.p, text.p, text.n) == 0)
        return 0;
    if (egress_write_file(dir, TRUSTED, 0644, text.p, text.n, err) == 0)
        return 0;
    if (!there)
        return -1;
    log_text(LOG_LEVEL_WARN, "%s; sandboxes trust what they trusted before, until the node is started with room there",
             err->msg);
    *err = (struct err){0};
    return 0;
}

static int egress_make_vault_key(int dir, struct err *err)
{
    unsigned char key[SEAL_KEY];
    if (egress_file_exists(dir, VAULT_KEY))
        return 0;
    if (seal_new_key(key, err) < 0)
        return -1;
    int rc = egress_write_file(dir, VAULT_KEY, 0600, key, sizeof key, err);
    explicit_bzero(key, sizeof key);
    return rc;
}

/* Makes a copy in memory that only egress can open. */
static int egress_load_file(int dir, const char *name, size_t max, uid_t uid, gid_t gid, int *ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(dir, name, max, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read %s%s", dir == AT_FDCWD ? "" : "egress/", name);
    *ret = node_memory_file(name, text.p, text.n, err);
    if (text.p)
        explicit_bzero(text.p, text.n);
    if (*ret >= 0 && ((geteuid() == 0 && fchown(*ret, uid, gid) < 0) || fchmod(*ret, 0400) < 0))
        return err_set(err, ERR_SETUP, errno, "cannot hand %s to egress", name);
    return *ret < 0 ? -1 : 0;
}

static int egress_load_keys(const struct config *c, struct node_egress *e, struct err *err)
{
    _cleanup_free_ char *path = path_join(c->state, "egress");
    _cleanup_close_ int dir = node_open_dir(path, geteuid(), getegid(), 0700, err);
    if (dir < 0 || egress_make_authority(dir, c->state, err) < 0 || egress_write_trusted(dir, c, err) < 0 ||
        egress_make_vault_key(dir, err) < 0 ||
        egress_load_file(dir, CA_CERT, PEM_MAX, e->uid, e->gid, &e->ca_cert, err) < 0 ||
        egress_load_file(dir, CA_KEY, PEM_MAX, e->uid, e->gid, &e->ca_key, err) < 0)
        return -1;
    struct stat st;
    if (egress_load_file(dir, VAULT_KEY, PEM_MAX, e->uid, e->gid, &e->sealed_key, err) < 0)
        return -1;
    if (fstat(e->sealed_key, &st) < 0 || st.st_size != SEAL_KEY)
        return err_set(err, ERR_SETUP, 0,
                       "%s/" VAULT_KEY " must have %d bytes; restore it, or remove it and set every secret again", path,
                       SEAL_KEY);
    return 0;
}

static int egress_load_trust(const struct config *c, struct node_egress *e, struct err *err)
{
    if (c->trust)
        return egress_load_file(AT_FDCWD, c->trust, NODE_TRUST_MAX, e->uid, e->gid, &e->trust, err) < 0
                   ? err_wrap(err, "egress.trust")
                   : 0;
    if (egress_load_file(AT_FDCWD, NODE_SYSTEM_TRUST, NODE_TRUST_MAX, e->uid, e->gid, &e->trust, err) == 0)
        return 0;
    log_text(LOG_LEVEL_WARN,
             "%s: no upstream certificate can be checked, so sandboxes reach no HTTPS; install ca-certificates, or set "
             "egress.trust",
             err->msg);
    return 0;
}

static void egress_add_list(struct json *j, const char *key, const char *list)
{
    _cleanup_free_ char *copy = xstrdup(list ? list : "");
    char *save = NULL;
    json_arr(j, key);
    for (const char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
        json_str(j, NULL, item);
    json_end_arr(j);
}

static int egress_make_config(const struct config *c, struct node_egress *e, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_str(&j, "servers", c->resolvers ? c->resolvers : "");
    egress_add_list(&j, "infra", c->infra);
    egress_add_list(&j, "loopback_ok", c->loopback);
    json_bool(&j, "run", false);
    json_bool(&j, "no_interception", false);
    json_str(&j, "audit_on_full", c->audit_drop ? "drop" : "block");
    json_str(&j, "audit_sync", c->audit_sync);
    json_str(&j, "log_level", c->log_level);
    json_end_obj(&j);
    e->config = node_memory_file("egress-config", text.p, text.n, err);
    return e->config < 0 ? -1 : 0;
}

int node_egress_listen(struct node_files *n, struct err *err)
{
    struct node_egress *e = &n->egress;
    e->keeper = node_listen(n->run, EGRESS_KEEPER_SOCKET, SOCK_SEQPACKET, (gid_t)-1, err);
    if (e->keeper < 0)
        return -1;
    e->front = node_listen(n->run, EGRESS_SOCKET, SOCK_STREAM, n->drop ? n->gid : (gid_t)-1, err);
    return e->front < 0 ? -1 : 0;
}

static int egress_open_all(const struct config *c, struct node_files *n, struct err *err)
{
    struct node_egress *e = &n->egress;
    _cleanup_free_ char *audit = path_join(c->state, "audit");
    if (node_choose_user("egress.user", c->egress_user, audit, n->drop ? n->uid : (uid_t)-1, &e->uid, &e->gid,
                         &e->made_user, err) < 0)
        return -1;
    if ((e->audit = node_open_dir(audit, e->uid, e->gid, 0700, err)) < 0 || egress_load_keys(c, e, err) < 0 ||
        egress_load_trust(c, e, err) < 0 || egress_make_config(c, e, err) < 0)
        return -1;
    return node_egress_listen(n, err);
}

int node_egress_open(const struct config *c, struct node_files *n, struct err *err)
{
    struct node_egress *e = &n->egress;
    if (!c->egress) {
        (void)snprintf(e->trouble, sizeof e->trouble, "%s", "egress.enabled is false");
        return 0;
    }
    if (egress_open_all(c, n, err) < 0)
        return -1;
    e->on = true;
    return 0;
}

void node_egress_close(struct node_files *n)
{
    struct node_egress *e = &n->egress;
    if (n->run >= 0 && e->keeper >= 0)
        (void)unlinkat(n->run, EGRESS_KEEPER_SOCKET, 0);
    if (n->run >= 0 && e->front >= 0)
        (void)unlinkat(n->run, EGRESS_SOCKET, 0);
    int *fds[] = {&e->config, &e->keeper, &e->front, &e->ca_cert, &e->ca_key, &e->sealed_key, &e->audit, &e->trust};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
}
