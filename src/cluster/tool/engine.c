/* engine.c - which engine a command is about. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cluster/tool/tool.h"

enum { FILE_MAX_BYTES = 1 << 20 };

const char engine_usage[] =
    "  --engine sqlite:DIR        the facts are in a file in this directory: one machine, one process\n"
    "  --engine URL[,URL...]      the facts are in etcd: http://HOST:PORT or https://HOST:PORT of its members\n"
    "  --engine-prefix TEXT       before all keys in etcd (\"" FACTS_ETCD_PREFIX
    "\"): clusters of one etcd have different ones\n"
    "  --engine-ca FILE           the authorities that etcd's certificates are trusted from, in PEM (the system's)\n"
    "  --engine-cert FILE, --engine-key FILE    our own certificate and its key, in PEM\n"
    "  --engine-user NAME, --engine-password-file FILE    for an etcd with users\n";

/* The options and where their values go. */
static const struct {
    const char *name;
    size_t offset;
    const char *example;
} options[] = {
    {"--engine", offsetof(struct engine, url), ENGINE_SQLITE "/var/lib/hutch/cluster"},
    {"--engine-prefix", offsetof(struct engine, prefix), FACTS_ETCD_PREFIX},
    {"--engine-ca", offsetof(struct engine, ca), "/etc/hutch/etcd-ca.pem"},
    {"--engine-cert", offsetof(struct engine, cert), "/etc/hutch/etcd.pem"},
    {"--engine-key", offsetof(struct engine, key), "/etc/hutch/etcd.key"},
    {"--engine-user", offsetof(struct engine, user), "hutch"},
    {"--engine-password-file", offsetof(struct engine, password_file), "/etc/hutch/etcd.password"},
};

/* The option that this argument is; -1: none. *ret: its value behind '=', or NULL. */
static int engine_option_of(const char *arg, const char **ret)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        size_t n = strlen(options[i].name);
        if (strncmp(arg, options[i].name, n) == 0 && (arg[n] == 0 || arg[n] == '=')) {
            *ret = arg[n] ? arg + n + 1 : NULL;
            return (int)i;
        }
    }
    return -1;
}

int engine_take_options(struct engine *e, int argc, char **argv, struct err *err)
{
    int left = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        int at = engine_option_of(argv[i], &value);
        if (at < 0) {
            argv[left++] = argv[i];
            continue;
        }
        if (!value && ++i == argc)
            return err_set(err, ERR_USAGE, 0, "%s lacks its value, for example %s", options[at].name,
                           options[at].example);
        const char **place = (const char **)(void *)((char *)e + options[at].offset);
        if (*place)
            return err_set(err, ERR_USAGE, 0, "%s is given twice", options[at].name);
        *place = value ? value : argv[i];
    }
    return left - 1;
}

static int engine_read_file(const char *option, const char *path, struct buf *ret, struct err *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    char piece[4096];
    ssize_t n = -1;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "%s: %.200s cannot be read", option, path);
    while (ret->n <= FILE_MAX_BYTES && (n = read(fd, piece, sizeof piece)) > 0)
        buf_add(ret, piece, (size_t)n);
    if (n < 0)
        return err_set(err, ERR_USAGE, errno, "%s: %.200s cannot be read", option, path);
    return n == 0 ? 0 : err_set(err, ERR_USAGE, 0, "%s: %.200s has more than %d bytes", option, path, FILE_MAX_BYTES);
}

static int engine_open_etcd(const struct engine *e, struct loop *l, struct facts **ret, struct err *err)
{
    _cleanup_buf_ struct buf ca = {0};
    _cleanup_buf_ struct buf password = {0};
    if ((e->ca && engine_read_file("--engine-ca", e->ca, &ca, err) < 0) ||
        (e->password_file && engine_read_file("--engine-password-file", e->password_file, &password, err) < 0))
        return -1;
    while (password.n > 0 && (password.p[password.n - 1] == '\n' || password.p[password.n - 1] == '\r'))
        password.n--;
    const struct facts_etcd spec = {.urls = e->url,
                                    .prefix = e->prefix,
                                    .authorities = e->ca ? buf_str(&ca) : NULL,
                                    .cert = e->cert,
                                    .key = e->key,
                                    .user = e->user,
                                    .password = e->password_file ? buf_str(&password) : NULL};
    int rc = facts_etcd_open(l, &spec, ret, err);
    if (password.p)
        explicit_bzero(password.p, password.cap);
    return rc;
}

int engine_open(struct engine *e, struct loop *l, struct facts **ret, struct err *err)
{
    if (!e->url)
        return err_set(err, ERR_USAGE, 0,
                       "--engine is missing, for example --engine " ENGINE_SQLITE
                       "/var/lib/hutch/cluster or --engine https://etcd1:2379,https://etcd2:2379");
    if (strncmp(e->url, "http://", 7) == 0 || strncmp(e->url, "https://", 8) == 0)
        return engine_open_etcd(e, l, ret, err);
    if (strncmp(e->url, ENGINE_SQLITE, strlen(ENGINE_SQLITE)) != 0)
        return err_set(err, ERR_USAGE, 0,
                       "--engine %.200s: not an engine; expected " ENGINE_SQLITE "DIR, or http:// or https:// and a "
                       "member of etcd",
                       e->url);
    for (size_t i = 1; i < ARRAY_LEN(options); i++)
        if (*(const char **)(void *)((char *)e + options[i].offset))
            return err_set(err, ERR_USAGE, 0, "%s is about etcd, and --engine names SQLite", options[i].name);
    const char *dir = e->url + strlen(ENGINE_SQLITE);
    e->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e->dir < 0)
        return err_set(err, ERR_USAGE, errno, "--engine: the directory %.200s cannot be opened", dir);
    return facts_sqlite_open(l, e->dir, dir, ret, err);
}

void engine_done(struct engine *e)
{
    if (e->dir >= 0)
        (void)close(e->dir);
    e->dir = -1;
}
