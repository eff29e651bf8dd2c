/* choose.c - which node a command talks to, with which key, and which authorities it trusts.
 *
 * A flag beats a variable, a variable the current profile. A key goes where it belongs: that of a profile to its URL
 * only, that of this machine's node (admin.key) to where that node listens (STATE/listen), since another user of this machine
 * may listen on other ports. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/client/node.h"
#include "cli/client/profiles.h"

enum { LISTEN_MAX = 4096 };

/* What names the node. */
struct chosen {
    const char *url;
    json_t *profile; /* borrowed; NULL: none */
    const char *name;
    bool by_flag; /* --profile: its key and authorities come with it */
};

static const char *choose_variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int choose_node(const struct node_choice *c, json_t *profiles, struct chosen *ret, struct err *err)
{
    const char *by_variable = choose_variable("HUTCH_URL");
    *ret = (struct chosen){.url = c->url, .by_flag = c->profile != NULL};
    if (c->url && c->profile)
        return err_set(err, ERR_USAGE, 0, "--url and --profile both name a node; give one of them");
    if (c->url)
        return 0;
    ret->url = c->profile ? NULL : by_variable;
    if (ret->url)
        return 0;
    ret->name = c->profile ? c->profile : choose_variable("HUTCH_PROFILE");
    if (ret->name && profile_check_name(ret->name, err) < 0)
        return -1;
    ret->profile = profiles_find(profiles, ret->name);
    if (ret->name && !ret->profile)
        return err_set(err, ERR_USAGE, 0, "there is no profile '%s'%s; `hutch profile ls` lists them", ret->name,
                       c->profile ? "" : ", which HUTCH_PROFILE names");
    if (!ret->name)
        ret->name = profiles_current(profiles);
    if (!ret->profile && *ret->name)
        return err_set(err, ERR_USAGE, 0,
                       "the current profile '%s' does not exist; choose one with `hutch profile use`", ret->name);
    ret->url = ret->profile ? field_text(ret->profile, "url") : NODE_DEFAULT_URL;
    return 0;
}

/* --- authorities -------------------------------------------------------------------------------------------------- */

static int choose_read_ca(struct api *a, const char *path, const char *what, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, path, PROFILE_CA_MAX, &text) < 0)
        return err_set(err, ERR_USAGE, errno == EFBIG ? 0 : errno,
                       errno == EFBIG ? "%s: %s is larger than 64 KiB" : "%s: cannot read %s", what, path);
    if (!strstr(buf_str(&text), "-----BEGIN CERTIFICATE-----") || strlen(buf_str(&text)) != text.n)
        return err_set(err, ERR_USAGE, 0, "%s: %s has no certificate in PEM (-----BEGIN CERTIFICATE-----)", what, path);
    free(a->ca);
    a->ca = xstrdup(buf_str(&text));
    (void)snprintf(a->ca_from, sizeof a->ca_from, "%.200s", path);
    return 0;
}

static int choose_authorities(struct api *a, const struct node_choice *c, const struct chosen *n, const json_t *profile,
                              struct err *err)
{
    const char *variable = n->by_flag ? NULL : choose_variable("HUTCH_CA"), *ca = field_text(profile, "ca");
    if (c->ca)
        return choose_read_ca(a, c->ca, "--ca", err);
    if (variable)
        return choose_read_ca(a, variable, "HUTCH_CA", err);
    if (!*ca)
        return 0;
    a->ca = xstrdup(ca);
    (void)snprintf(a->ca_from, sizeof a->ca_from, "the profile");
    return 0;
}

/* --- client certificates ------------------------------------------------------------------------------------------ */

/* A file with a private key: only its owner may read it. */
static int choose_read_private(const char *what, const char *path, struct buf *ret, struct err *err)
{
    struct stat st;
    _cleanup_free_ char *self = NULL;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_USAGE, errno, "%s: cannot read %s", what, path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE, 0, "%s: %s is not a regular file", what, path);
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 077))
        return err_set(
            err, ERR_USAGE, 0,
            "%s: %s holds a private key that other users may read (uid %u, mode %04o); chmod 600 it, as its owner",
            what, path, st.st_uid, st.st_mode & 07777);
    self = xasprintf("/proc/self/fd/%d", fd);
    if (fd_read_file(AT_FDCWD, self, PROFILE_CA_MAX, ret) < 0)
        return err_set(err, ERR_USAGE, errno == EFBIG ? 0 : errno,
                       errno == EFBIG ? "%s: %s is larger than 64 KiB" : "%s: cannot read %s", what, path);
    return 0;
}

/* Both files; one file may hold both. */
static int choose_read_cert(struct api *a, const char *cert, const char *key, bool by_flag, struct err *err)
{
    _cleanup_buf_ struct buf chain = {0}, secret = {0};
    const char *what = by_flag ? "--cert" : "HUTCH_CERT", *what_key = by_flag ? "--key" : "HUTCH_KEY";
    if (!cert)
        return err_set(err, ERR_USAGE, 0, "%s is for the client certificate that %s names; give that, too", what_key,
                       what);
    if (fd_read_file(AT_FDCWD, cert, PROFILE_CA_MAX, &chain) < 0)
        return err_set(err, ERR_USAGE, errno == EFBIG ? 0 : errno,
                       errno == EFBIG ? "%s: %s is larger than 64 KiB" : "%s: cannot read %s", what, cert);
    if (choose_read_private(key ? what_key : what, key ? key : cert, &secret, err) < 0)
        return -1;
    a->cert = xstrdup(buf_str(&chain));
    a->cert_key = xstrdup(buf_str(&secret));
    explicit_bzero(chain.p, chain.n);
    explicit_bzero(secret.p, secret.n);
    (void)snprintf(a->cert_from, sizeof a->cert_from, key ? "%s %.200s, %s %.200s" : "%s %.200s", what, cert, what_key,
                   key ? key : "");
    return 0;
}

static int choose_cert(struct api *a, const struct node_choice *c, const struct chosen *n, const json_t *profile,
                       struct err *err)
{
    const char *cert = n->by_flag ? NULL : choose_variable("HUTCH_CERT");
    const char *key = n->by_flag ? NULL : choose_variable("HUTCH_KEY");
    if (c->cert || c->key)
        return choose_read_cert(a, c->cert, c->key, true, err);
    if (cert || key)
        return choose_read_cert(a, cert, key, false, err);
    if (!*field_text(profile, "cert"))
        return 0;
    a->cert = xstrdup(field_text(profile, "cert"));
    a->cert_key = xstrdup(field_text(profile, "cert_key"));
    (void)snprintf(a->cert_from, sizeof a->cert_from, "the client certificate of the profile");
    return 0;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

void api_set_key(struct api *a, const char *key)
{
    (void)snprintf(a->key, sizeof a->key, "%.*s", (int)strcspn(key, "\r\n "), key);
}

/* Whether the node of that state directory listens there. One that was not started since it records that: at the usual
 * address. */
static bool choose_is_own_node(struct api *a, const char *dir)
{
    _cleanup_free_ char *path = xasprintf("%s/listen", dir);
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, path, LISTEN_MAX, &text) < 0)
        buf_adds(&text, NODE_DEFAULT_URL "\n");
    for (const char *p = buf_str(&text), *end; (end = strchr(p, '\n')); p = end + 1) {
        _cleanup_free_ char *url = xstrndup(p, (size_t)(end - p));
        struct api other = {0};
        struct err ignored;
        if (api_reach(&other, url, &ignored) == 0 && api_lead_to(a, &other))
            return true;
    }
    return false;
}

/* The operator's key of this machine's node, if it can be read. */
static void choose_admin_key(struct api *a)
{
    char dir[4096];
    _cleanup_buf_ struct buf b = {0}, path = {0};
    cli_state_dir(dir, sizeof dir);
    buf_addf(&path, "%s/admin.key", dir);
    if (choose_is_own_node(a, dir) && fd_read_file(AT_FDCWD, buf_str(&path), sizeof a->key - 1, &b) == 0)
        api_set_key(a, buf_str(&b));
}

static void choose_key(struct api *a, const struct chosen *n, const json_t *profile)
{
    const char *own = n->by_flag ? NULL : choose_variable("HUTCH_API_KEY"), *e2b = choose_variable("E2B_API_KEY");
    if (own)
        api_set_key(a, own);
    else if (profile)
        api_set_key(a, field_text(profile, "key"));
    else if (e2b)
        api_set_key(a, e2b);
    else if (api_is_here(a))
        choose_admin_key(a);
}

int node_choose(struct api *a, const struct node_choice *c, struct err *err)
{
    _cleanup_json_ json_t *profiles = NULL;
    struct chosen n;
    /* With node and key given, profiles that cannot be read are no trouble; one of this URL has its authority. */
    bool need = c->profile || !((c->url || choose_variable("HUTCH_URL")) && choose_variable("HUTCH_API_KEY"));
    *a = (struct api){0};
    if (profiles_load(&profiles, err) < 0 && need)
        return -1;
    if (choose_node(c, profiles, &n, err) < 0 || api_reach(a, n.url, err) < 0)
        return -1;
    const json_t *profile = n.profile ? n.profile : profiles_find_url(profiles, a->url);
    (void)snprintf(a->profile, sizeof a->profile, "%s", n.profile ? n.name : "");
    choose_key(a, &n, profile);
    if (choose_authorities(a, c, &n, profile, err) < 0 || choose_cert(a, c, &n, profile, err) < 0)
        return -1;
    return api_choose_via(a, err);
}
