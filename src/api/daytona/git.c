/* git.c - git of the toolbox: each route is one run of the sandbox's own git. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "api/reply.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"

enum { CLONE_S = 600, FILES_MAX = 1000 };

/* git's own words become a code that clients have a class for. */
#define EXPLAIN                                                                                               \
    "fail() { case \"$1\" in\n"                                                                               \
    "*'not a git repository'*|*'cannot change to'*) echo \"GIT_REPO_NOT_FOUND repository not found: $1\";;\n" \
    "*'uthentication failed'*|*'could not read Username'*) echo \"GIT_AUTH_FAILED $1\";;\n"                   \
    "*'did not match any file(s) known'*|*'not found in upstream'*|*\"branch '\"*\"' not found\"*) echo "     \
    "\"GIT_BRANCH_NOT_FOUND $1\";;\n"                                                                         \
    "*'already exists'*) echo \"GIT_BRANCH_EXISTS $1\";;\n"                                                   \
    "*'[rejected]'*) echo \"GIT_PUSH_REJECTED $1\";;\n"                                                       \
    "*) echo \"$1\";; esac >&2; exit 1; }\n"                                                                  \
    "command -v git >/dev/null || fail 'this template has no git'\n"                                          \
    "export GIT_TERMINAL_PROMPT=0 LC_ALL=C\n" DAYTONA_PATHS

/* A credential comes and goes by environment, so that it is neither in arguments, which each user sees, nor on the disk. */
#define CREDENTIAL                                                                                             \
    "auth() { if [ -n \"$HUTCH_GIT_PASSWORD\" ]; then git -c credential.helper= -c credential.helper='!f() { " \
    "printf \"username=%s\\npassword=%s\\n\" \"$HUTCH_GIT_USER\" \"$HUTCH_GIT_PASSWORD\"; }; f' \"$@\"; "      \
    "else git \"$@\"; fi; }\n"

struct operation {
    const char *method, *route; /* the end of the pattern */
    const char *script;
    const char *fields[7]; /* of the body (POST, DELETE), as $1, $2 ...; an array becomes the rest */
    unsigned status;
    unsigned seconds;
};
static const struct operation operations[] = {
    {"POST",
     "/git/add",
     EXPLAIN "path \"$1\"; shift; o=$(git -C \"$p\" add -- \"$@\" 2>&1) || fail \"$o\"\n",
     {"path", "files"},
     200,
     0},
    {"POST",
     "/git/commit",
     EXPLAIN "path \"$1\"\n"
             "o=$(git -C \"$p\" -c user.name=\"$3\" -c user.email=\"$4\" commit -q -m \"$2\" ${5:+--allow-empty} 2>&1) "
             "|| fail \"$o\"\n"
             "git -C \"$p\" rev-parse HEAD\n",
     {"path", "message", "author", "email", "allow_empty"},
     200,
     0},
    {"POST",
     "/git/clone",
     EXPLAIN CREDENTIAL "path \"$2\"\n"
                        "o=$(auth clone -q ${3:+--branch \"$3\"} ${5:+--depth \"$5\"} -- \"$1\" \"$p\" 2>&1) || "
                        "fail \"$o\"\n"
                        "[ -z \"$4\" ] || { o=$(git -C \"$p\" checkout -q \"$4\" 2>&1) || fail \"$o\"; }\n",
     {"url", "path", "branch", "commit_id", "depth"},
     200,
     CLONE_S},
    {"POST",
     "/git/push",
     EXPLAIN CREDENTIAL "path \"$1\"\n"
                        "o=$(auth -C \"$p\" push -q ${4:+-u} \"${3:-origin}\" ${2:+\"$2\"} 2>&1) || fail \"$o\"\n",
     {"path", "branch", "remote", "set_upstream"},
     200,
     CLONE_S},
    {"POST",
     "/git/pull",
     EXPLAIN CREDENTIAL "path \"$1\"\n"
                        "o=$(auth -C \"$p\" pull -q ${3:+\"$3\"} ${2:+\"$2\"} 2>&1) || fail \"$o\"\n",
     {"path", "branch", "remote"},
     200,
     CLONE_S},
    {"POST",
     "/git/checkout",
     EXPLAIN "path \"$1\"; o=$(git -C \"$p\" checkout -q \"$2\" 2>&1) || fail \"$o\"\n",
     {"path", "branch"},
     200,
     0},
    {"POST",
     "/git/branches",
     EXPLAIN "path \"$1\"; o=$(git -C \"$p\" branch -- \"$2\" 2>&1) || fail \"$o\"\n",
     {"path", "name"},
     201,
     0},
    {"DELETE",
     "/git/branches",
     EXPLAIN "path \"$1\"; o=$(git -C \"$p\" branch -D -- \"$2\" 2>&1) || fail \"$o\"\n",
     {"path", "name"},
     204,
     0},
    {"POST", "/git/init", EXPLAIN "path \"$1\"; o=$(git init -q -- \"$p\" 2>&1) || fail \"$o\"\n", {"path"}, 201, 0},
};

static const struct operation *daytona_git_operation(const struct api_call *c)
{
    const char *tail = strstr(c->route->pattern, "/git/");
    for (size_t i = 0; i < ARRAY_LEN(operations); i++)
        if (strcmp(operations[i].route, tail) == 0 && strcmp(operations[i].method, c->req->method) == 0)
            return &operations[i];
    return NULL; /* routes.c names no other */
}

static void daytona_git_answer(struct http_req *r, const struct daytona_ran *ran)
{
    const struct operation *op = daytona_git_operation(api_call_of(r));
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    if (daytona_script_failed(r, ran))
        return;
    if (strcmp(op->route, "/git/commit") != 0) {
        reply_empty(r, op->status);
        return;
    }
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_text(&j, "hash", ran->out->p, strcspn(buf_str(ran->out), "\n"));
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

/* Adds a field of the body to the arguments: texts and numbers as they are, true as "1", what is missing as "". */
static bool daytona_git_add_argument(struct strv *argv, json_t *v)
{
    char number[24];
    size_t i;
    json_t *one;
    if (json_is_array(v)) {
        json_array_foreach(v, i, one)
        {
            if (!json_is_string(one) || i >= FILES_MAX)
                return false;
            strv_add(argv, json_string_value(one));
        }
        return true;
    }
    (void)snprintf(number, sizeof number, "%lld", json_is_integer(v) ? (long long)json_integer_value(v) : 1LL);
    strv_add(argv, json_is_string(v) ? json_string_value(v) : json_is_integer(v) || json_is_true(v) ? number : "");
    return !v || json_is_null(v) || json_is_string(v) || json_is_integer(v) || json_is_boolean(v);
}

static void daytona_git_on_body(struct api_call *c, json_t *body)
{
    const struct operation *op = daytona_git_operation(c);
    struct sandbox *b = daytona_same_sandbox(c);
    struct strv argv = {0};
    if (!b)
        return;
    const char *const head[] = {"/bin/sh", "-c", op->script, "hutch"}, *wrong = NULL;
    for (size_t i = 0; i < ARRAY_LEN(head); i++)
        strv_add(&argv, head[i]);
    for (size_t i = 0; i < ARRAY_LEN(op->fields) && op->fields[i]; i++)
        if (!daytona_git_add_argument(&argv, json_object_get(body, op->fields[i])))
            wrong = op->fields[i];
    if (!daytona_text(body, op->fields[0]) || !*daytona_text(body, op->fields[0]))
        wrong = op->fields[0];
    const char *user = daytona_text(body, "username"), *password = daytona_text(body, "password");
    _cleanup_free_ char *u = xasprintf("HUTCH_GIT_USER=%s", user ? user : "");
    _cleanup_free_ char *p = xasprintf("HUTCH_GIT_PASSWORD=%s", password ? password : "");
    const char *const env[] = {u, p, NULL};
    const struct daytona_run what = {.argv = (const char *const *)argv.v,
                                     .env = password && *password ? env : NULL,
                                     .timeout_ms = (uint64_t)(op->seconds ? op->seconds : DAYTONA_SCRIPT_S) * 1000};
    if (wrong)
        daytona_error(c->req, 400, NULL, "field '%s' is missing or has the wrong type", wrong);
    else
        daytona_run(c, b, &what, daytona_git_answer);
    strv_done(&argv);
}

static void daytona_git_do_in(struct api_call *c, struct sandbox *b)
{
    (void)b;
    daytona_body(c, daytona_git_on_body);
}
void daytona_git_do(struct api_call *c) { daytona_toolbox(c, daytona_git_do_in); }

/* --- questions ------------------------------------------------------------------------------------------------------ */

static const char *daytona_git_word(char letter)
{
    switch (letter) {
    case '?':
        return "Untracked";
    case 'M':
    case 'T':
        return "Modified";
    case 'A':
        return "Added";
    case 'D':
        return "Deleted";
    case 'R':
        return "Renamed";
    case 'C':
        return "Copied";
    case 'U':
        return "Updated but unmerged";
    default:
        return "Unmodified";
    }
}

/* One entry of `git status --porcelain=v1 -z`: "XY NAME", and after renames another name. False: there is none. */
static bool daytona_git_add_file(struct json *j, const struct buf *b, size_t *at)
{
    const char *p = daytona_next_text(b, at);
    if (!p || strlen(p) <= 3)
        return false;
    const char *extra = p[0] == 'R' || p[0] == 'C' ? daytona_next_text(b, at) : "";
    json_obj(j, NULL);
    json_str(j, "name", p + 3);
    json_str(j, "staging", daytona_git_word(p[0]));
    json_str(j, "worktree", daytona_git_word(p[1]));
    json_str(j, "extra", extra ? extra : "");
    json_end_obj(j);
    return true;
}

/* BRANCH \0 UPSTREAM \0 "AHEAD BEHIND" \0, then the files. */
static const char script_status[] =
    EXPLAIN "path \"$1\"; o=$(git -C \"$p\" rev-parse --git-dir 2>&1) || fail \"$o\"\n"
            "u=$(git -C \"$p\" rev-parse --abbrev-ref '@{u}' 2>/dev/null)\n"
            "printf '%s\\0%s\\0%s\\0' \"$(git -C \"$p\" symbolic-ref --short -q HEAD || git -C \"$p\" rev-parse "
            "--short HEAD)\" \"$u\" "
            "\"$([ -z \"$u\" ] || git -C \"$p\" rev-list --left-right --count 'HEAD...@{u}')\"\n"
            "git -C \"$p\" status --porcelain=v1 -z\n";

static void daytona_git_status_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    const char *branch = daytona_next_text(ran->out, &at), *upstream = daytona_next_text(ran->out, &at),
               *counts = daytona_next_text(ran->out, &at);
    size_t first = counts ? strcspn(counts, "\t ") : 0;
    _cleanup_free_ char *before = xstrndup(counts ? counts : "", first);
    int ahead = 0, behind = 0;
    (void)num_int(before, 0, INT_MAX, &ahead);
    (void)num_int(counts && counts[first] ? counts + first + 1 : "0", 0, INT_MAX, &behind);
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "currentBranch", branch ? branch : "");
    json_i64(&j, "ahead", ahead);
    json_i64(&j, "behind", behind);
    json_bool(&j, "branchPublished", upstream && *upstream);
    json_arr(&j, "fileStatus");
    while (daytona_git_add_file(&j, ran->out, &at))
        ;
    json_end_arr(&j);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static const char script_branches[] =
    EXPLAIN "path \"$1\"; o=$(git -C \"$p\" for-each-ref --format='%(HEAD)%(refname:short)' "
            "refs/heads 2>&1) || fail \"$o\"\nprintf '%s\\n' \"$o\"\n";

static void daytona_git_branches_answer(struct http_req *r, const struct daytona_ran *ran)
{
    _cleanup_buf_ struct buf out = {0}, current = {0};
    struct json j;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_arr(&j, "branches");
    for (const char *p = buf_str(ran->out); *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t n = strcspn(p, "\n");
        if (n < 2)
            continue;
        json_text(&j, NULL, p + 1, n - 1);
        if (*p == '*')
            buf_add(&current, p + 1, n - 1);
    }
    json_end_arr(&j);
    json_text(&j, "current", buf_str(&current), current.n);
    json_end_obj(&j);
    reply_json(r, 200, &out);
}

static const char script_history[] =
    EXPLAIN "path \"$1\"; o=$(git -C \"$p\" rev-parse --git-dir 2>&1) || fail \"$o\"\n"
            "git -C \"$p\" log -n 200 -z --format='%H%x1f%an%x1f%ae%x1f%aI%x1f%B' 2>/dev/null; exit 0\n";

static void daytona_git_history_answer(struct http_req *r, const struct daytona_ran *ran)
{
    static const char *const names[] = {"hash", "author", "email", "timestamp", "message"};
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    size_t at = 0;
    if (daytona_script_failed(r, ran))
        return;
    json_start(&j, &out);
    json_arr(&j, NULL);
    for (const char *q; (q = daytona_next_text(ran->out, &at));) {
        json_obj(&j, NULL);
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            size_t n = i + 1 < ARRAY_LEN(names) ? strcspn(q, "\x1f") : strlen(q);
            json_text(&j, names[i], q, n);
            q += n + (q[n] == '\x1f');
        }
        json_end_obj(&j);
    }
    json_end_arr(&j);
    reply_json(r, 200, &out);
}

static void daytona_git_ask(struct api_call *c, struct sandbox *b, const char *script, daytona_ran_fn *then)
{
    _cleanup_buf_ struct buf path = {0};
    if (!daytona_query(c, "path", true, &path))
        return;
    const char *const args[] = {buf_str(&path), NULL};
    daytona_script(c, b, script, args, then);
}
static void daytona_git_status_in(struct api_call *c, struct sandbox *b)
{
    daytona_git_ask(c, b, script_status, daytona_git_status_answer);
}
static void daytona_git_branches_in(struct api_call *c, struct sandbox *b)
{
    daytona_git_ask(c, b, script_branches, daytona_git_branches_answer);
}
static void daytona_git_history_in(struct api_call *c, struct sandbox *b)
{
    daytona_git_ask(c, b, script_history, daytona_git_history_answer);
}
void daytona_git_status(struct api_call *c) { daytona_toolbox(c, daytona_git_status_in); }
void daytona_git_branches(struct api_call *c) { daytona_toolbox(c, daytona_git_branches_in); }
void daytona_git_history(struct api_call *c) { daytona_toolbox(c, daytona_git_history_in); }
