/* template.c - hutch template: lists, shows, changes and exports templates. */
#include "cli/client/template.h"
#include "base/text.h"
#include "cli/client/commands.h"
#include "cli/client/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/strv.h"
#include "http/url.h"

enum { READ_BYTES = 1 << 16 };

static const char usage[] =
    "usage: hutch template ls [--json]\n"
    "       hutch template inspect NAME[:TAG]\n"
    "       hutch template wait NAME\n"
    "       hutch template rm NAME[:TAG]...\n"
    "       hutch template set NAME [--history on|off] [--public on|off]\n"
    "       hutch template build [-f Dockerfile] [-t NAME[:TAG]] [options] [CONTEXT]\n"
    "       hutch template import [-t NAME[:TAG]] FILE|DIRECTORY|IMAGE|-\n"
    "       hutch template export [-o FILE] NAME[:TAG]\n"
    "       hutch template restore -t NAME[:TAG] FILE|-\n\n"
    "What sandboxes can be made from: `host`, this machine's own root; `base`, a Debian with Python, Node.js and "
    "compilers;\n"
    "`slim`, a small one; what was built here with this command or an SDK; images that were imported (docker save, "
    "skopeo, OCI layouts, or a reference to fetch).\n\n"
    "  -f, --file FILE        the Dockerfile (CONTEXT/Dockerfile)\n"
    "  -t, --tag NAME[:TAG]   what the result is called (the name of the directory, or of the image)\n"
    "      --cpu N            CPUs of its sandboxes\n"
    "      --memory SIZE      their memory, like 2G\n"
    "      --build-arg K=V    a value for ARG; may be repeated\n"
    "      --target STAGE     the stage of the Dockerfile that is wanted (the last one)\n"
    "      --ready COMMAND    a new sandbox is there once this succeeds; the start command is CMD of the Dockerfile\n"
    "      --no-cache         run every step, whatever was built before\n"
    "      --username NAME    of the registry; the password is read from standard input with --password-stdin\n"
    "  -o, --output FILE      where the export goes (standard output)\n"
    "      --history on|off   keep a generation of its sandboxes' files after every command (off)\n"
    "      --public on|off    let other tenants use it (off)\n\n"
    "examples:\n"
    "  hutch template build -t my-agent .                 then: hutch create my-agent\n"
    "  docker save python:3.12 | hutch template import -t python:3.12 -\n"
    "  hutch template import debian:bookworm              fetched by the node\n";

static const char *tags_of(const json_t *t, struct buf *out)
{
    const json_t *tags = json_object_get(t, "tags");
    for (size_t i = 0; i < json_array_size(tags); i++)
        buf_addf(out, "%s%s", i ? "," : "", field_text(json_array_get(tags, i), "tag"));
    return out->n ? buf_str(out) : "-";
}

/* The references its tags were fetched from, each once. */
static const char *images_of(const json_t *t, struct buf *out)
{
    _cleanup_strv_ struct strv seen = {0};
    const json_t *tags = json_object_get(t, "tags");
    for (size_t i = 0; i < json_array_size(tags); i++) {
        const char *image = field_text(json_array_get(tags, i), "image");
        if (!*image || strv_has(&seen, image))
            continue;
        buf_addf(out, "%s%s", seen.n ? "," : "", image);
        strv_add(&seen, image);
    }
    return out->n ? buf_str(out) : "-";
}

static int template_list(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    int rc = node_get(call, "/v1/templates", &j, err);
    if (rc <= 0)
        return rc;
    struct node_table t = node_table_with("NAME", "STATE", "KIND", "OWNER", "TAGS", "SIZE", "STARTED", "IMAGE", NULL);
    const json_t *all = json_object_get(j, "templates");
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *x = json_array_get(all, i);
        _cleanup_buf_ struct buf tags = {0}, size = {0}, images = {0};
        json_int_t bytes = json_integer_value(json_object_get(x, "bytes"));
        if (bytes > 0)
            num_add_size(&size, (uint64_t)bytes);
        node_cell(&t, "%s", *field_text(x, "name") ? field_text(x, "name") : field_text(x, "id"));
        node_cell(&t, "%s", *field_text(x, "state") ? field_text(x, "state") : "ready");
        node_cell(&t, "%s", field_text(x, "kind"));
        node_cell(&t, "%s", field_text(x, "owner"));
        node_cell(&t, "%s", tags_of(x, &tags));
        node_cell(&t, "%s", size.n ? buf_str(&size) : "-");
        node_cell(&t, "%lld", (long long)json_integer_value(json_object_get(x, "spawned")));
        node_cell_whole(&t, images_of(x, &images));
    }
    node_print_table(&t);
    return 0;
}

static char *row_path(const char *name, const char *rest)
{
    _cleanup_buf_ struct buf path = {0};
    buf_adds(&path, "/v1/templates/");
    url_encode(&path, name, strlen(name), "");
    buf_adds(&path, rest);
    return xstrdup(buf_str(&path));
}

static int template_show_one(const struct node_call *call, struct err *err)
{
    _cleanup_json_ json_t *j = NULL;
    _cleanup_free_ char *path = row_path(call->args[0], "");
    if (api_call(&call->api, "GET", path, NULL, &j, NULL, err) < 0)
        return -1;
    node_print_json(j);
    return 0;
}

static int add_switch(struct json *j, const char *name, const char *text, struct err *err)
{
    if (text && strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return err_set(err, ERR_USAGE, 0, "--%s is on or off, not '%s'", name, text);
    if (text)
        json_bool(j, name, strcmp(text, "on") == 0);
    return 0;
}

static int template_set_flags(const struct node_call *call, const struct template_options *o, struct err *err)
{
    _cleanup_free_ char *path = row_path(call->args[0], "");
    _cleanup_buf_ struct buf body = {0};
    struct json j;
    if (!o->history && !o->public)
        return err_set(err, ERR_USAGE, 0, "template set: say --history on|off or --public on|off");
    json_start(&j, &body);
    json_obj(&j, NULL);
    if (add_switch(&j, "history", o->history, err) < 0 || add_switch(&j, "public", o->public, err) < 0)
        return -1;
    json_end_obj(&j);
    return api_call(&call->api, "PATCH", path, buf_str(&body), NULL, NULL, err);
}

static int remove_all(const struct node_call *call, struct err *err)
{
    for (int i = 0; i < call->nargs; i++) {
        _cleanup_free_ char *path = row_path(call->args[i], "");
        if (api_call(&call->api, "DELETE", path, NULL, NULL, NULL, err) < 0)
            return -1;
    }
    return 0;
}

static int copy_out(struct blocking *s, int fd, const char *name, struct err *err)
{
    _cleanup_free_ char *room = xmalloc(READ_BYTES);
    ssize_t n;
    uint64_t done = 0;
    while ((n = api_read(s, room, READ_BYTES, -1, NULL, err)) > 0) {
        if (fd_write_all(fd, room, (size_t)n) < 0)
            return err_set(err, ERR_SETUP, errno, "cannot write %s", name);
        progress_bytes(name, done += (uint64_t)n, s->answer.length, false);
    }
    if (n == 0)
        progress_bytes(name, done, s->answer.length, true);
    return n < 0 ? -1 : 0;
}

/* Writes under a temporary name until the export is complete. */
static int template_export(const struct node_call *call, const struct template_options *o, struct err *err)
{
    _cleanup_free_ char *path = row_path(call->args[0], "/export"), *part = NULL;
    struct api_request q = {.method = "GET", .path = path, .body_fd = -1};
    struct blocking s;
    bool to_file = o->output && strcmp(o->output, "-") != 0;
    if (!to_file && isatty(STDOUT_FILENO))
        return err_set(err, ERR_USAGE, 0, "template: an export is binary: name a file with -o FILE");
    if (api_send(&call->api, &q, &s, err) < 0)
        return -1;
    if (s.answer.status >= 400) {
        (void)api_refused(&s, err);
        blocking_close(&s);
        return -1;
    }
    const char *left_out = http_field(&s.answer.fields, "x-hutch-left-out");
    _cleanup_buf_ struct buf note = {0};
    text_add_safe(&note, left_out ? left_out : "", 200);
    _cleanup_close_ int fd = -1;
    if (to_file) {
        part = xasprintf("%s.part", o->output);
        fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    }
    int rc = to_file && fd < 0
                 ? err_set(err, ERR_USAGE, errno, "cannot write %s", part)
                 : copy_out(&s, to_file ? fd : STDOUT_FILENO, to_file ? o->output : "standard output", err);
    blocking_close(&s);
    if (rc == 0 && to_file && rename(part, o->output) < 0)
        rc = err_set(err, ERR_SETUP, errno, "cannot write %s", o->output);
    if (rc < 0 && part)
        (void)unlink(part);
    if (rc == 0 && note.n)
        (void)fprintf(stderr, "hutch: %s\n", buf_str(&note));
    return rc;
}

static int template_dispatch(const char *verb, const struct node_call *call, const struct template_options *o,
                             struct err *err)
{
    int n = call->nargs;
    if (strcmp(verb, "ls") == 0 && n == 0)
        return template_list(call, err);
    if (strcmp(verb, "inspect") == 0 && n == 1)
        return template_show_one(call, err);
    if (strcmp(verb, "wait") == 0 && n == 1)
        return template_wait(call, err);
    if (strcmp(verb, "set") == 0 && n == 1)
        return template_set_flags(call, o, err);
    if (strcmp(verb, "rm") == 0 && n >= 1)
        return remove_all(call, err);
    if (strcmp(verb, "build") == 0 && n <= 1)
        return template_build(call, o, err);
    if (strcmp(verb, "import") == 0 && n == 1)
        return template_import(call, o, err);
    if (strcmp(verb, "export") == 0 && n == 1)
        return template_export(call, o, err);
    if (strcmp(verb, "restore") == 0 && n == 1)
        return template_restore(call, o, err);
    return err_set(err, ERR_USAGE, 0,
                   "template: say ls, inspect NAME, wait NAME, rm NAME, set NAME, build [CONTEXT], import WHAT, export "
                   "NAME or restore FILE; "
                   "see hutch template --help");
}

int cmd_template(int argc, char **argv)
{
    struct template_options o = {0};
    const struct node_option options[] = {{"file", 'f', NULL, &o.file, NULL},
                                          {"tag", 't', NULL, &o.tag, NULL},
                                          {"cpu", 0, NULL, &o.cpu, NULL},
                                          {"memory", 0, NULL, &o.memory, NULL},
                                          {"output", 'o', NULL, &o.output, NULL},
                                          {"username", 0, NULL, &o.username, NULL},
                                          {"password-stdin", 0, &o.password_stdin, NULL, NULL},
                                          {"build-arg", 0, NULL, NULL, &o.build_args},
                                          {"target", 0, NULL, &o.target, NULL},
                                          {"ready", 0, NULL, &o.ready, NULL},
                                          {"history", 0, NULL, &o.history, NULL},
                                          {"public", 0, NULL, &o.public, NULL},
                                          {"no-cache", 0, &o.no_cache, NULL, NULL},
                                          {0}};
    const struct node_command c = {"template", usage, options, 0, -1, false};
    const char *verb = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
    struct node_call call;
    struct err err;
    int code;
    if (node_begin(&c, *verb ? argc - 1 : argc, *verb ? argv + 1 : argv, &call, &code)) {
        strv_done(&o.build_args);
        return code;
    }
    int rc = template_dispatch(verb, &call, &o, &err);
    strv_done(&o.build_args);
    return rc < 0 ? cli_fail(&err) : rc;
}
