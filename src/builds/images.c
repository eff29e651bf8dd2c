/* Finds what a build starts from, and imports images into the database. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "builds/builds-int.h"

enum { CONFIG_MAX = 256 << 10 };

unsigned layers_http_status(uint32_t error)
{
    switch (error) {
    case LAYERS_OK:
        return 0;
    case LAYERS_BAD_REQUEST:
    case LAYERS_BAD_DATA:
        return 400;
    case LAYERS_DENIED:
        return 403;
    case LAYERS_NOT_FOUND:
        return 404;
    case LAYERS_CONFLICT:
        return 409;
    case LAYERS_TOO_LARGE:
        return 413;
    case LAYERS_BUSY:
    case LAYERS_CANCELLED:
        return 503;
    case LAYERS_NO_SPACE:
        return 507;
    default:
        return 500;
    }
}

/* --- imports ------------------------------------------------------------------------------------------------------ */

struct image_call {
    struct image_call *next, **link; /* among all of front */
    struct builds *builds;
    struct tenant *tenant;
    char name[TEMPLATE_NAME_MAX], tag[TEMPLATE_TAG_MAX], stack[STACK_ID_MAX];
    char image[LAYERS_REF_MAX], manifest[SHA256_HEX]; /* "": none, not known */
    struct template_config config;
    bool restore, given, recording;
    uint64_t bytes;
    layersc_call call;
    image_progress *progress;
    image_imported *done;
    void *arg;
};

static void image_call_free(struct image_call *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    state_release(c->builds->stacks, c->stack);
    template_config_done(&c->config);
    free(c);
}

void image_cancel(struct image_call *c)
{
    c->done = NULL;
    c->progress = NULL;
    if (c->recording)
        return; /* the row is being written: image_on_recorded() frees */
    if (c->call)
        layersc_cancel(c->builds->peers->layers, c->call);
    image_call_free(c);
}

void image_calls_free(struct builds *bs)
{
    for (struct image_call *c; (c = bs->imports);) {
        if (c->call)
            layersc_cancel(bs->peers->layers, c->call);
        image_call_free(c);
    }
}

static void image_call_end(struct image_call *c, const struct template *t, const struct state_failure *failure)
{
    image_imported *done = c->done;
    void *arg = c->arg;
    char stack[STACK_ID_MAX];
    struct builds *bs = c->builds;
    memcpy(stack, c->stack, sizeof stack);
    image_call_free(c);
    if (failure)
        state_drop(bs->stacks, stack);
    if (done)
        done(arg, t, failure);
}

static void image_on_default_tagged(void *arg, const struct template *t, const struct state_failure *failure)
{
    image_call_end(arg, t, failure);
}

/* The first tag of a name also becomes its tag `default`. */
static void image_on_recorded(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct image_call *c = arg;
    const struct template_tag *mine = NULL;
    bool has_default = false;
    for (size_t i = 0; !failure && i < t->ntags; i++) {
        has_default |= strcmp(t->tags[i].tag, "default") == 0;
        if (strcmp(t->tags[i].tag, c->tag) == 0)
            mine = &t->tags[i];
    }
    if (failure || has_default || !mine)
        image_call_end(c, t, failure);
    else
        template_tag(c->builds->templates, t, mine, "default", image_on_default_tagged, c);
}

static void image_record(struct image_call *c, uint64_t bytes)
{
    char build[40];
    template_build_new(build);
    struct template_new n = {.name = c->name,
                             .tag = c->tag,
                             .build = build,
                             .stack = c->stack,
                             .tenant = c->tenant,
                             .kind = c->restore ? TEMPLATE_BUILT : TEMPLATE_IMPORTED,
                             .config = &c->config,
                             .image = c->image,
                             .manifest = c->manifest,
                             .given = c->given,
                             .bytes = bytes};
    template_put(c->builds->templates, &n, image_on_recorded, c);
}

static void image_read_config(struct image_call *c, int fd)
{
    _cleanup_buf_ struct buf text = {0};
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd_read_file(AT_FDCWD, path, CONFIG_MAX, &text) == 0)
        build_image_config(buf_str(&text), text.n, &c->config);
}

/* Its layers are counted: checks the quota and writes the row. */
static void image_on_layers_counted(void *arg)
{
    struct image_call *c = arg;
    struct state_failure failure = {0};
    if (state_fits(c->builds->stacks, c->tenant, c->stack, &failure))
        image_record(c, c->bytes);
    else
        image_call_end(c, NULL, &failure);
}

static void image_on_imported(void *arg, const struct layers_reply *r, int fd)
{
    struct image_call *c = arg;
    struct state_failure failure = {.status = layers_http_status(r->error)};
    c->call = 0;
    if (r->error == LAYERS_OK) {
        if (fd >= 0 && !c->restore)
            image_read_config(c, fd);
        if (c->image[0])
            memcpy(c->manifest, r->layer, sizeof c->manifest);
        c->bytes = r->bytes;
        c->recording = true;
        (void)state_layers_ask(c->builds->stacks, c->stack, image_on_layers_counted, c);
    } else {
        (void)snprintf(failure.text, sizeof failure.text, "%.*s", LAYERS_TEXT_MAX - 1, r->text);
        image_call_end(c, NULL, &failure);
    }
    if (fd >= 0)
        (void)close(fd);
}

static void image_on_no_layers(void *arg)
{
    struct layers_reply r = {.error = LAYERS_BUSY, .text = "the process that keeps files is not there; try again"};
    image_on_imported(arg, &r, -1);
}

static void image_on_progress(void *arg, const struct layers_reply *r)
{
    struct image_call *c = arg;
    char text[LAYERS_TEXT_MAX];
    (void)snprintf(text, sizeof text, "%.*s", LAYERS_TEXT_MAX - 1, r->text);
    if (c->progress)
        c->progress(c->arg, r->bytes, r->bytes2, text);
}

/* Credentials go to the worker in a memfd, never through a file system. */
static int image_credentials_fd(const struct builds *bs, const struct image_import *i)
{
    _cleanup_buf_ struct buf text = {0};
    int fd = memfd_create("credentials", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    const char *user = i->user ? i->user : "", *endpoint = bs->config->ecr_endpoint;
    if (i->region)
        buf_addf(&text, "aws:%s:%s\n%s\n%s", i->region, endpoint ? endpoint : "", user, i->password);
    else if (!strpbrk(user, ":\n")) /* else the worker reports an invalid user */
        buf_addf(&text, "%s\n%s", user, i->password ? i->password : "");
    else
        buf_addc(&text, '?');
    if (fd_write_all(fd, text.p, text.n) < 0 || lseek(fd, 0, SEEK_SET) < 0) {
        (void)close(fd);
        fd = -1;
    }
    explicit_bzero(text.p, text.n);
    return fd;
}

struct image_call *image_import(struct builds *bs, const struct image_import *i, image_progress *progress,
                                image_imported *done, void *arg)
{
    struct image_call *c = xcalloc(1, sizeof *c);
    bool listed = false;
    int fd = i->archive;
    c->builds = bs;
    c->link = &bs->imports;
    c->next = bs->imports;
    if (c->next)
        c->next->link = &c->next;
    bs->imports = c;
    c->tenant = i->tenant;
    c->restore = i->restore;
    c->given = i->given;
    c->progress = progress;
    c->done = done;
    c->arg = arg;
    (void)snprintf(c->name, sizeof c->name, "%s", i->name);
    (void)snprintf(c->tag, sizeof c->tag, "%s", i->tag);
    (void)snprintf(c->image, sizeof c->image, "%s", i->image ? i->image : "");
    if (i->config)
        template_config_copy(&c->config, i->config);
    stack_id_new(c->stack);
    state_hold_for(bs->stacks, c->stack, i->tenant);
    const char *ref = fd < 0 ? i->ref : "";
    if (fd < 0) {
        /* Tenants may fetch from public registries and from those that the operator lists. */
        listed = !i->tenant || build_registry_listed(bs->config->image_registries, i->ref);
        if (i->password)
            fd = image_credentials_fd(bs, i);
    }
    const struct layersc_to to = {
        .owner = i->tenant ? i->tenant->id : NULL, .progress = image_on_progress, .done = image_on_imported, .arg = c};
    if (bs->peers->layers && i->restore)
        c->call = layersc_restore(bs->peers->layers, &to, c->stack, fd);
    else if (bs->peers->layers)
        c->call = layersc_import(bs->peers->layers, &to, c->stack, ref, listed, fd);
    else {
        if (fd >= 0)
            (void)close(fd);
        loop_defer(bs->loop, image_on_no_layers, c);
    }
    return c;
}

/* --- what a build starts from ------------------------------------------------------------------------------------- */

static void build_base_tell(struct build_own *b, const char *error)
{
    build_then *then = b->then;
    b->then = NULL;
    then(b, error);
}

static void provision_start(struct build_own *b);

static void build_base_set_key(struct build_own *b, const char *what, uint64_t number)
{
    _cleanup_buf_ struct buf text = {0};
    buf_addf(&text, "from 1\n%s\n%llu\n", what, (unsigned long long)number);
    sha256_hex(text.p, text.n, b->key);
}

static void build_base_set_context(struct build_own *b, const char *user, const char *workdir)
{
    free(b->ctx.user);
    free(b->ctx.workdir);
    b->ctx.user = xstrdup(user);
    b->ctx.workdir = workdir                     ? xstrdup(workdir)
                     : strcmp(user, "root") == 0 ? xstrdup("/root")
                                                 : xasprintf("/home/%s", user);
}

static void build_base_from_row(struct build_own *b, const struct template *t, const struct template_tag *tag)
{
    const struct template_config *c = template_config_of(t, tag);
    build_set_stack(b, tag->stack, false);
    build_base_set_key(b, tag->stack, 0);
    for (size_t i = 0; i < c->env.n; i++)
        strv_add(&b->ctx.env, c->env.v[i]);
    if (template_kind_of(t, tag) == TEMPLATE_IMPORTED) {
        build_base_set_context(b, "user", NULL);
        if (build_stage_bare(b)) /* needs no user, and may have no program that makes one */
            build_base_tell(b, NULL);
        else
            provision_start(b);
        return;
    }
    build_base_set_context(b, c->user ? c->user : "user", c->workdir);
    b->start = c->start ? xstrdup(c->start) : NULL;
    b->ready = c->ready ? xstrdup(c->ready) : NULL;
    build_base_tell(b, NULL);
}

/* From a directory of the templates: base, and those that the operator put there. */
static void build_base_from_directory(struct build_own *b, const char *name)
{
    struct template_info info = {0};
    char text[600];
    if (!template_resolve(b->builds->templates, name, &info)) {
        (void)snprintf(text, sizeof text, "template '%.200s' not found", name);
        build_base_tell(b, text);
    } else if (strcmp(info.name, "host") == 0)
        build_base_tell(
            b,
            "the template 'host' is this machine's own root and cannot be built upon; start from 'base' or an image");
    else if (strcmp(info.state, "ready") != 0) {
        (void)snprintf(text, sizeof text, "template '%s' is not ready: %s", info.name, info.text);
        build_base_tell(b, text);
    } else {
        build_set_stack(b, info.name, false);
        build_base_set_key(b, info.name, info.created_unix);
        build_base_set_context(b, "user", NULL);
        build_base_tell(b, NULL);
    }
}

static void build_base_on_pulled(void *arg, const struct template *t, const struct state_failure *failure)
{
    struct build_own *b = arg;
    char text[800];
    b->import = NULL;
    const char *ref = build_stage_now(b)->from_image;
    if (failure) {
        (void)snprintf(text, sizeof text, "image '%.200s' cannot be fetched: %s", ref, failure->text);
        build_base_tell(b, text);
        return;
    }
    const struct template_tag *at = NULL;
    struct build_image image;
    if (!build_image_parse(ref, &image) || !(t = build_image_find(b, &image, &at))) {
        build_base_tell(b, "the image was removed while it was being fetched");
        return;
    }
    build_log_add(&b->b.log, "base", BUILD_INFO, "fetched %.200s", ref);
    build_base_from_row(b, t, at);
}

static void build_base_on_pull_progress(void *arg, uint64_t done, uint64_t total, const char *text)
{
    struct build_own *b = arg;
    (void)done;
    (void)total;
    if (text[0])
        build_log_add(&b->b.log, "base", BUILD_DEBUG, "%s", text);
}

static void build_base_say_missing(const char *ref, const struct build_image *i, char *ret, size_t room)
{
    char file[200];
    if (i->digest[0])
        (void)snprintf(file, sizeof file, "; a file will not do, as it does not prove the digest");
    else
        (void)snprintf(file, sizeof file, " or from a file (`docker save`) with `-t %s:%s`", i->name, i->tag);
    (void)snprintf(ret, room,
                   "image '%.200s' is not in the store of this node: import it with `hutch template import %.200s`%s, "
                   "or let builds fetch images with images.pull in the configuration",
                   ref, ref, file);
}

static void build_base_from_image(struct build_own *b, const char *ref)
{
    char text[1200];
    struct build_image image;
    const struct template_tag *at = NULL;
    if (strcmp(ref, "e2bdev/base") == 0 || strncmp(ref, "e2bdev/base:", 12) == 0) {
        build_base_from_directory(b, "base");
        return;
    }
    if (!build_image_parse(ref, &image)) {
        (void)snprintf(text, sizeof text,
                       "'%.200s' is no reference of an image, like ubuntu:22.04 or ubuntu@sha256: and 64 digits", ref);
        build_base_tell(b, text);
        return;
    }
    const struct template *t = build_image_find(b, &image, &at);
    if (t) {
        build_base_from_row(b, t, at);
        return;
    }
    if (!b->builds->config->image_pull) {
        build_base_say_missing(ref, &image, text, sizeof text);
        build_base_tell(b, text);
        return;
    }
    struct state_failure full = {0};
    if (!template_room(b->builds->templates, b->b.tenant, image.name, &full)) {
        (void)snprintf(text, sizeof text, "image '%.200s' cannot be kept: %s", ref, full.text);
        build_base_tell(b, text);
        return;
    }
    struct image_import i = {
        .name = image.name, .tag = image.tag, .tenant = b->b.tenant, .archive = -1, .ref = ref, .image = image.ref};
    if (b->stage == b->plan.nstages) { /* the credentials are for this image only, not for other registries */
        i.user = b->plan.registry.user;
        i.password = b->plan.registry.password;
        i.region = b->plan.registry.region;
    }
    build_log_add(&b->b.log, "base", BUILD_INFO, "fetching %.200s", ref);
    b->import = image_import(b->builds, &i, build_base_on_pull_progress, build_base_on_pulled, b);
}

void build_base(struct build_own *b, build_then *then)
{
    const struct template_tag *tag = NULL;
    char text[400];
    const struct build_stage *s = build_stage_now(b);
    b->then = then;
    if (s->from_image) {
        build_base_from_image(b, s->from_image);
        return;
    }
    const struct template *t = template_find(b->builds->templates, b->b.tenant, s->from_template, &tag);
    if (t && tag)
        build_base_from_row(b, t, tag);
    else if (t) {
        (void)snprintf(text, sizeof text, "template '%.200s' has no such tag", s->from_template);
        build_base_tell(b, text);
    } else
        build_base_from_directory(b, s->from_template);
}

/* --- users -------------------------------------------------------------------------------------------------------- */

/* Makes the user $1 if there is none; $2: and lets it become root without a password, if sudo is installed. */
static const char make_user[] =
    "set -e; n=\"$1\"; c=3\n"
    "if ! grep -q \"^$n:\" /etc/passwd 2>/dev/null; then c=0\n"
    "  s=/bin/sh; [ -x /bin/bash ] && s=/bin/bash\n"
    "  if command -v useradd >/dev/null 2>&1; then useradd -m -U -s \"$s\" \"$n\"\n"
    "  elif command -v adduser >/dev/null 2>&1; then adduser -D -s \"$s\" \"$n\"\n"
    "  else u=1000; while grep -q \"^[^:]*:[^:]*:$u:\" /etc/passwd /etc/group 2>/dev/null; do u=$((u+1)); done\n"
    "    echo \"$n:x:$u:$u::/home/$n:$s\" >>/etc/passwd; echo \"$n:x:$u:\" >>/etc/group\n"
    "    mkdir -p \"/home/$n\"; chown \"$u:$u\" \"/home/$n\"\n"
    "  fi\n"
    "fi\n"
    "if [ -n \"$2\" ] && [ -d /etc/sudoers.d ] && [ ! -e /etc/sudoers.d/hutch-user ]; then c=0\n"
    "  echo \"$n ALL=(ALL:ALL) NOPASSWD: ALL\" >/etc/sudoers.d/hutch-user; chmod 0440 /etc/sudoers.d/hutch-user\n"
    "fi\n"
    "exit $c\n";

void build_user(struct build_own *b, const char *name, bool sudo, build_ran *ran)
{
    const char *args[] = {"-c", make_user, "sh", name, sudo ? "sudo" : "", NULL};
    struct build_command c = {
        .cmd = "/bin/sh", .args = args, .user = "root", .cwd = "/", .input = -1, .timeout_ms = BUILD_RUN_MS};
    build_sandbox_run(b, &c, ran);
}

/* Commands of sandboxes run as `user`, which images do not have: it is made once per image, and the result is
 * cached. */
static void provision_on_captured(struct build_own *b, const char *error)
{
    build_sandbox_close(b);
    if (!error)
        build_cache_put(b->builds, b->b.tenant, b->step_key, b->stack);
    memcpy(b->key, b->step_key, sizeof b->key);
    b->then = b->base_then;
    build_base_tell(b, error);
}

static void provision_on_ran(struct build_own *b, const struct exec_end *end, const struct link_status *failed)
{
    _cleanup_buf_ struct buf text = {0};
    if (end && end->exited && (end->code == 0 || end->code == BUILD_UNCHANGED)) {
        build_sandbox_capture(b, provision_on_captured);
        return;
    }
    buf_adds(&text, "the user 'user' cannot be made in this image: ");
    if (end)
        build_end_text(end, BUILD_RUN_MS, &text);
    else
        buf_adds(&text, failed->text);
    b->then = b->base_then;
    build_base_tell(b, buf_str(&text));
}

static void provision_on_open(struct build_own *b, const char *error)
{
    char text[700];
    if (!error) {
        build_user(b, "user", true, provision_on_ran);
        return;
    }
    (void)snprintf(text, sizeof text, "the sandbox of the build cannot be made: %s", error);
    b->then = b->base_then;
    build_base_tell(b, text);
}

static void provision_on_cache_checked(void *arg, const struct layers_reply *r, int fd)
{
    struct build_own *b = arg;
    const struct build_cached *hit = build_cache_find(b->builds, b->b.tenant, b->step_key);
    b->call = 0;
    if (fd >= 0)
        (void)close(fd);
    if (r->error == LAYERS_OK && hit) {
        build_set_stack(b, hit->stack, false);
        memcpy(b->key, b->step_key, sizeof b->key);
        b->then = b->base_then;
        build_base_tell(b, NULL);
        return;
    }
    if (r->error == LAYERS_NOT_FOUND)
        build_cache_del(b->builds, b->b.tenant, b->step_key);
    build_sandbox_open(b, provision_on_open);
}

static void provision_start(struct build_own *b)
{
    _cleanup_buf_ struct buf text = {0};
    b->base_then = b->then;
    buf_addf(&text, "provision 1\n%s\n", b->key);
    sha256_hex(text.p, text.n, b->step_key);
    const struct build_cached *hit = build_cache_find(b->builds, b->b.tenant, b->step_key);
    if (!hit) {
        build_sandbox_open(b, provision_on_open);
        return;
    }
    build_usage(b, hit->stack, provision_on_cache_checked);
}
