/* front-world-builds.c - template builds in front's made-up world: promised and started, never run; a store without files. */
#include "front-world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front/builds.h"
#include "sandbox/stockc.h"
#include "tests/lib/unit.h"

void world_builds_log(const char *text);
void world_builds_fail(const char *reason);
void world_builds_end(void);
void world_stock_answer(void);

static struct build promised;

const struct build *build_make(struct front *f, struct tenant *t, const struct build_new *n, unsigned *status,
                               struct err *err)
{
    char tag[TMPL_TAG_MAX];
    (void)f;
    *status = 400;
    if (!build_name_parse(n->name, promised.name, tag, err))
        return NULL;
    strv_done(&promised.tags);
    strv_add(&promised.tags, tag[0] ? tag : "default");
    promised.tenant = t;
    promised.status = BUILD_WAITING;
    (void)snprintf(promised.id, sizeof promised.id, "11111111-2222-4333-8444-555555555555");
    (void)snprintf(promised.template, sizeof promised.template, "tmplone");
    return &promised;
}
const struct build *build_find(struct front *f, const struct tenant *t, const char *template, const char *id)
{
    (void)f;
    return promised.tenant == t && strcmp(promised.template, template) == 0 && strcmp(promised.id, id) == 0 ? &promised
                                                                                                            : NULL;
}
int build_start(struct front *f, struct tenant *t, const char *template, const char *id, struct build_plan *plan,
                unsigned *status, struct err *err)
{
    build_plan_done(plan);
    if (!build_find(f, t, template, id)) {
        *status = 404;
        return err_set(err, ERR_USAGE, 0, "build not found");
    }
    promised.status = BUILD_BUILDING;
    return 0;
}
bool build_id_ours(const struct front *f, const struct tenant *t, const char *template, const char *id)
{
    (void)f;
    (void)t;
    (void)template;
    return strcmp(id, "00000000-0000-4000-8000-000000000000") == 0;
}
bool build_template_known(struct front *f, const struct tenant *t, const char *template)
{
    (void)f;
    return promised.tenant == t && strcmp(promised.template, template) == 0;
}
void build_blob_name(const struct tenant *t, const char *hash, char ret[SHA256_HEX])
{
    (void)t;
    (void)snprintf(ret, SHA256_HEX, "%s", hash);
}
struct image_call *image_import(struct front *f, const struct image_import *i, image_progress *progress,
                                image_imported *done, void *arg)
{
    struct state_failure no = {.status = 503, .text = "no store in this world"};
    (void)f;
    (void)progress;
    if (i->archive >= 0)
        (void)close(i->archive);
    done(arg, NULL, &no);
    return NULL;
}
void image_cancel(struct image_call *c) { (void)c; }
unsigned stock_http_status(uint32_t error) { return error ? 503 : 0; }

/* A store that has what was converted last. */
static char kept[SHA256_HEX];
static struct {
    stockc_done *done;
    void *arg;
} held[4];

struct stock_request stockc_request(enum stock_type type) { return (struct stock_request){.type = type}; }
stockc_call stockc_ask(struct stockc *s, const struct stock_request *q, const int *fds, size_t nfds,
                       stockc_progress *progress, stockc_done *done, void *arg)
{
    struct stock_reply r = {0};
    char text[16] = "";
    (void)s;
    (void)progress;
    if (q->type == STOCK_CONVERT && world.stock_holds) {
        assert_true(world.nheld < ARRAY_LEN(held));
        held[world.nheld].done = done;
        held[world.nheld++].arg = arg;
        (void)close(fds[0]);
        return 1;
    }
    if (q->type == STOCK_BLOB && strcmp(q->blob, kept) != 0)
        r.error = STOCK_NOT_FOUND;
    if (q->type == STOCK_CONVERT && nfds == 1 && read(fds[0], text, sizeof text - 1) >= 0 && strcmp(text, "a tar") == 0)
        (void)snprintf(kept, sizeof kept, "%s", q->blob);
    else if (q->type == STOCK_CONVERT)
        r.error = STOCK_BAD_DATA;
    for (size_t i = 0; i < nfds; i++)
        (void)close(fds[i]);
    done(arg, &r, -1);
    return 0;
}

stockc_call stockc_ask_for(struct stockc *s, const char *owner, const struct stock_request *q, const int *fds,
                           size_t nfds, stockc_progress *progress, stockc_done *done, void *arg)
{
    (void)snprintf(world.stock_owner, sizeof world.stock_owner, "%s", owner);
    return stockc_ask(s, q, fds, nfds, progress, done, arg);
}
void world_stock_answer(void)
{
    static const struct stock_reply ok;
    for (size_t i = 0; i < world.nheld; i++)
        held[i].done(held[i].arg, &ok, -1);
    world.nheld = 0;
}
void world_builds_log(const char *text) { build_log_add(&promised.log, "1", BUILD_INFO, "%s", text); }
void world_builds_fail(const char *reason)
{
    promised.status = BUILD_FAILED;
    free(promised.reason);
    promised.reason = strdup(reason);
    (void)snprintf(promised.reason_step, sizeof promised.reason_step, "1");
}
void world_builds_end(void)
{
    build_log_done(&promised.log);
    strv_done(&promised.tags);
    free(promised.reason);
    memset(&promised, 0, sizeof promised);
    kept[0] = 0;
}
