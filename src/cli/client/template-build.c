/* template-build.c - hutch template build: a Dockerfile and its context, through the same requests that E2B's SDKs make. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/path.h"
#include "base/text.h"
#include "cli/client/progress.h"
#include "cli/client/template.h"
#include "cli/files/context.h"
#include "cli/files/dockerfile.h"

/* A cached build takes milliseconds, others minutes: while no log line comes, poll less and less often. */
enum { POLL_MIN_MS = 10, POLL_MAX_MS = 250, TEXT_MAX_BYTES = 4096 };

struct building {
    const struct node_call *call;
    const struct template_options *o;
    struct dockerfile file;
    struct context context;
    char template[64], build[64];
    char step[80]; /* that runs, number `at` of `of`; 0: none yet */
    unsigned at, of;
};

static int read_dockerfile(struct building *b, const char *dir, struct err *err)
{
    _cleanup_free_ char *path = b->o->file ? xstrdup(b->o->file) : path_join(dir, "Dockerfile");
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, path, DOCKERFILE_MAX, &text) < 0)
        return err_set(err, ERR_USAGE, errno, "cannot read %s", path);
    if (dockerfile_parse(buf_str(&text), text.n, path, &b->o->build_args, b->o->target, &b->file, err) < 0)
        return -1;
    for (size_t i = 0; i < b->file.notes.n; i++)
        (void)fprintf(stderr, "hutch: %s:%s\n", path, b->file.notes.v[i]);
    return 0;
}

/* Registers the build under its name, from -t or the directory. */
static int build_request(struct building *b, const char *dir, struct err *err)
{
    _cleanup_json_ json_t *body = json_object(), *answer = NULL;
    _cleanup_free_ char *real = realpath(dir, NULL);
    uint64_t n;
    const char *name = b->o->tag ? b->o->tag : real ? path_name(real) : "";
    if (!*name)
        return err_set(err, ERR_USAGE, 0, "template: give the result a name: -t NAME[:TAG]");
    (void)json_object_set_new(body, "name", json_string(name));
    if (b->o->cpu) {
        if (!num_u64(b->o->cpu, &n) || n == 0 || n > 1024)
            return err_set(err, ERR_USAGE, 0, "template: --cpu must be a number of CPUs, not '%.20s'", b->o->cpu);
        (void)json_object_set_new(body, "cpuCount", json_integer((json_int_t)n));
    }
    if (b->o->memory) {
        if (!num_size(b->o->memory, &n) || n < 1 << 20)
            return err_set(err, ERR_USAGE, 0, "template: --memory must be a size like 2G, not '%.20s'", b->o->memory);
        (void)json_object_set_new(body, "memoryMB", json_integer((json_int_t)(n >> 20)));
    }
    _cleanup_free_ char *text = json_dumps(body, JSON_COMPACT);
    if (!text || api_call(&b->call->api, "POST", "/v3/templates", text, &answer, NULL, err) < 0)
        return text ? -1 : err_set(err, ERR_USAGE, 0, "template: the name is not UTF-8");
    (void)snprintf(b->template, sizeof b->template, "%s", field_text(answer, "templateID"));
    (void)snprintf(b->build, sizeof b->build, "%s", field_text(answer, "buildID"));
    return *b->template && *b->build ? 0 : err_set(err, ERR_HOST, 0, "the node's answer has no templateID or buildID");
}

/* --- uploads ------------------------------------------------------------------------------------------------------ */

/* Uses only the path of the URL: the node is reached as for all other requests. */
static int build_put_archive(const struct building *b, const char *url, int fd, const char *what, struct err *err)
{
    struct stat st;
    const char *host = strstr(url, "://"), *path = host ? strchr(host + 3, '/') : NULL;
    struct blocking s;
    if (!path || fstat(fd, &st) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        return err_set(err, ERR_HOST, 0, "the node's URL for the upload is not valid");
    struct api_request q = {.method = "PUT",
                            .path = path,
                            .type = "application/octet-stream",
                            .length = (uint64_t)st.st_size,
                            .body_fd = fd,
                            .progress = progress_bytes,
                            .progress_what = what};
    if (api_send(&b->call->api, &q, &s, err) < 0)
        return -1;
    int rc = s.answer.status >= 300 ? api_refused(&s, err) : 0;
    blocking_close(&s);
    return rc;
}

static int build_upload_files(const struct building *b, const struct dockerfile_step *step, char hash[SHA256_HEX],
                              struct err *err)
{
    _cleanup_strv_ struct strv files = {0};
    _cleanup_json_ json_t *answer = NULL;
    const char *source = step->args.v[0];
    if (context_files(&b->context, source, &files, err) < 0 ||
        context_hash(&b->context, source, step->args.v[1], &files, hash, err) < 0)
        return err_wrap(err, "line %u: COPY", step->line);
    _cleanup_free_ char *path = xasprintf("/templates/%s/files/%s", b->template, hash);
    if (api_call(&b->call->api, "GET", path, NULL, &answer, NULL, err) < 0)
        return -1;
    if (json_is_true(json_object_get(answer, "present")))
        return 0;
    _cleanup_close_ int fd = template_temp(err);
    if (fd < 0 || context_tar(&b->context, &files, fd, err) < 0)
        return -1;
    (void)fprintf(stderr, "uploading %s (%zu files)\n", source, files.n);
    return build_put_archive(b, field_text(answer, "url"), fd, source, err);
}

/* --- start and wait ----------------------------------------------------------------------------------------------- */

static void set_from(const struct dockerfile_stage *s, json_t *to)
{
    if (s->from_stage >= 0)
        (void)json_object_set_new(to, "fromStage", json_integer(s->from_stage));
    else if (strncmp(s->from, "hutch/", 6) == 0)
        (void)json_object_set_new(to, "fromTemplate", json_string(s->from + 6));
    else
        (void)json_object_set_new(to, "fromImage", json_string(strcmp(s->from, "base") == 0 ? "e2bdev/base" : s->from));
}

static int add_step(const struct building *b, const struct dockerfile_step *s, json_t *steps, struct err *err)
{
    char hash[SHA256_HEX] = "";
    if (s->type == DOCKERFILE_COPY && s->from < 0 && build_upload_files(b, s, hash, err) < 0)
        return -1;
    json_t *o = json_pack("{s:s, s:o, s:b}", "type", dockerfile_type_name(s->type), "args", node_json_strings(&s->args),
                          "force", 0);
    if (hash[0])
        (void)json_object_set_new(o, "filesHash", json_string(hash));
    if (s->from >= 0)
        (void)json_object_set_new(o, "fromStage", json_integer(s->from));
    (void)json_array_append_new(steps, o);
    return 0;
}

/* From the start of the build on, Ctrl-C and the like end it on the node too. */
static void catch_signals(sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGINT);
    (void)sigaddset(set, SIGTERM);
    (void)sigaddset(set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, set, NULL);
}

static int build_send_stages(struct building *b, sigset_t *signals, struct err *err)
{
    _cleanup_json_ json_t *body = json_object(), *answer = NULL;
    json_t *stages = json_array();
    (void)json_object_set_new(body, "stages", stages);
    (void)json_object_set_new(body, "force", json_boolean(b->o->no_cache));
    if (b->file.start)
        (void)json_object_set_new(body, "startCmd", json_string(b->file.start));
    if (b->o->ready)
        (void)json_object_set_new(body, "readyCmd", json_string(b->o->ready));
    for (size_t i = 0, at = 0; i < b->file.nstages; i++) {
        json_t *stage = body, *steps = json_array();
        if (i + 1 < b->file.nstages)
            (void)json_array_append_new(stages, stage = json_object());
        (void)json_object_set_new(stage, "steps", steps);
        set_from(&b->file.stages[i], stage);
        for (; at < b->file.stages[i].end; at++)
            if (add_step(b, &b->file.steps[at], steps, err) < 0)
                return -1;
    }
    _cleanup_free_ char *text = json_dumps(body, JSON_COMPACT),
                        *path = xasprintf("/v2/templates/%s/builds/%s", b->template, b->build);
    if (!text)
        return err_set(err, ERR_USAGE, 0, "template: the Dockerfile is not UTF-8");
    catch_signals(signals);
    return api_call(&b->call->api, "POST", path, text, &answer, NULL, err);
}

/* Notes the step from "[builder 2/5] RUN ..." or "CACHED [builder ...". */
static void build_note_step(struct building *b, const char *message)
{
    unsigned at, of;
    const char *mark = strncmp(message, "CACHED ", 7) == 0 ? message + 7 : message;
    if (sscanf(mark, "[builder %3u/%3u]", &at, &of) != 2 || at == 0 || at > of)
        return;
    b->at = at;
    b->of = of;
    const char *text = strstr(mark, "] ");
    (void)snprintf(b->step, sizeof b->step, "%s", text ? text + 2 : "");
}

/* With --json standard output has the result only. */
static size_t build_show_log(struct building *b, const json_t *entries)
{
    size_t n = json_array_size(entries);
    FILE *to = b->call->json ? stderr : stdout;
    if (n > 0)
        progress_clear();
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(entries, i);
        _cleanup_buf_ struct buf safe = {0};
        if (strcmp(field_text(e, "level"), "debug") == 0)
            continue;
        build_note_step(b, field_text(e, "message"));
        text_add_safe(&safe, field_text(e, "message"), TEXT_MAX_BYTES);
        (void)fprintf(to, "%s\n", buf_str(&safe));
    }
    (void)fflush(to);
    if (n > 0 && b->at)
        progress_steps(b->step, b->at - 1, b->of);
    return n;
}

static int cancel_build(const struct building *b, int signal_number, struct err *err)
{
    _cleanup_json_ json_t *answer = NULL;
    _cleanup_free_ char *path = xasprintf("/v1/templates/%s/builds/%s", b->template, b->build);
    progress_clear();
    if (api_call(&b->call->api, "DELETE", path, NULL, &answer, NULL, err) < 0)
        return err_wrap(err, "template: the build goes on");
    (void)fprintf(stderr, "hutch: the build was cancelled\n");
    return 128 + signal_number;
}

/* 0: ready; 1: failed; 128 + N: signal N cancelled it; -1. */
static int build_wait(struct building *b, const sigset_t *signals, struct err *err)
{
    unsigned int pause_ms = POLL_MIN_MS;
    for (size_t offset = 0;;) {
        _cleanup_json_ json_t *j = NULL;
        _cleanup_free_ char *path =
            xasprintf("/templates/%s/builds/%s/status?logsOffset=%zu", b->template, b->build, offset);
        if (api_call(&b->call->api, "GET", path, NULL, &j, NULL, err) < 0)
            return -1;
        size_t n = build_show_log(b, json_object_get(j, "logEntries"));
        const char *status = field_text(j, "status");
        offset += n;
        if (n > 0) { /* there may be more at once */
            int got = sigtimedwait(signals, NULL, &(const struct timespec){0});
            if (got > 0)
                return cancel_build(b, got, err);
            pause_ms = POLL_MIN_MS;
            continue;
        }
        if (strcmp(status, "ready") == 0)
            return 0;
        if (strcmp(status, "error") == 0) {
            progress_clear();
            const json_t *reason = json_object_get(j, "reason");
            const char *step = field_text(reason, "step");
            _cleanup_buf_ struct buf safe = {0};
            text_add_safe(&safe, field_text(reason, "message"), TEXT_MAX_BYTES);
            (void)fprintf(stderr, "hutch: the build failed%s%s: %s\n", *step ? " in step " : "", step, buf_str(&safe));
            return 1;
        }
        int got = sigtimedwait(signals, NULL, &(const struct timespec){.tv_nsec = pause_ms * 1000000L});
        if (got > 0)
            return cancel_build(b, got, err);
        pause_ms = pause_ms * 2 < POLL_MAX_MS ? pause_ms * 2 : POLL_MAX_MS;
    }
}

int template_build(const struct node_call *call, const struct template_options *o, struct err *err)
{
    struct building b = {.call = call, .o = o, .context = {.dir = -1}};
    const char *dir = call->nargs ? call->args[0] : ".";
    sigset_t signals;
    int rc = read_dockerfile(&b, dir, err);
    if (rc == 0)
        rc = context_open(&b.context, dir, err);
    if (rc == 0)
        rc = build_request(&b, dir, err);
    if (rc == 0)
        rc = build_send_stages(&b, &signals, err);
    if (rc == 0)
        rc = build_wait(&b, &signals, err);
    progress_clear();
    if (rc == 0 && call->json)
        (void)printf("{\"templateID\":\"%s\",\"buildID\":\"%s\"}\n", b.template, b.build);
    dockerfile_done(&b.file);
    context_done(&b.context);
    return rc;
}
