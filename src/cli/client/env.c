/* env.c - hutch env: the variables that point an E2B client at the node. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"

enum { CA_MAX = 64 * 1024, BUNDLE_MAX = 8 * 1024 * 1024 };

/* The authorities that programs of the caller trust now: SSL_CERT_FILE, else the system's. Returns the path; NULL and
 * nothing in *ret without any. */
static const char *env_read_bundle(struct buf *ret)
{
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    const char *own = getenv("SSL_CERT_FILE");
    if (own && *own && fd_read_file(AT_FDCWD, own, BUNDLE_MAX, ret) >= 0)
        return own;
    buf_done(ret);
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        if (fd_read_file(AT_FDCWD, places[i], BUNDLE_MAX, ret) >= 0)
            return places[i];
        buf_done(ret);
    }
    return NULL;
}

/* What NODE_EXTRA_CA_CERTS named until now stays trusted. */
static void env_add_extra(struct buf *bundle)
{
    _cleanup_buf_ struct buf extra = {0};
    const char *path = getenv("NODE_EXTRA_CA_CERTS");
    if (path && *path && fd_read_file(AT_FDCWD, path, BUNDLE_MAX, &extra) >= 0 && extra.n &&
        !strstr(buf_str(bundle), buf_str(&extra)))
        buf_addf(bundle, "\n%s", buf_str(&extra));
}

/* ~/.cache/hutch, made if it is missing. */
static char *env_cache_dir(void)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!(xdg && *xdg == '/') && !(home && *home == '/'))
        return NULL;
    _cleanup_free_ char *cache = xdg && *xdg == '/' ? xstrdup(xdg) : xasprintf("%s/.cache", home);
    char *dir = xasprintf("%s/hutch", cache);
    (void)mkdir(cache, 0700);
    if (mkdir(dir, 0700) == 0 || errno == EEXIST)
        return dir;
    free(dir);
    return NULL;
}

static int env_write_file(const char *path, const struct buf *text)
{
    _cleanup_free_ char *part = xasprintf("%s.part-%d", path, (int)getpid());
    _cleanup_close_ int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    if (fd_write_all(fd, text->p, text->n) == 0 && rename(part, path) == 0)
        return 0;
    (void)unlink(part);
    return -1;
}

/* A file with the caller's authorities and the node's; new string. NULL: it could not be made. One file per authority of a
 * node, so that a second node adds to the first. */
static char *env_make_bundle(const char *ca)
{
    _cleanup_buf_ struct buf bundle = {0};
    uint32_t hash = 2166136261U;
    const char *from = env_read_bundle(&bundle);
    if (from && strstr(buf_str(&bundle), ca)) /* an earlier call's, or the operator installed it */
        return xstrdup(from);
    env_add_extra(&bundle);
    buf_addf(&bundle, "\n%s", ca);
    for (const char *p = ca; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619U;
    _cleanup_free_ char *dir = env_cache_dir();
    char *path = dir ? xasprintf("%s/authorities-%08x.pem", dir, hash) : NULL;
    if (path && env_write_file(path, &bundle) == 0)
        return path;
    free(path);
    return NULL;
}

static void env_add(json_t *out, const char *name, const char *value)
{
    (void)json_object_set_new(out, name, json_string(value));
}

/* The node's own authority: the one that this command trusts for it (--ca, HUTCH_CA, the profile), else the file that
 * a node of this machine names. */
static void env_add_authority(json_t *out, const struct api *a, const char *file)
{
    _cleanup_buf_ struct buf text = {0};
    const char *ca = a->ca;
    if (!ca && *file && api_is_here(a) && fd_read_file(AT_FDCWD, file, CA_MAX, &text) == 0 && text.n)
        ca = buf_str(&text);
    _cleanup_free_ char *bundle = ca ? env_make_bundle(ca) : NULL;
    if (!bundle && (ca || (*file && api_is_here(a))))
        (void)fprintf(stderr,
                      "hutch: %s could not be added to the authorities of this machine; programs with these variables "
                      "trust no other\n",
                      *file ? file : a->ca_from);
    if (!bundle && *file && !api_is_here(a))
        (void)fprintf(stderr, "hutch: the node has an authority of its own; give its certificate with --ca FILE\n");
    const char *path = bundle ? bundle : ca && *file ? file : "";
    if (*path) {
        env_add(out, "NODE_EXTRA_CA_CERTS", path);
        env_add(out, "SSL_CERT_FILE", path);
    }
}

/* Two variables are all that Daytona's clients need. */
static void env_add_daytona(json_t *out, const struct api *a, bool https, const char *domain)
{
    _cleanup_free_ char *url = https ? xasprintf("https://%s/daytona", domain) : xasprintf("%s/daytona", a->url);
    env_add(out, "DAYTONA_API_KEY", a->key);
    env_add(out, "DAYTONA_API_URL", url);
}

static void env_add_e2b(json_t *out, const struct api *a, bool https, const char *domain)
{
    env_add(out, "E2B_API_KEY", a->key);
    if (https) {
        env_add(out, "E2B_DOMAIN", domain);
        return;
    }
    env_add(out, "E2B_API_URL", a->url);
    env_add(out, "E2B_SANDBOX_URL", a->url);
    env_add(out, "E2B_VOLUME_API_URL", a->url);
}

int cmd_env(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch env [e2b | daytona] [--http | --https]\n\n"
        "Prints the variables that point clients of E2B (unless you name others) or Daytona at this node:\n"
        "eval \"$(hutch env)\".\n\n"
        "  --http    by the URL that this command uses: everything but ports by name (the default)\n"
        "  --https   TLS by the node's domain: ports by name too; needs `hutch serve --tls-dev` or a\n"
        "            certificate, and *.DOMAIN must resolve to the node. The node's own authority is added to\n"
        "            those you trust, in a file in ~/.cache/hutch\n\n"
        "  --json    the same as an object\n\n"
        "For a node on another machine: hutch login, or --url and --ca.\n\n"
        "examples:\n"
        "  eval \"$(hutch env)\" && python3 agent.py\n"
        "  eval \"$(hutch env --https)\" && npx e2b sandbox list\n"
        "  eval \"$(hutch env daytona)\" && python3 agent.py\n";
    bool http = false, https = false;
    const struct node_option options[] = {{"http", 0, &http, NULL, NULL}, {"https", 0, &https, NULL, NULL}, {0}};
    const struct node_command c = {"env", usage, options, 0, 1, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, argc, argv, &call, &code))
        return code;
    if (http && https)
        return err_set(&err, ERR_USAGE, 0, "env: --http or --https, not both"), cli_fail(&err);
    bool daytona = call.nargs > 0 && strcmp(call.args[0], "daytona") == 0;
    if (call.nargs > 0 && !daytona && strcmp(call.args[0], "e2b") != 0)
        return err_set(&err, ERR_USAGE, 0, "env: '%s' is no client that is known; there are e2b and daytona",
                       call.args[0]),
               cli_fail(&err);
    _cleanup_json_ json_t *j = NULL;
    if (api_call(&call.api, "GET", "/v1/capabilities", NULL, &j, NULL, &err) < 0)
        return cli_fail(&err);
    const char *domain = field_text(j, "domain"), *ca = field_text(j, "ca");
    if (https && !json_is_true(json_object_get(j, "tls")))
        return err_set(&err, ERR_HOST, 0, "env: this node has no TLS; start it with --tls-dev or --tls-cert/--tls-key"),
               cli_fail(&err);
    _cleanup_json_ json_t *out = json_object();
    if (daytona)
        env_add_daytona(out, &call.api, https, domain);
    else
        env_add_e2b(out, &call.api, https, domain);
    if (https || call.api.tls)
        env_add_authority(out, &call.api, ca);
    if (call.json)
        node_print_json(out);
    const char *name;
    json_t *value;
    json_object_foreach(call.json ? NULL : out, name, value)
    {
        (void)printf("export %s='%s'\n", name, json_string_value(value));
    }
    return 0;
}
