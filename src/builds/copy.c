/* COPY: our own program inside the sandbox unpacks an upload, which the layer store has already converted into a lay
 * stream. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "builds/builds-int.h"

const char build_tool[] = "/.hutch/hutch";

void build_blob_name(const struct tenant *t, const char *hash, char ret[SHA256_HEX])
{
    _cleanup_buf_ struct buf text = {0};
    char owner[SHA256_HEX];
    buf_addf(&text, "uploads of\n%s\n", t->id);
    sha256_hex(text.p, text.n, owner);
    text.n = 0;
    buf_addf(&text, "upload 1\n%s\n%s\n", t->id, hash);
    sha256_hex(text.p, text.n, ret);
    memcpy(ret, owner, LAYERS_BLOB_OWNER); /* the layer store counts uploads per owner by these digits */
}

static void build_copy_lay(struct build_own *b, const struct build_step *s, int fd, build_ran *ran)
{
    const char *owner = s->args.n > 2 && *s->args.v[2] ? s->args.v[2] : b->ctx.user;
    const char *mode = s->args.n > 3 ? s->args.v[3] : "";
    _cleanup_free_ char *dest = build_path(&b->ctx, s->args.v[1]);
    if (!dest) {
        (void)close(fd);
        build_path_fail(b);
        return;
    }
    const char *args[12] = {"lay", "--src", s->args.v[0], "--dest", dest, "--owner", owner};
    if (*mode) {
        args[7] = "--mode";
        args[8] = mode;
    }
    struct build_command c = {
        .cmd = build_tool, .args = args, .user = "root", .cwd = "/", .input = fd, .timeout_ms = BUILD_RUN_MS};
    build_sandbox_run(b, &c, ran);
}

static void build_copy_on_blob(void *arg, const struct layers_reply *r, int fd)
{
    struct build_own *b = arg;
    const struct build_step *s = &b->plan.steps[b->at];
    build_then *failed = b->then;
    char text[LAYERS_TEXT_MAX + 80];
    b->call = 0;
    b->then = NULL;
    if (r->error == LAYERS_OK && fd >= 0) {
        build_copy_lay(b, s, fd, b->ran);
        return;
    }
    if (fd >= 0)
        (void)close(fd);
    if (r->error == LAYERS_NOT_FOUND)
        (void)snprintf(text, sizeof text, "the files of this step were not uploaded: filesHash %s", s->hash);
    else
        (void)snprintf(text, sizeof text, "the files of this step cannot be read: %.*s", LAYERS_TEXT_MAX - 1, r->text);
    b->ran = NULL;
    failed(b, text);
}

void build_copy(struct build_own *b, const struct build_step *s, build_ran *ran, build_then *failed)
{
    char blob[SHA256_HEX];
    if (s->from >= 0) {
        build_copy_lay(b, s, TAKE_FD(b->read_fd), ran);
        return;
    }
    b->ran = ran;
    b->then = failed;
    build_blob_name(b->b.tenant, s->hash, blob);
    struct layersc *layers = build_layers(b, build_copy_on_blob);
    if (layers)
        b->call = layersc_blob(layers, &(struct layersc_to){.done = build_copy_on_blob, .arg = b}, blob);
}
