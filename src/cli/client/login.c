/* login.c - hutch login, logout: takes the key of a node, checks it there, and keeps both as a profile. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/client/commands.h"
#include "cli/client/node.h"
#include "cli/client/profiles.h"

enum { KEY_LINE_MAX = 4096 };

/* --- the key ------------------------------------------------------------------------------------------------------ */

/* One line of standard input; on a terminal asked for, and not shown while it is typed. */
static void login_read_line(const char *url, char line[KEY_LINE_MAX])
{
    struct termios modes, quiet;
    bool terminal = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &modes) == 0;
    size_t n = 0;
    char c;
    if (terminal) {
        (void)fprintf(stderr, "Key for %s (it is not shown): ", url);
        quiet = modes;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        (void)signal(SIGINT, SIG_IGN); /* the shell would be left without echo */
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    while (n < KEY_LINE_MAX - 1 && read(STDIN_FILENO, &c, 1) == 1 && c != '\n')
        line[n++] = c;
    line[n] = '\0';
    if (!terminal)
        return;
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &modes);
    (void)signal(SIGINT, SIG_DFL);
    (void)fputc('\n', stderr);
}

static int login_take_key(struct api *a, const char *file, struct err *err)
{
    char line[KEY_LINE_MAX] = "";
    _cleanup_buf_ struct buf text = {0};
    if (file && strcmp(file, "-") != 0) {
        buf_reserve(&text, KEY_LINE_MAX + 1);
        if (fd_read_file(AT_FDCWD, file, KEY_LINE_MAX - 1, &text) < 0)
            return err_set(err, ERR_USAGE, errno, "login: cannot read the key from %s", file);
        (void)snprintf(line, sizeof line, "%s", buf_str(&text));
        explicit_bzero(text.p, text.n);
    } else {
        login_read_line(a->url, line);
    }
    char *end = line + strlen(line);
    while (end > line && strchr("\r\n \t", end[-1]))
        *--end = '\0';
    size_t n = strlen(line), good = 0;
    while (line[good] > ' ' && line[good] < 0x7f)
        good++;
    if (n > 0 && n == good && n < sizeof a->key)
        api_set_key(a, line);
    explicit_bzero(line, sizeof line);
    if (n == 0)
        return err_set(err, ERR_USAGE, 0,
                       "login: no key was given; type it, pipe it in, or name a file with --key-file");
    if (n != good || n >= sizeof a->key)
        return err_set(err, ERR_USAGE, 0, "login: this is no key: a key has no spaces, and less than %zu letters",
                       sizeof a->key);
    return 0;
}

/* --- the node ----------------------------------------------------------------------------------------------------- */

/* What --url, the argument, HUTCH_URL or the profile that is logged in anew says. "node.example" means https. */
static char *login_url(const struct node_call *call, const char *given)
{
    const char *variable = getenv("HUTCH_URL"), *url = given ? given : call->choice.url;
    _cleanup_json_ json_t *profiles = NULL;
    struct err ignored;
    if (!url && !call->choice.profile && variable && *variable)
        url = variable;
    if (!url && profiles_load(&profiles, &ignored) == 0)
        url = json_string_value(json_object_get(profiles_find(profiles, call->choice.profile), "url"));
    if (!url)
        return NULL;
    return strstr(url, "://") ? xstrdup(url) : xasprintf("https://%s", url);
}

static int login_reach(struct node_call *call, bool plain, struct err *err)
{
    const char *given = call->nargs ? call->args[0] : NULL;
    if (given && call->choice.url)
        return err_set(err, ERR_USAGE, 0, "login: the URL is given twice");
    _cleanup_free_ char *url = login_url(call, given);
    if (!url)
        return err_set(err, ERR_USAGE, 0, "login: which node? hutch login https://HOST[:PORT]");
    const struct node_choice c = {
        .url = url, .ca = call->choice.ca, .cert = call->choice.cert, .key = call->choice.key};
    if (node_choose(&call->api, &c, err) < 0)
        return -1;
    explicit_bzero(call->api.key, sizeof call->api.key); /* what node_choose() found is not what this user gives */
    if (!call->api.tls && !api_is_here(&call->api) && !plain)
        return err_set(
            err, ERR_USAGE, 0,
            "login: over %s the key could be read on the way; use https://, or --plain in a network that you trust",
            call->api.url);
    return 0;
}

/* Whether a node answers there, and takes the key. */
static int login_check(const struct api *a, json_t **ret, struct err *err)
{
    if (api_call(a, "GET", "/v1/capabilities", NULL, ret, NULL, err) < 0) {
        if (strncmp(err->msg, "the node refused the key", strlen("the node refused the key")) == 0)
            return err_set(err, ERR_USAGE, 0, "login: %s does not take this key; nothing was kept", a->url);
        return err_wrap(err, "login");
    }
    if (!*field_text(*ret, "version") || !json_is_object(json_object_get(*ret, "features")))
        return err_set(err, ERR_HOST, 0, "login: what answers at %s is not a node of Hutch", a->url);
    return 0;
}

/* --- the profile -------------------------------------------------------------------------------------------------- */

struct login_keep {
    const struct api *api;
    char name[PROFILE_NAME_MAX + 1];
    bool by_host; /* it is made from the host's name */
};

/* A name that is made from the host may be that of another node on it: then the port is added. */
static int login_free_name(struct login_keep *k, const json_t *all, struct err *err)
{
    char longer[PROFILE_NAME_MAX + sizeof k->api->port + 2];
    const json_t *p = json_object_get(all, k->name), *q;
    if (!k->by_host || !p || strcmp(field_text(p, "url"), k->api->url) == 0)
        return 0;
    (void)snprintf(longer, sizeof longer, "%s-%s", k->name, k->api->port);
    q = json_object_get(all, longer);
    if (strlen(longer) > PROFILE_NAME_MAX || (q && strcmp(field_text(q, "url"), k->api->url) != 0))
        return err_set(err, ERR_USAGE, 0, "login: the profile '%s' is for %.200s; give --name", k->name,
                       field_text(p, "url"));
    memcpy(k->name, longer, strlen(longer) + 1);
    return 0;
}

static int login_keep(void *arg, json_t *root, struct err *err)
{
    struct login_keep *k = arg;
    json_t *all = json_object_get(root, "profiles"),
           *p = json_pack("{s:s, s:s}", "url", k->api->url, "key", k->api->key);
    if (p && k->api->ca)
        (void)json_object_set_new(p, "ca", json_string(k->api->ca));
    if (p && k->api->cert) {
        (void)json_object_set_new(p, "cert", json_string(k->api->cert));
        (void)json_object_set_new(p, "cert_key", json_string(k->api->cert_key));
    }
    if (!p || (k->api->ca && !json_object_get(p, "ca")) ||
        (k->api->cert && (!json_object_get(p, "cert") || !json_object_get(p, "cert_key")))) {
        json_decref(p);
        return err_set(err, ERR_USAGE, 0, "login: key, authority and certificate must be text in UTF-8");
    }
    if (login_free_name(k, all, err) < 0) {
        json_decref(p);
        return -1;
    }
    (void)json_object_set_new(all, k->name, p);
    if (json_object_size(all) > PROFILES_MAX)
        return err_set(err, ERR_USAGE, 0,
                       "login: there are %d profiles, which is the limit; `hutch logout NAME` removes one",
                       PROFILES_MAX);
    (void)json_object_set_new(root, "current", json_string(k->name));
    return 0;
}

/* The host, with what no name may have replaced: "[::1]" becomes "_1". */
static void login_name(const struct api *a, char ret[PROFILE_NAME_MAX + 1])
{
    size_t n = 0;
    for (const char *p = a->host; *p && n < PROFILE_NAME_MAX; p++)
        if (*p != ':' || n == 0 || ret[n - 1] != '_')
            ret[n++] = *p == ':' ? '_' : *p;
    ret[n] = '\0';
    if (n && (ret[0] == '-' || ret[0] == '.'))
        ret[0] = '_';
}

static int login_run(struct node_call *call, const char *name, const char *key_file, bool plain, struct err *err)
{
    struct login_keep keep = {.api = &call->api};
    _cleanup_json_ json_t *node = NULL;
    _cleanup_buf_ struct buf version = {0};
    if ((name && profile_check_name(name, err) < 0) || login_reach(call, plain, err) < 0 ||
        login_take_key(&call->api, key_file, err) < 0 || login_check(&call->api, &node, err) < 0)
        return -1;
    login_name(&call->api, keep.name);
    keep.by_host = !name && !call->choice.profile;
    if (!keep.by_host)
        (void)snprintf(keep.name, sizeof keep.name, "%s", name ? name : call->choice.profile);
    if (profiles_change(login_keep, &keep, err) < 0)
        return -1;
    name = keep.name;
    text_add_safe(&version, field_text(node, "version"), 40);
    if (call->json) {
        _cleanup_json_ json_t *j =
            json_pack("{s:s, s:s, s:s}", "profile", name, "url", call->api.url, "version", field_text(node, "version"));
        node_print_json(j);
        return 0;
    }
    (void)printf("logged in to %s (hutch %s); commands use this node from now on, as profile %s\n", call->api.url,
                 buf_str(&version), name);
    for (const char *const *v =
             (const char *const[]){"HUTCH_URL", "HUTCH_API_KEY", "HUTCH_CA", "HUTCH_CERT", "HUTCH_PROFILE", NULL};
         *v; v++)
        if (getenv(*v) && *getenv(*v))
            (void)fprintf(stderr, "hutch: %s is set in this shell and goes before the profile\n", *v);
    return 0;
}

int cmd_login(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch login [options] [URL]\n\n"
        "Asks for an API key of a node, checks it there, and keeps both as a profile, which all commands use from then "
        "on.\n"
        "The key is read from the terminal without being shown, or from standard input.\n\n"
        "  URL                https://HOST[:PORT], or HOST; without it HUTCH_URL, else the current profile's\n"
        "      --name NAME    call the profile so (the host's name; HOST-PORT if another node's profile has that)\n"
        "      --key-file F   take the key from this file\n"
        "      --ca FILE      trust this authority for the node, and no other (PEM); it is kept in the profile\n"
        "      --cert FILE    show this client certificate (PEM) to the server, with --key; both are kept in the "
        "profile\n"
        "      --key FILE     its private key, mode 0600; without it, it is in the certificate's file\n"
        "      --plain        send the key over http:// to another machine\n"
        "      --json         print profile, URL and version as JSON\n\n"
        "examples:\n"
        "  hutch login node.example\n"
        "  hutch login --ca ca.crt https://10.0.0.5:7443 <key.txt\n\n"
        "Profiles lie in ~/.config/hutch/profiles.json. Guide: docs/remote.md\n";
    const char *name = NULL, *key_file = NULL;
    bool plain = false;
    const struct node_option options[] = {
        {"name", 0, NULL, &name, NULL}, {"key-file", 0, NULL, &key_file, NULL}, {"plain", 0, &plain, NULL, NULL}, {0}};
    const struct node_command c = {"login", usage, options, 0, 1, false};
    struct node_call call;
    struct err err;
    int code;
    if (node_begin_local(&c, argc, argv, &call, &code))
        return code;
    code = login_run(&call, name, key_file, plain, &err);
    explicit_bzero(call.api.key, sizeof call.api.key);
    return code < 0 ? cli_fail(&err) : 0;
}

/* --- logout ------------------------------------------------------------------------------------------------------- */

struct logout {
    const char *name; /* NULL: the current one */
    char gone[PROFILE_NAME_MAX + 1];
    bool was_current;
};

static int logout_remove(void *arg, json_t *root, struct err *err)
{
    struct logout *l = arg;
    const char *current = profiles_current(root), *name = l->name ? l->name : current;
    if (!*name)
        return err_set(err, ERR_USAGE, 0, "logout: no profile is in use; `hutch profile ls` lists them");
    if (json_object_del(json_object_get(root, "profiles"), name) < 0)
        return err_set(err, ERR_USAGE, 0, "logout: there is no profile '%.80s'; `hutch profile ls` lists them", name);
    (void)snprintf(l->gone, sizeof l->gone, "%s", name);
    l->was_current = strcmp(current, name) == 0;
    if (l->was_current)
        (void)json_object_del(root, "current");
    return 0;
}

int cmd_logout(int argc, char **argv)
{
    static const char usage[] =
        "usage: hutch logout [NAME]\n\n"
        "Removes a profile (the current one) with its key. The node still takes the key: `hutch key rm` ends it.\n\n"
        "example: hutch logout node.example\n";
    const struct node_command c = {"logout", usage, NULL, 0, 1, false};
    struct node_call call;
    struct logout l = {0};
    struct err err;
    int code;
    if (node_begin_local(&c, argc, argv, &call, &code))
        return code;
    l.name = call.nargs ? call.args[0] : call.choice.profile;
    if (profiles_mend(logout_remove, &l, &err) < 0)
        return cli_fail(&err);
    if (call.json) {
        _cleanup_json_ json_t *j = json_pack("{s:s}", "removed", l.gone);
        node_print_json(j);
        return 0;
    }
    (void)printf("removed profile %s%s\n", l.gone, l.was_current ? "; commands use the node of this machine now" : "");
    return 0;
}
