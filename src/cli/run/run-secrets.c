#include "cli/run/run-secrets.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"

extern char **environ;

/* --- options ------------------------------------------------------------------------------------------------------ */

static bool run_secret_is_name(const char *s, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return n > 0 && n < RUN_SECRET_NAME_MAX && strspn(s, letters) >= n && !(s[0] >= '0' && s[0] <= '9');
}

static struct run_secret *run_secret_find(struct run_secrets *s, const char *name, size_t n)
{
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->v[i].name) == n && strncmp(s->v[i].name, name, n) == 0)
            return &s->v[i];
    return NULL;
}

/* Reads NAME=HOST[,HOST...]; the same name again adds hosts. */
static int parse_secret(struct run_secrets *s, const char *text, struct err *err)
{
    size_t n = strcspn(text, "=");
    if (!run_secret_is_name(text, n) || !text[n])
        return err_set(
            err, ERR_USAGE, 0,
            "--secret %.80s: NAME=HOST[,HOST...] is wanted; NAME is a variable of yours that holds the value, "
            "HOST where it may go",
            n < strlen(text) ? text : "(a word without =)");
    struct run_secret *one = run_secret_find(s, text, n);
    if (!one && s->n == RUN_SECRETS_MAX)
        return err_set(err, ERR_USAGE, 0, "--secret: at most %d secrets", RUN_SECRETS_MAX);
    if (!one) {
        one = &s->v[s->n++];
        memcpy(one->name, text, n);
    }
    for (const char *at = text + n; *at;) {
        size_t len = strcspn(++at, ",");
        if (len == 0 || len > 300)
            return err_set(err, ERR_USAGE, 0,
                           "--secret %s: a host is missing or too long; NAME=HOST[,HOST...] is wanted", one->name);
        if (one->hosts.n == RUN_SECRET_HOSTS_MAX)
            return err_set(err, ERR_USAGE, 0, "--secret %s: at most %d hosts", one->name, RUN_SECRET_HOSTS_MAX);
        strv_take(&one->hosts, xstrndup(at, len));
        at += len;
    }
    return 0;
}

/* Whether the file is also open as a stream of the command, which could rewind and read it. */
static bool is_given(const struct run_args *a, const struct stat *file)
{
    struct stat st;
    bool same = fstat(0, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
    for (size_t i = 0; i < a->nkeep; i++)
        same |= fstat(a->keep_fds[i], &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
    return same;
}

static int parse_file(const struct run_args *a, struct run_secrets *s, const char *text, struct err *err)
{
    size_t n = strcspn(text, "=");
    struct stat st = {0};
    struct run_secret *one = run_secret_find(s, text, n);
    if (!text[n] || !text[n + 1])
        return err_set(err, ERR_USAGE, 0, "--secret-file: NAME=FILE is wanted");
    if (!one)
        return err_set(err, ERR_USAGE, 0,
                       "--secret-file %.*s: there is no --secret of that name, which says where it may go",
                       (int)(n < 80 ? n : 80), text);
    if (one->file)
        return err_set(err, ERR_USAGE, 0, "--secret-file %s is given twice", one->name);
    if (stat(text + n + 1, &st) < 0 || S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE, S_ISDIR(st.st_mode) ? EISDIR : errno, "--secret-file %s", text);
    if (is_given(a, &st))
        return err_set(err, ERR_USAGE, 0, "--secret-file %s is also the command's standard input or a --fd of it",
                       text);
    if (S_ISREG(st.st_mode) && st.st_nlink > 1)
        return err_set(err, ERR_USAGE, 0,
                       "--secret-file %s: the file has %lu hard links, and only this one would be hidden; keep it in a "
                       "file of its own",
                       text, (unsigned long)st.st_nlink);
    one->hide = S_ISREG(st.st_mode);
    one->file = one->hide ? realpath(text + n + 1, NULL) : xstrdup(text + n + 1);
    return one->file ? 0 : err_set(err, ERR_USAGE, errno, "--secret-file %s", text);
}

/* The rules of a secret would open a network that --network off closes, or replace that of --network host. */
static int check_network(const struct run_args *a, struct err *err)
{
    for (size_t i = 0; i < a->nflags; i++)
        if (strcmp(a->flags[i].key, "network") == 0 &&
            (strcmp(a->flags[i].value, "off") == 0 || strcmp(a->flags[i].value, "host") == 0))
            return err_set(
                err, ERR_USAGE, 0,
                "--secret and --network %s exclude each other: a secret goes to its hosts through network rules",
                a->flags[i].value);
    return 0;
}

int run_secrets_parse(const struct run_args *a, struct run_secrets *ret, struct err *err)
{
    for (size_t i = 0; i < a->secrets.n; i++)
        if (parse_secret(ret, a->secrets.v[i], err) < 0)
            return -1;
    for (size_t i = 0; i < a->secret_files.n; i++)
        if (parse_file(a, ret, a->secret_files.v[i], err) < 0)
            return -1;
    if (ret->n > 0 && a->learn)
        return err_set(err, ERR_USAGE, 0,
                       "--secret and --learn exclude each other: while learning, nothing is hidden from the command");
    return ret->n > 0 ? check_network(a, err) : 0;
}

/* --- policy ------------------------------------------------------------------------------------------------------- */

/* The port of "host:8443", 443 by default, and the length of the host. */
static int port_of(const char *host, size_t *ret_len)
{
    const char *colon = strrchr(host, ':');
    int port = 443;
    *ret_len = strlen(host);
    if (colon && num_int(colon + 1, 1, 65535, &port))
        *ret_len = (size_t)(colon - host);
    return port;
}

static void run_secret_add_place(struct json *j, const char *host)
{
    size_t len;
    int port = port_of(host, &len);
    _cleanup_free_ char *name = xstrndup(host, len);
    json_arr(j, "hosts");
    json_str(j, NULL, name);
    json_end_arr(j);
    json_arr(j, "ports");
    json_u64(j, NULL, (uint64_t)port);
    json_end_arr(j);
}

size_t run_secrets_nflags(const struct run_secrets *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->v[i].hosts.n + 1;
    return n;
}

/* Every rule names all secrets: hosts of two secrets may overlap, and the first rule that allows a request decides. The
 * binding of each secret still limits where it goes. */
void run_secrets_flags(struct run_secrets *s, struct policy_flag *flags, size_t *n)
{
    for (size_t i = 0; i < s->n; i++) {
        struct run_secret *one = &s->v[i];
        for (size_t k = 0; k < one->hosts.n; k++) {
            struct buf rule = {0};
            struct json j;
            char id[32];
            (void)snprintf(id, sizeof id, "run-secret.%zu", s->rules.n / 2);
            json_start(&j, &rule);
            json_obj(&j, NULL);
            json_str(&j, "id", id);
            run_secret_add_place(&j, one->hosts.v[k]);
            json_arr(&j, "secrets");
            for (size_t m = 0; m < s->n; m++)
                json_str(&j, NULL, s->v[m].name);
            json_end_arr(&j);
            json_end_obj(&j);
            strv_take(&s->rules, rule.p);
            char *text = xasprintf("--secret %s=%s", one->name, one->hosts.v[k]);
            strv_take(&s->rules, text);
            flags[(*n)++] = (struct policy_flag){.key = "network.rule", .value = rule.p, .text = text};
        }
        if (one->hide)
            flags[(*n)++] = (struct policy_flag){
                .key = "files.deny_read", .value = one->file, .text = "--secret-file", .flags = FILE_LITERAL};
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static int run_secret_read(struct run_secret *s, struct err *err)
{
    if (s->file) {
        buf_reserve(&s->value,
                    RUN_SECRET_MAX + 1); /* a growing buffer would leave copies of the value in freed memory */
        if (fd_read_file(AT_FDCWD, s->file, RUN_SECRET_MAX + 1, &s->value) < 0)
            return err_set(err, ERR_USAGE, errno, "--secret-file %s=%s", s->name, s->file);
        if (s->value.n && s->value.p[s->value.n - 1] == '\n')
            s->value.p[--s->value.n] = '\0';
    } else {
        const char *value = getenv(s->name);
        if (!value)
            return err_set(err, ERR_USAGE, 0,
                           "--secret %s: you have no variable of that name; export it, or give --secret-file %s=FILE",
                           s->name, s->name);
        buf_adds(&s->value, value);
    }
    if (s->value.n < RUN_SECRET_MIN || s->value.n > RUN_SECRET_MAX)
        return err_set(err, ERR_USAGE, 0, "--secret %s: the value has %zu bytes; from %d to %d are possible", s->name,
                       s->value.n, RUN_SECRET_MIN, RUN_SECRET_MAX);
    for (size_t i = 0; i < s->value.n; i++)
        if ((unsigned char)s->value.p[i] < 0x20 || s->value.p[i] == 0x7f)
            return err_set(err, ERR_USAGE, 0,
                           "--secret %s: byte %zu of the value is a control character, which no header "
                           "can hold",
                           s->name, i + 1);
    return 0;
}

/* At least 128 random bits, as letters and digits, so that SDKs accept it as a key. */
static int make_placeholder(struct run_secret *s, struct err *err)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz012345";
    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(err, ERR_SETUP, errno, "make a placeholder");
    size_t n = (size_t)snprintf(s->placeholder, sizeof s->placeholder, "sbx-");
    for (size_t i = 0; i < sizeof bytes; i++)
        s->placeholder[n++] = digits[bytes[i] % 32];
    s->placeholder[n] = '\0';
    return 0;
}

static bool run_secret_in_text(const char *text, const struct run_secret *s)
{
    return memmem(text, strlen(text), s->value.p, s->value.n) != NULL;
}

static const struct env_rule *set_rule(const struct policy *p, const char *entry)
{
    size_t n = strcspn(entry, "=");
    for (size_t i = 0; i < p->nenv; i++)
        if (p->env[i].verb == ENV_SET && strlen(p->env[i].name) == n && strncmp(p->env[i].name, entry, n) == 0)
            return &p->env[i];
    return NULL;
}

/* Removes the secret's variable, and others that hold its value, from the environment of the command. */
static int clear_environment(const struct run_secret *s, const struct policy *policy, struct strv *env,
                             struct strv *notes, struct err *err)
{
    size_t kept = 0, len = strlen(s->name);
    const struct env_rule *bad = NULL;
    for (size_t i = 0; i < env->n; i++) {
        char *entry = env->v[i];
        bool own = strncmp(entry, s->name, len) == 0 && entry[len] == '=';
        const struct env_rule *rule = own || run_secret_in_text(entry, s) ? set_rule(policy, entry) : NULL;
        bad = bad ? bad : rule;
        if (!own && !run_secret_in_text(entry, s)) {
            env->v[kept++] = entry;
            continue;
        }
        if (!own)
            strv_take(notes, xasprintf("the variable %.*s holds the value of the secret %s and was not passed on",
                                       (int)strcspn(entry, "="), entry, s->name));
        explicit_bzero(entry, strlen(entry));
        free(entry);
    }
    env->n = kept;
    if (env->v)
        env->v[kept] = NULL;
    if (!bad)
        return 0;
    _cleanup_buf_ struct buf where = {0};
    if (bad->origin.level != LEVEL_FLAGS) /* the origin of an option quotes its value */
        origin_add(&where, &bad->origin);
    return err_set(err, ERR_POLICY, 0, "the variable %s set by %s %s the secret %s; leave it out", bad->name,
                   where.n ? buf_str(&where) : "--env",
                   strcmp(bad->name, s->name) == 0 ? "is also" : "holds the value of", s->name);
}

/* Whether the file is visible inside. Without --root the command sees the host's tree, so the file itself or a directory above
 * it must be covered. */
static bool is_covered(const struct run_secret *s, const struct plan *plan)
{
    const struct plan_op *op = plan_op_for(plan, s->file);
    struct stat st;
    if (plan->layers.n > 0 || path_under(s->file, "/proc") || path_under(s->file, "/sys") ||
        path_under(s->file, "/dev"))
        return true; /* private in the sandbox */
    if (!op || (op->kind != OP_MASK && op->kind != OP_TMPFS && op->kind != OP_SKELETON))
        return false;
    return strcmp(op->path, s->file) != 0 || (stat(s->file, &st) == 0 && st.st_dev == op->dev && st.st_ino == op->ino);
}

static int check_hidden(const struct run_secret *s, const struct plan *plan, struct err *err)
{
    const char *seen = NULL;
    for (size_t i = 0; s->hide && i < plan->layers.n; i++)
        if (path_under(s->file, plan->layers.v[i]))
            seen = plan->layers.v[i];
    for (size_t i = 0; s->hide && i < plan->nops; i++) {
        const struct plan_op *op = &plan->ops[i];
        if ((op->kind == OP_BIND_RO || op->kind == OP_BIND_RW) && op->src && path_under(s->file, op->src) &&
            (plan->layers.n > 0 || strcmp(op->src, op->path) != 0))
            seen = op->src;
    }
    if (s->hide && !seen && !is_covered(s, plan))
        return err_set(err, ERR_USAGE, 0,
                       "--secret-file %s=%s: it cannot be hidden from the command; keep it elsewhere", s->name,
                       s->file);
    return !seen ? 0
                 : err_set(err, ERR_USAGE, 0,
                           "--secret-file %s=%s: the command would see it, because %s is shown to it; "
                           "keep it elsewhere",
                           s->name, s->file, seen);
}

int run_secrets_take(struct run_secrets *s, const struct policy *policy, const struct plan *plan, char *const *command,
                     struct strv *env, struct strv *notes, struct err *err)
{
    for (size_t i = 0; i < s->n; i++) {
        struct run_secret *one = &s->v[i];
        if (check_hidden(one, plan, err) < 0 || run_secret_read(one, err) < 0 || make_placeholder(one, err) < 0 ||
            clear_environment(one, policy, env, notes, err) < 0)
            return -1;
        for (char *const *word = command; *word; word++)
            if (run_secret_in_text(*word, one))
                return err_set(
                    err, ERR_USAGE, 0,
                    "a word of the command holds the value of the secret %s; write '$%s' in single quotes and let "
                    "a shell inside put the placeholder there",
                    one->name, one->name);
    }
    for (size_t i = 0; i < s->n; i++)
        strv_take(env, xasprintf("%s=%s", s->v[i].name, s->v[i].placeholder));
    return 0;
}

void run_secrets_message(const struct run_secret *s, const char *tenant, struct buf *out)
{
    _cleanup_buf_ struct buf coded = {0};
    struct json j;
    buf_reserve(&coded, s->value.n / 3 * 4 + 4);
    base64_encode(&coded, s->value.p, s->value.n);
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "type", "secret");
    json_str(&j, "tenant", tenant);
    json_str(&j, "name", s->name);
    json_u64(&j, "revision", 1);
    json_obj(&j, "spec");
    json_arr(&j, "bind");
    for (size_t i = 0; i < s->hosts.n; i++) {
        json_obj(&j, NULL);
        run_secret_add_place(&j, s->hosts.v[i]);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    json_str(&j, "env", s->name);
    json_end_obj(&j);
    buf_reserve(out, coded.n + 16); /* reserve now: growing would copy the value */
    json_str(&j, "value", buf_str(&coded));
    json_end_obj(&j);
    explicit_bzero(coded.p, coded.n);
}

void run_secrets_forget(struct run_secrets *s)
{
    for (size_t i = 0; i < s->n; i++) {
        struct buf *value = &s->v[i].value;
        for (char **e = environ; value->n && *e; e++) {
            char *text = strchr(*e, '=');
            if (text && run_secret_in_text(text, &s->v[i]))
                explicit_bzero(text + 1, strlen(text + 1));
        }
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].value.p)
            explicit_bzero(s->v[i].value.p, s->v[i].value.cap);
        buf_done(&s->v[i].value);
    }
}
