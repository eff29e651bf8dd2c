/* audit.c - `hutch audit`: reads the audit log of a node, from its files; no node has to run. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "egress/audit/audit.h"

enum { AUDIT_BROKEN = 1 /* exit code: the chain does not hold */, LINES_SHOWN = 20 };

static const char usage[] =
    "usage: hutch audit tail [-f] [-n N] [--json] [--dir DIR]\n"
    "       hutch audit query [--sandbox ID] [--tenant ID] [--host HOST] [--verdict WORD] [--since TIME] [--until "
    "TIME]\n"
    "                         [--json] [--dir DIR]\n"
    "       hutch audit verify [--last HASH] [--dir DIR | FILE]\n\n"
    "Every request, tunnel and refusal of every sandbox is a line of the audit log. These commands read its files; "
    "the\n"
    "node need not run.\n\n"
    "  tail      the last lines (20); -f goes on as lines come\n"
    "  query     the lines that match all options, oldest first\n"
    "  verify    checks that no line was changed, moved or removed: each carries the hash of the one before\n\n"
    "  --host HOST     exactly this host; .example.org: it and everything below\n"
    "  --verdict WORD  allow, deny or would_deny\n"
    "  --since TIME    2026-01-31, 2026-01-31T12:00:00Z (UTC), or how long ago: 2h, 7d\n"
    "  --until TIME    the same\n"
    "  --last HASH     a hash that verify printed earlier: the log must still have that line. Without it verify cannot "
    "see\n"
    "                  that lines were cut off the end.\n"
    "  --json          the lines as they stand in the log\n"
    "  --dir DIR       directory of the log (STATE/audit of the node)\n"
    "  FILE            what `hutch run --audit FILE` wrote\n\n"
    "exit code: 0; 1 the chain is broken, or the line of --last is gone; 120 the command line is wrong; 122 the log\n"
    "cannot be read.\n\n"
    "examples:\n"
    "  hutch audit tail -f\n"
    "  hutch audit query --verdict deny --since 1h\n"
    "  hutch audit verify --last \"$(cat /mnt/elsewhere/last-hash)\"\n";

struct options {
    const char *dir, *file, *sandbox, *tenant, *host, *verdict, *last;
    char since[32], until[32]; /* as lines spell it; "": none */
    uint64_t lines;
    bool follow, json;
};

/* --- options
 * -------------------------------------------------------------------------------------------------------- */

/* The time as lines spell it: then times compare as texts. */
static bool read_time(const char *text, char ret[32])
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd";
    size_t n = strlen(text);
    uint64_t ago;
    if (num_duration(text, &ago)) {
        time_t at = time(NULL) - (time_t)(ago / 1000);
        struct tm tm;
        (void)gmtime_r(&at, &tm);
        return strftime(ret, 32, "%Y-%m-%dT%H:%M:%S", &tm) > 0;
    }
    if (n > 0 && text[n - 1] == 'Z')
        n--;
    if (n != 10 && n != sizeof shape - 1)
        return false;
    for (size_t i = 0; i < n; i++)
        if (shape[i] == 'd' ? text[i] < '0' || text[i] > '9' : text[i] != shape[i])
            return false;
    (void)snprintf(ret, 32, "%.*s", (int)n, text);
    return true;
}

static int audit_read_option(struct options *o, int opt, const char *value, struct err *err)
{
    static const struct {
        char opt;
        size_t at;
    } texts[] = {{'D', offsetof(struct options, dir)},     {'s', offsetof(struct options, sandbox)},
                 {'t', offsetof(struct options, tenant)},  {'H', offsetof(struct options, host)},
                 {'v', offsetof(struct options, verdict)}, {'l', offsetof(struct options, last)}};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (texts[i].opt == opt)
            *(const char **)(void *)((char *)o + texts[i].at) = value;
    if (opt == 'n' && !num_u64(value, &o->lines))
        return err_set(err, ERR_USAGE, 0, "audit: -n wants a number of lines");
    if ((opt == 'S' && !read_time(value, o->since)) || (opt == 'U' && !read_time(value, o->until)))
        return err_set(err, ERR_USAGE, 0,
                       "audit: --since and --until want a time like 2026-01-31, 2026-01-31T12:00:00Z or 2h");
    if (opt == 'v' && strcmp(value, "allow") != 0 && strcmp(value, "deny") != 0 && strcmp(value, "would_deny") != 0)
        return err_set(err, ERR_USAGE, 0, "audit: --verdict is one of allow, deny, would_deny");
    return 0;
}

/* 1: --help was printed. */
static int read_options(int argc, char **argv, const char *shorts, const struct option *list, struct options *o,
                        struct err *err)
{
    int opt;
    opterr = 0;
    optind = 0;
    while ((opt = getopt_long(argc, argv, shorts, list, NULL)) != -1) {
        if (opt == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (opt == '?' || opt == ':')
            return err_set(err, ERR_USAGE, 0,
                           "audit %s: %s is not an option of it, or lacks its value; see `hutch audit --help`", argv[0],
                           argv[optind - 1]);
        o->follow |= opt == 'f';
        o->json |= opt == 'j';
        if (audit_read_option(o, opt, optarg, err) < 0)
            return -1;
    }
    if (optind + 1 == argc && strcmp(argv[0], "verify") == 0 && !o->dir) {
        o->file = argv[optind];
        return 0;
    }
    if (optind < argc)
        return err_set(err, ERR_USAGE, 0, "audit %s: takes no argument (%s); see `hutch audit --help`", argv[0],
                       argv[optind]);
    return 0;
}

/* The directory of this machine's node: HUTCH_STATE, else its configuration. */
static char *default_dir(void)
{
    struct config c;
    struct err err;
    char state[4096];
    const char *given = getenv("HUTCH_STATE");
    if ((!given || !*given) && config_load(NULL, &c, &err) == 0) {
        char *dir = xasprintf("%s/audit", c.state);
        config_done(&c);
        return dir;
    }
    cli_state_dir(state, sizeof state);
    return xasprintf("%s/audit", state);
}

static int audit_open_log(const struct options *o, char **ret_name, struct err *err)
{
    if (o->file) {
        *ret_name = xstrdup(o->file);
        int file = open(o->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat st;
        if (file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode))
            return file;
        if (file >= 0)
            (void)close(file);
        return err_set(err, ERR_HOST, file < 0 ? errno : 0,
                       "audit: %s is not a readable file (--dir DIR names a directory)", o->file);
    }
    *ret_name = o->dir ? xstrdup(o->dir) : default_dir();
    int fd = open(*ret_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        (void)err_set(err, ERR_HOST, errno, "audit: cannot read the log in %s (--dir DIR names another directory)",
                      *ret_name);
    return fd;
}

/* --- the log of a run
 * ----------------------------------------------------------------------------------------------- */

int cli_audit_usable(int fd, const char *name, struct err *err)
{
    struct stat st;
    char line[512];
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, ERR_USAGE, 0, "--audit %s: not a regular file", name);
    if (st.st_nlink != 1)
        return err_set(err, ERR_USAGE, 0,
                       "--audit %s: the file has other names (hard links), which cannot be protected", name);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(err, ERR_USAGE, errno == EWOULDBLOCK ? 0 : errno, "--audit %s: another run writes this log",
                       name);
    if (st.st_size == 0)
        return 0;
    ssize_t n = pread(fd, line, sizeof line, 0);
    const char *end = n > 0 ? memchr(line, '\n', (size_t)n) : NULL;
    if (!end || !audit_is_first(line, (size_t)(end - line)))
        return err_set(err, ERR_USAGE, 0, "--audit %s: the file exists and is not a log of hutch run; name a new one",
                       name);
    if (st.st_size > AUDIT_FILE_MAX - 2 * AUDIT_LINE_MAX)
        return err_set(err, ERR_USAGE, 0, "--audit %s: the log is full (%d bytes); name a new one", name,
                       AUDIT_FILE_MAX);
    return 0;
}

/* --- lines for people
 * ----------------------------------------------------------------------------------------------- */

static void add_what(struct buf *out, const json_t *o)
{
    const char *method = field_text(o, "method");
    if (*method) {
        text_add_safe(out, method, 16);
        buf_addc(out, ' ');
    }
    text_add_safe(out, field_text(o, "host"), 120);
    if (json_object_get(o, "port"))
        buf_addf(out, ":%d", (int)json_integer_value(json_object_get(o, "port")));
    text_add_safe(out, field_text(o, "path"), 120);
}

static void add_result(struct buf *out, const json_t *o)
{
    const json_t *status = json_object_get(o, "status"), *count = json_object_get(o, "count");
    uint64_t up = (uint64_t)json_integer_value(json_object_get(o, "bytes_up"));
    uint64_t down = (uint64_t)json_integer_value(json_object_get(o, "bytes_down"));
    if (status)
        buf_addf(out, "  %d", (int)json_integer_value(status));
    if (*field_text(o, "reason")) {
        buf_adds(out, "  ");
        text_add_safe(out, field_text(o, "reason"), 40);
    }
    if (*field_text(o, "rule")) {
        buf_adds(out, "  rule ");
        text_add_safe(out, field_text(o, "rule"), 64);
    }
    if (count)
        buf_addf(out, "  %d times", (int)json_integer_value(count));
    if (json_object_get(o, "bytes_up")) {
        buf_adds(out, "  ");
        num_add_size(out, up);
        buf_adds(out, " up, ");
        num_add_size(out, down);
        buf_adds(out, " down");
    }
}

static void add_row(struct buf *out, const json_t *o)
{
    const char *at = field_text(o, "ts"), *kind = field_text(o, "kind"), *verdict = field_text(o, "verdict");
    text_add_safe(out, at, 19);
    out->n = strlen(at) > 19 ? out->n - 3 : out->n; /* drop the ellipsis */
    if (!*field_text(o, "sandbox")) {
        buf_adds(out, "  log ");
        text_add_safe(out, kind, 20);
        if (json_object_get(o, "lines"))
            buf_addf(out, ": %" JSON_INTEGER_FORMAT " lines could not be written",
                     json_integer_value(json_object_get(o, "lines")));
        if (json_object_get(o, "cut"))
            buf_addf(out, ": %" JSON_INTEGER_FORMAT " bytes of an unfinished line were cut off",
                     json_integer_value(json_object_get(o, "cut")));
    } else {
        _cleanup_buf_ struct buf sandbox = {0}, safe_kind = {0}, safe_verdict = {0};
        text_add_safe(&sandbox, field_text(o, "sandbox"), 40);
        text_add_safe(&safe_kind, kind, 16);
        text_add_safe(&safe_verdict, verdict, 16);
        buf_addf(out, "  %-26s  %-9s  %-10s  ", sandbox.p, buf_str(&safe_kind), buf_str(&safe_verdict));
        add_what(out, o);
        add_result(out, o);
    }
}

static bool print_line(const struct options *o, const char *line, size_t n)
{
    _cleanup_buf_ struct buf out = {0};
    if (o->json) {
        buf_add(&out, line, n);
    } else {
        _cleanup_json_ json_t *j = json_loadb(line, n, 0, NULL);
        if (json_is_object(j))
            add_row(&out, j);
        else
            buf_adds(&out, "(not a line of the log; see `hutch audit verify`)");
    }
    buf_addc(&out, '\n');
    return fwrite(out.p, 1, out.n, stdout) == out.n && (!o->follow || fflush(stdout) == 0);
}

/* --- commands
 * ------------------------------------------------------------------------------------------------------- */

static bool tail_line(void *arg, const char *line, size_t n) { return print_line(arg, line, n); }

static bool host_fits(const char *want, const char *host)
{
    size_t n = strlen(host), w = strlen(want);
    if (want[0] != '.')
        return strcmp(want, host) == 0;
    return strcmp(want + 1, host) == 0 || (n > w && strcmp(host + n - w, want) == 0);
}

static bool audit_line_matches(const struct options *o, const char *line, size_t n)
{
    static const char start[] = "{\"ts\":\"";
    size_t skip = sizeof start - 1;
    if (n < skip + 19 || memcmp(line, start, skip) != 0)
        return false;
    if (o->since[0] && strncmp(line + skip, o->since, strlen(o->since)) < 0)
        return false;
    if (o->until[0] && strncmp(line + skip, o->until, strlen(o->until)) > 0)
        return false;
    const char *const rare[] = {o->sandbox, o->tenant, o->verdict}; /* cheaper than reading the line */
    for (size_t i = 0; i < ARRAY_LEN(rare); i++)
        if (rare[i] && !memmem(line, n, rare[i], strlen(rare[i])))
            return false;
    if (!o->sandbox && !o->tenant && !o->host && !o->verdict)
        return true;
    _cleanup_json_ json_t *j = json_loadb(line, n, 0, NULL);
    return (!o->sandbox || strcmp(field_text(j, "sandbox"), o->sandbox) == 0) &&
           (!o->tenant || strcmp(field_text(j, "tenant"), o->tenant) == 0) &&
           (!o->verdict || strcmp(field_text(j, "verdict"), o->verdict) == 0) &&
           (!o->host || host_fits(o->host, field_text(j, "host")));
}

static bool query_line(void *arg, const char *line, size_t n)
{
    return !audit_line_matches(arg, line, n) || print_line(arg, line, n);
}

static void print_broken(const char *name, const struct audit_problem *p, uint64_t lines)
{
    if (p->line)
        printf("broken: %s/%s, line %" PRIu64 ": %s\n", name, p->file, p->line, p->text);
    else
        printf("broken: %s/%s: %s\n", name, p->file, p->text);
    printf("%" PRIu64 " lines before it are whole\n", lines);
}

/* Lines kept from files that were removed to make room. */
static int verify_kept(int dir, const char *name, struct err *err)
{
    struct audit_problem problem = {0};
    uint64_t lines = 0;
    int r = audit_verify_kept(dir, &lines, &problem, err);
    if (r > 0)
        print_broken(name, &problem, lines);
    else if (r == 0 && lines > 0)
        printf("whole: %" PRIu64 " lines kept from files that were removed to make room\n", lines);
    return r > 0 ? AUDIT_BROKEN : r;
}

static int audit_verify_log(const struct options *o, int dir, const char *name, struct err *err)
{
    _cleanup_free_ uint32_t *files = NULL;
    struct audit_problem problem = {0};
    char last[AUDIT_HASH], known[AUDIT_HASH + 8];
    uint64_t lines = 0;
    size_t n = 0;
    bool found = false;
    (void)snprintf(known, sizeof known, "%s%s", o->last && strncmp(o->last, "sha256:", 7) != 0 ? "sha256:" : "",
                   o->last ? o->last : "");
    if (o->last && (strlen(known) != AUDIT_HASH - 1 || strspn(known + 7, "0123456789abcdef") != AUDIT_HASH - 8))
        return err_set(err, ERR_USAGE, 0,
                       "audit verify: --last wants a hash as verify prints it: sha256: and 64 digits");
    if (!o->file && audit_files(dir, &files, &n, err) < 0)
        return -1;
    int r = o->file ? audit_verify_file(dir, o->last ? known : NULL, &found, &lines, last, &problem, err)
                    : audit_verify_known(dir, o->last ? known : NULL, &found, &lines, last, &problem, err);
    if (r < 0)
        return -1;
    if (r > 0) {
        if (o->file)
            printf("broken: %s, line %" PRIu64 ": %s\n%" PRIu64 " lines before it are whole\n", name, problem.line,
                   problem.text, lines);
        else
            print_broken(name, &problem, lines);
        return AUDIT_BROKEN;
    }
    if (o->last && !found) {
        printf("broken: no line has the hash %s; lines were cut off the end, or the log was written anew\n", known);
        return AUDIT_BROKEN;
    }
    if (o->file)
        printf("whole: %" PRIu64 " lines\n", lines);
    else
        printf("whole: %" PRIu64 " lines in %zu files\n", lines, n);
    if (n > 0 && files[0] > 1)
        printf("begins with file %u; older ones were removed to make room\n", files[0]);
    r = o->file ? 0 : verify_kept(dir, name, err);
    if (r != 0)
        return r;
    if (o->last)
        printf("the line of --last is there\n");
    printf("last: %s\n", last);
    return 0;
}

static int run_command(const char *what, const struct options *o, struct err *err)
{
    _cleanup_free_ char *name = NULL;
    _cleanup_close_ int dir = audit_open_log(o, &name, err);
    int r;
    if (dir < 0)
        return -1;
    if (strcmp(what, "verify") == 0)
        r = audit_verify_log(o, dir, name, err);
    else if (strcmp(what, "query") == 0)
        r = audit_each_kept(dir, query_line, (void *)o, err) < 0 ? -1
                                                                 : audit_each(dir, false, query_line, (void *)o, err);
    else
        r = audit_tail(dir, o->lines, o->follow, tail_line, (void *)o, err);
    if (r == 0 && fflush(stdout) != 0)
        return err_set(err, ERR_INTERNAL, 0, "audit: standard output is closed or full");
    return r;
}

#define COMMON \
    {"dir", required_argument, NULL, 'D'}, {"help", no_argument, NULL, 'h'}, { NULL, 0, NULL, 0 }

int cmd_audit(int argc, char **argv)
{
    static const struct option tail[] = {{"follow", no_argument, NULL, 'f'},
                                         {"lines", required_argument, NULL, 'n'},
                                         {"json", no_argument, NULL, 'j'},
                                         COMMON};
    static const struct option query[] = {
        {"sandbox", required_argument, NULL, 's'}, {"tenant", required_argument, NULL, 't'},
        {"host", required_argument, NULL, 'H'},    {"verdict", required_argument, NULL, 'v'},
        {"since", required_argument, NULL, 'S'},   {"until", required_argument, NULL, 'U'},
        {"json", no_argument, NULL, 'j'},          COMMON};
    static const struct option check[] = {{"last", required_argument, NULL, 'l'}, COMMON};
    static const struct {
        const char *name, *shorts;
        const struct option *list;
    } commands[] = {{"tail", ":hfn:", tail}, {"query", ":h", query}, {"verify", ":h", check}};
    struct options o = {.lines = LINES_SHOWN};
    const char *what = argc > 1 ? argv[1] : "";
    struct err err = {0};
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(what, commands[i].name) != 0)
            continue;
        int r = read_options(argc - 1, argv + 1, commands[i].shorts, commands[i].list, &o, &err);
        if (r == 0)
            r = run_command(what, &o, &err);
        else if (r > 0)
            r = 0;
        return r < 0 ? cli_fail(&err) : r;
    }
    fputs(usage, stderr);
    return ERR_USAGE;
}
