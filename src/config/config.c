#include "config/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "config/config-int.h"
#include "policy/net/netpol.h"
#include "policy/node.h"

enum { FILE_MAX = 1 << 18, PORT_MAX = 65535, LIST_ITEMS_MAX = 16, LIST_TEXT_MAX = 250 };

/* Where a value comes from: messages name it. */
struct place {
    const char *name;
    unsigned line; /* 0: a flag */
    struct err *err;
};

static int config_fail(const struct place *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int config_fail(const struct place *w, const char *fmt, ...)
{
    char what[800];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (w->line)
        return err_set(w->err, ERR_USAGE, 0, "%s:%u: %s", w->name, w->line, what);
    return err_set(w->err, ERR_USAGE, 0, "%s: %s", w->name, what);
}

bool config_address(const char *text, char host[64], uint16_t *port)
{
    const char *colon = strrchr(text, ':');
    const char *digits = colon ? colon + 1 : text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    int number;
    if (!num_int(digits, 1, PORT_MAX, &number))
        return false;
    if (!colon)
        (void)snprintf(host, 64, "127.0.0.1");
    else if (n == 0)
        (void)snprintf(host, 64, "0.0.0.0");
    else {
        bool v6 = n > 2 && text[0] == '[' && text[n - 1] == ']';
        if (!v6 && memchr(text, ':', n))
            return false;
        if (n - (v6 ? 2 : 0) >= 64)
            return false;
        (void)memcpy(host, text + v6, n - (v6 ? 2 : 0));
        host[n - (v6 ? 2 : 0)] = '\0';
        for (const char *p = host; *p; p++)
            if (!isxdigit((unsigned char)*p) && !strchr(".:", *p) && !(isalpha((unsigned char)*p) && !v6) && *p != '-')
                return false;
    }
    *port = (uint16_t)number;
    return true;
}

static bool is_domain(const char *text)
{
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : strlen(text), label = 0;
    int port;
    if (n == 0 || n > 200 || (colon && !num_int(colon + 1, 1, PORT_MAX, &port)))
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '.' ? label == 0 : !(isdigit(c) || islower(c) || (c == '-' && label > 0)))
            return false;
        label = c == '.' ? 0 : label + 1;
        if (label > 63)
            return false;
    }
    return label > 0;
}

static bool is_user(const char *text)
{
    if (!(islower((unsigned char)*text) || *text == '_') || strlen(text) > 32)
        return false;
    for (; *text; text++)
        if (!islower((unsigned char)*text) && !isdigit((unsigned char)*text) && *text != '_' && *text != '-')
            return false;
    return true;
}

/* "10.0.0.0/8", "fd00::/8", or one address. */
static bool is_network(const char *text)
{
    unsigned char bytes[16];
    char host[64];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    int bits;
    if (n == 0 || n >= sizeof host)
        return false;
    (void)memcpy(host, text, n);
    host[n] = '\0';
    int family = strchr(host, ':') ? AF_INET6 : AF_INET;
    return inet_pton(family, host, bytes) == 1 &&
           (!slash || num_int(slash + 1, 0, family == AF_INET6 ? 128 : 32, &bits));
}

static bool is_server(const char *text)
{
    unsigned char bytes[16];
    char host[64];
    uint16_t port;
    return strrchr(text, ':') && config_address(text, host, &port) &&
           inet_pton(strchr(host, ':') ? AF_INET6 : AF_INET, host, bytes) == 1;
}

/* "data=/srv/data", "models=/srv/models:ro". */
static bool is_host_dir(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return n > 0 && n < 32 && text[0] != '-' && text[n] == '=' && text[n + 1] == '/';
}

/* "registry.local", "10.0.0.5:5000", "[fd00::1]:5000". */
static bool is_registry(const char *text)
{
    return strlen(text) < 256 &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]") == strlen(text);
}

/* Checks every item of a comma-separated list with `good` and returns the list without spaces; NULL: invalid. */
static char *config_clean_list(const char *text, bool (*good)(const char *item))
{
    _cleanup_buf_ struct buf out = {0};
    _cleanup_free_ char *copy = xstrdup(text);
    char *save = NULL;
    size_t n = 0;
    for (char *item = strtok_r(copy, ", \t", &save); item; item = strtok_r(NULL, ", \t", &save)) {
        if (!good(item) || ++n > LIST_ITEMS_MAX)
            return NULL;
        buf_addf(&out, "%s%s", out.n ? "," : "", item);
    }
    return n && out.n <= LIST_TEXT_MAX ? xstrdup(buf_str(&out)) : NULL;
}

static void config_put_string(struct config *c, const struct config_key *k, char *value)
{
    char **at = (char **)((char *)c + k->at);
    free(*at);
    *at = value;
}

static int config_set_word(struct config *c, const struct config_key *k, const char *text, const char *safe,
                           const struct place *w)
{
    _cleanup_buf_ struct buf list = {0};
    size_t n = 0, found = SIZE_MAX;
    bool files = strcmp(k->name, "files") == 0;
    if (files && strcmp(text, "reflink") == 0)
        text = "layers"; /* which shares content where the file system can */
    if (files && strcmp(text, "image") == 0)
        return config_fail(
            w,
            "%s: \"image\" is gone: a sandbox has no image of its own any more. Write \"pool\", which takes "
            "the store along when no sandbox lives, or \"tmpfs\"; sandboxes that live go on in their images",
            k->name);
    for (; k->words[n]; n++) {
        if (strcmp(k->words[n], text) == 0)
            found = n;
        buf_addf(&list, "%s%s", n == 0 ? "" : k->words[n + 1] ? ", " : " or ", k->words[n]);
    }
    if (found == SIZE_MAX)
        return config_fail(w, "%s must be %s, not \"%s\"", k->name, buf_str(&list), safe);
    if (n == 2)
        *(bool *)((char *)c + k->at) = found == 1;
    else
        config_put_string(c, k, xstrdup(text));
    return 0;
}

static int config_set_number(struct config *c, const struct config_key *k, const char *text, const char *safe,
                             const struct place *w)
{
    uint64_t v = 0;
    bool ok = k->kind == KEY_SIZE      ? num_size(text, &v)
              : k->kind == KEY_CPUS    ? num_cpus(text, &v)
              : k->kind == KEY_SECONDS ? num_duration(text, &v)
                                       : num_u64(text, &v);
    if (k->kind == KEY_SECONDS)
        v = v / 1000 + (v % 1000 != 0);
    if (ok && v >= k->min && v <= k->max) {
        if (k->kind == KEY_SIZE || k->kind == KEY_U64)
            *(uint64_t *)((char *)c + k->at) = v;
        else
            *(uint32_t *)((char *)c + k->at) = (uint32_t)v;
        return 0;
    }
    const char *form = k->kind == KEY_SIZE      ? "a size such as 512MiB or 2GiB"
                       : k->kind == KEY_CPUS    ? "a number of CPUs such as 0.5 or 2"
                       : k->kind == KEY_SECONDS ? "a time such as 300s, 15m or 24h"
                                                : "a whole number";
    if (!ok)
        return config_fail(w, "%s must be %s, not \"%s\"", k->name, form, safe);
    _cleanup_buf_ struct buf range = {0};
    config_range(k, &range);
    return config_fail(w, "%s must be %s, not \"%s\"", k->name, buf_str(&range), safe);
}

static int config_set_text(struct config *c, const struct config_key *k, const char *text, const char *safe,
                           const struct place *w)
{
    char host[64];
    uint16_t port;
    if (k->kind == KEY_PATH && (text[0] != '/' || strlen(text) > 1000))
        return config_fail(w, "%s must be an absolute path, not \"%s\"", k->name, safe);
    if (k->kind == KEY_ADDRESS && !config_address(text, host, &port))
        return config_fail(w, "%s must be ADDR:PORT such as 127.0.0.1:7070 or [::1]:7070, not \"%s\"", k->name, safe);
    if (k->kind == KEY_DOMAIN && !is_domain(text))
        return config_fail(w, "%s must be NAME or NAME:PORT in lower case, such as hutch.localhost:7070, not \"%s\"",
                           k->name, safe);
    if (k->kind == KEY_NAME && !is_user(text))
        return config_fail(w, "%s must be the name of a user, not \"%s\"", k->name, safe);
    config_put_string(c, k, k->kind == KEY_PATH ? path_clean("/", text) : xstrdup(text));
    return 0;
}

static int config_set_list(struct config *c, const struct config_key *k, const char *text, const char *safe,
                           const struct place *w)
{
    char *list = config_clean_list(text, k->kind == KEY_SERVERS ? is_server
                                         : k->kind == KEY_DIRS  ? is_host_dir
                                         : k->kind == KEY_HOSTS ? is_registry
                                                                : is_network);
    if (!list)
        return config_fail(w, "%s must be %s, at most %d with commas, not \"%s\"", k->name,
                           k->kind == KEY_SERVERS ? "ADDR:PORT such as 10.0.0.2:53"
                           : k->kind == KEY_DIRS  ? "NAME=PATH such as models=/srv/models:ro"
                           : k->kind == KEY_HOSTS ? "HOST or HOST:PORT such as registry.local:5000"
                                                  : "ADDR/BITS such as 10.0.0.0/8",
                           LIST_ITEMS_MAX, safe);
    config_put_string(c, k, list);
    return 0;
}

static int config_set_network(struct config *c, const struct config_key *k, const char *text, const char *safe,
                              const struct place *w)
{
    bool word = strcmp(text, "public") == 0 || strcmp(text, "off") == 0;
    if (!word && (text[0] != '/' || strlen(text) > 1000))
        return config_fail(w, "%s must be public, off or the absolute path of a document, not \"%s\"", k->name, safe);
    config_put_string(c, k, word ? xstrdup(text) : path_clean("/", text));
    return 0;
}

bool config_url(const char *text, struct config_url *ret)
{
    size_t scheme = strncmp(text, "https://", 8) == 0 ? 8 : strncmp(text, "http://", 7) == 0 ? 7 : 0;
    size_t n = strcspn(text + scheme, "/?#");
    const char *rest = text + scheme + n;
    char host[NETPOL_NAME_MAX];
    struct in6_addr literal = {0};
    *ret = (struct config_url){.tls = scheme == 8, .port = scheme == 8 ? 443 : 80};
    if (!scheme || n >= sizeof ret->authority || strlen(rest) + 1 >= sizeof ret->target || strchr(text, '#'))
        return false;
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return false;
    memcpy(ret->authority, text + scheme, n);
    if (!netpol_authority(ret->authority, host, &literal, &ret->is_literal, &ret->port) || ret->port == 0)
        return false;
    memcpy(ret->literal, &literal, sizeof ret->literal);
    if (ret->is_literal) {
        size_t bracket = ret->authority[0] == '[';
        (void)snprintf(ret->host, sizeof ret->host, "%.*s", (int)strcspn(ret->authority + bracket, bracket ? "]" : ":"),
                       ret->authority + bracket);
    } else {
        (void)snprintf(ret->host, sizeof ret->host, "%s", host);
    }
    (void)snprintf(ret->target, sizeof ret->target, "%s%s", *rest == '/' ? "" : "/", rest);
    return true;
}

static int config_set_url(struct config *c, const struct config_key *k, const char *text, const char *safe,
                          const struct place *w)
{
    struct config_url url;
    if (!config_url(text, &url))
        return config_fail(w, "%s must be http://HOST[:PORT]/PATH or https://..., not \"%s\"", k->name, safe);
    config_put_string(c, k, xstrdup(text));
    return 0;
}

static const struct config_key *config_find_key(const char *section, const char *name)
{
    size_t len = strlen(section);
    bool older = len == 0 ? strcmp(name, "sandboxes.driver") == 0
                          : strcmp(section, "sandboxes") == 0 && strcmp(name, "driver") == 0;
    if (older)
        return config_find_key("", "files");
    for (const struct config_key *k = config_keys; k->name; k++)
        if (len == 0
                ? strcmp(k->name, name) == 0
                : strncmp(k->name, section, len) == 0 && k->name[len] == '.' && strcmp(k->name + len + 1, name) == 0)
            return k;
    return NULL;
}

static int config_put_value(struct config *c, const struct config_key *k, const char *text, const struct place *w)
{
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, text, 100);
    switch (k->kind) {
    case KEY_PATH:
    case KEY_ADDRESS:
    case KEY_DOMAIN:
    case KEY_NAME:
        return config_set_text(c, k, text, buf_str(&safe), w);
    case KEY_SERVERS:
    case KEY_CIDRS:
    case KEY_DIRS:
    case KEY_HOSTS:
        return config_set_list(c, k, text, buf_str(&safe), w);
    case KEY_URL:
        return config_set_url(c, k, text, buf_str(&safe), w);
    case KEY_NETWORK:
        return config_set_network(c, k, text, buf_str(&safe), w);
    case KEY_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return config_fail(w, "%s must be true or false, not \"%s\"", k->name, buf_str(&safe));
        *(bool *)((char *)c + k->at) = text[0] == 't';
        return 0;
    case KEY_WORD:
        return config_set_word(c, k, text, buf_str(&safe), w);
    default:
        return config_set_number(c, k, text, buf_str(&safe), w);
    }
}

static int config_set_key(struct config *c, const struct config_key *k, const char *text, const struct place *w)
{
    if (config_put_value(c, k, text, w) < 0)
        return -1;
    c->given[k - config_keys] = true;
    return 0;
}

bool config_given(const struct config *c, const char *key)
{
    const struct config_key *k = config_find_key("", key);
    return k && c->given[k - config_keys];
}

/* Reports an unknown key of a section ("": top level) and suggests a similar one. */
static int config_fail_unknown(const struct place *w, const char *section, const char *key)
{
    const char *known[CONFIG_KEYS_MAX];
    char heads[CONFIG_KEYS_MAX][32];
    size_t n = 0, len = strlen(section);
    for (const struct config_key *k = config_keys; k->name && n < ARRAY_LEN(known) - 1; k++) {
        const char *dot = strchr(k->name, '.');
        if (len > 0 && strncmp(k->name, section, len) == 0 && k->name[len] == '.')
            known[n++] = k->name + len + 1;
        else if (len == 0) {
            (void)snprintf(heads[n], sizeof heads[n], "%.*s", dot ? (int)(dot - k->name) : 31, k->name);
            known[n] = heads[n];
            n++;
        }
    }
    known[n] = NULL;
    _cleanup_buf_ struct buf safe = {0};
    text_add_safe(&safe, key, 100);
    const char *near = text_nearest(key, known);
    return config_fail(w, "unknown key \"%s\"%s%s%s%s%s", buf_str(&safe), len ? " in " : "", section,
                       near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "; see docs/config.md");
}

static bool config_is_section(const char *name)
{
    size_t len = strlen(name);
    for (const struct config_key *k = config_keys; k->name; k++)
        if (len && strncmp(k->name, name, len) == 0 && k->name[len] == '.')
            return true;
    return false;
}

static int config_read_map(struct config *c, const struct node *map, const char *section, struct place *w)
{
    if (node_is_empty(map))
        return 0;
    w->line = map->line;
    if (map->kind != NODE_MAP)
        return config_fail(w, "%s must be a mapping of keys to values", *section ? section : "the file");
    for (size_t i = 0; i < map->n; i += 2) {
        const char *name = map->items[i]->text;
        const struct node *value = map->items[i + 1];
        w->line = map->items[i]->line;
        if (!*section && config_is_section(name)) {
            if (config_read_map(c, value, name, w) < 0)
                return -1;
            continue;
        }
        const struct config_key *k = strchr(name, '.') ? NULL : config_find_key(section, name);
        if (!k)
            return config_fail_unknown(w, section, name);
        if (value->kind != NODE_SCALAR)
            return config_fail(w, "%s must be a plain value", k->name);
        if (!node_is_empty(value) && config_set_key(c, k, value->text, w) < 0)
            return -1;
    }
    return 0;
}

int config_text(struct config *c, const char *text, size_t n, const char *name, struct err *err)
{
    _cleanup_node_ struct node *root = NULL;
    struct place w = {.name = name, .err = err};
    if (node_read(text, n, name, 0, &root, err) < 0) {
        err->code = ERR_USAGE;
        return -1;
    }
    return config_read_map(c, root, "", &w);
}

int config_file(struct config *c, const char *path, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, path, FILE_MAX, &text) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read the configuration %s", path);
    return config_text(c, buf_str(&text), text.n, path, err);
}

int config_set(struct config *c, const char *key, const char *value, const char *where, struct err *err)
{
    struct place w = {.name = where, .err = err};
    const struct config_key *k = config_find_key("", key);
    if (!k)
        return config_fail_unknown(&w, "", key);
    return config_set_key(c, k, value, &w);
}

void config_start(struct config *c)
{
    struct err ignored;
    struct place w = {.name = "built-in", .err = &ignored};
    *c = (struct config){0};
    for (const struct config_key *k = config_keys; k->name; k++)
        if (*k->standard && config_set_key(c, k, k->standard, &w) < 0)
            abort(); /* the table contradicts itself */
    memset(c->given, 0, sizeof c->given);
}

static int config_default_dirs(struct config *c, struct err *err)
{
    if (!c->state && geteuid() == 0)
        c->state = xstrdup("/var/lib/hutch");
    if (!c->run && geteuid() == 0)
        c->run = xstrdup("/run/hutch");
    const char *home = getenv("HOME"), *state = getenv("XDG_STATE_HOME"), *run = getenv("XDG_RUNTIME_DIR");
    if (!c->state && state && *state == '/')
        c->state = path_join(state, "hutch");
    else if (!c->state && home && *home == '/')
        c->state = path_join(home, ".local/state/hutch");
    if (!c->run && run && *run == '/')
        c->run = path_join(run, "hutch");
    if (!c->state)
        return err_set(err, ERR_USAGE, 0, "no state directory: HOME is not set; give --state DIR");
    /* A session of su, of cron or in a container has no runtime directory. */
    if (!c->run)
        c->run = path_join(c->state, "run");
    return 0;
}

int config_finish(struct config *c, struct err *err)
{
    char host[64];
    uint16_t port = 0;
    if (config_default_dirs(c, err) < 0)
        return -1;
    if (!c->templates)
        c->templates = path_join(c->state, "templates");
    if (!c->tls_cert != !c->tls_key)
        return err_set(err, ERR_USAGE, 0, "tls.cert and tls.key belong together; %s is missing",
                       c->tls_cert ? "tls.key" : "tls.cert");
    if (c->tls_dev && c->tls_cert)
        return err_set(err, ERR_USAGE, 0, "tls.dev and tls.cert exclude each other");
    if (c->pool_size && c->pool_size < CONFIG_POOL_MIN)
        return err_set(err, ERR_USAGE, 0, "pool.size must be 0 or at least 1GiB");
    bool tls = c->tls_dev || c->tls_cert;
    if (c->listen_tls && !tls)
        return err_set(err, ERR_USAGE, 0, "listen_tls needs a certificate: tls.cert and tls.key, or tls.dev");
    (void)config_address(c->listen, host, &port);
    if (tls && !c->listen_tls)
        c->listen_tls = xasprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, CONFIG_TLS_PORT);
    if (tls)
        (void)config_address(c->listen_tls, host, &port);
    if (!c->domain)
        c->domain = xasprintf("hutch.localhost:%u", port);
    if (!c->oauth_issuer != !c->oauth_jwks || !c->oauth_issuer != !c->oauth_audience)
        return err_set(err, ERR_USAGE, 0, "oauth.issuer, oauth.jwks and oauth.audience belong together; %s is missing",
                       !c->oauth_issuer ? "oauth.issuer"
                       : !c->oauth_jwks ? "oauth.jwks"
                                        : "oauth.audience");
    if (c->default_timeout_s > c->max_timeout_s)
        return err_set(err, ERR_USAGE, 0, "sandboxes.timeout (%u s) is longer than sandboxes.max_timeout (%u s)",
                       c->default_timeout_s, c->max_timeout_s);
    return 0;
}

int config_load(const char *path, struct config *ret, struct err *err)
{
    config_start(ret);
    if (!path && access(CONFIG_PATH, F_OK) == 0)
        path = CONFIG_PATH;
    if ((path && config_file(ret, path, err) < 0) || config_finish(ret, err) < 0) {
        config_done(ret);
        return -1;
    }
    return 0;
}

void config_done(struct config *c)
{
    for (const struct config_key *k = config_keys; k->name; k++)
        if (k->kind < KEY_BOOL || (k->kind == KEY_WORD && k->words[2]))
            free(*(char **)((char *)c + k->at));
    *c = (struct config){0};
}

void config_settle_disk(struct config *c, const char *driver)
{
    static const char *const disks[] = {"btrfs", "layers"};
    bool disk = false;
    for (size_t i = 0; driver && i < ARRAY_LEN(disks); i++)
        disk |= strcmp(driver, disks[i]) == 0;
    if (disk && !config_given(c, "sandboxes.disk"))
        c->default_disk = UINT64_C(10) << 30;
    if (!disk && !config_given(c, "builds.disk"))
        c->build_disk = c->default_disk;
}
