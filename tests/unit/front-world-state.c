/* What outlives a sandbox, in the world of front-world.h: pauses, snapshots and forks that succeed or fail as the test says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "front-world.h"

void boxes_on_pause(struct front *f, box_pausing_fn *fn, void *arg) { (void)f, (void)fn, (void)arg; }
void box_in_use(struct front *f, struct box *b)
{
    (void)f, (void)b;
    world.in_use++;
}
void box_unused(struct front *f, const char *id)
{
    (void)f, (void)id;
    world.in_use--;
}
bool box_mount_find(struct front *f, const struct tenant *t, struct box_mount *m)
{
    (void)f, (void)t;
    (void)snprintf(m->volume, sizeof m->volume, "vol-%s", "1");
    return strcmp(m->name, "data") == 0;
}
struct box_life box_life(const struct box *b)
{
    return (struct box_life){b->auto_pause, b->auto_pause_files, b->auto_resume, b->idle_s};
}
bool box_life_room(struct front *f, const struct box *b, const struct box_life *life, struct state_failure *ret)
{
    (void)f;
    if (!world.no_room || b->auto_pause || !life->auto_pause)
        return true;
    *ret = (struct state_failure){.status = 429, .error_code = "quota_exceeded", .text = "no room"};
    return false;
}
void box_set_life(struct front *f, struct box *b, const struct box_life *life, box_done *done, void *arg)
{
    (void)f;
    b->auto_pause = life->auto_pause;
    b->auto_pause_files = life->auto_pause_files;
    b->auto_resume = life->auto_resume;
    b->idle_s = life->idle_s;
    if (done)
        done(arg, !world.no_disk);
}
static bool state_fails(box_paused *done, void *arg)
{
    struct state_failure why = {.status = world.state_status, .text = "because"};
    world.state_status = 0;
    if (why.status)
        done(arg, &why);
    return why.status != 0;
}
void box_pause(struct front *f, struct box *b, bool memory, box_paused *done, void *arg)
{
    (void)f;
    world.pauses++;
    world.memory = memory;
    if (state_fails(done, arg))
        return;
    b->state = memory ? BOX_FROZEN : BOX_STORED;
    done(arg, NULL);
}
void box_unload(struct front *f, struct box *b, box_paused *done, void *arg)
{
    (void)f;
    world.unloads++;
    b->state = BOX_STORED;
    done(arg, NULL);
}
void box_resume(struct front *f, struct box *b, uint64_t timeout_s, box_paused *done, void *arg)
{
    (void)f;
    world.resumes++;
    world.timeout_s = timeout_s;
    if (state_fails(done, arg))
        return;
    b->state = BOX_RUNNING;
    done(arg, NULL);
}
struct wake {
    struct box *b;
    box_paused *done;
    void *arg;
};
static void wake_now(void *arg)
{
    struct wake w = *(struct wake *)arg;
    free(arg);
    if (state_fails(w.done, w.arg))
        return;
    w.b->state = BOX_RUNNING;
    w.done(w.arg, NULL);
}
void box_awake(struct front *f, struct box *b, bool traffic, box_paused *done, void *arg)
{
    (void)f, (void)traffic;
    struct wake *w = xcalloc(1, sizeof *w);
    *w = (struct wake){b, done, arg};
    world.wakes++;
    loop_defer(world.loop, wake_now, w);
}
struct state_ability state_ability(const struct front *f)
{
    (void)f;
    return (struct state_ability){.freeze = 1, .driver = "tmpfs", .quota = "size"};
}
struct state_kept state_kept(struct front *f, const struct tenant *t)
{
    (void)f, (void)t;
    return (struct state_kept){.count = world.ntmpls, .size = {.bytes = 10, .entries = 3}};
}
struct state_size state_limit(const struct front *f, const struct tenant *t)
{
    (void)f;
    return (struct state_size){t->quota.state_bytes, t->quota.state_entries};
}
bool state_room(struct front *f, const struct tenant *t, unsigned count, struct state_size more,
                struct state_failure *ret)
{
    (void)f, (void)t, (void)count, (void)more;
    *ret = (struct state_failure){.status = world.state_status, .error_code = "quota_exceeded", .text = "no room"};
    world.state_status = 0;
    return ret->status == 0;
}
const struct tmpl *world_tmpl(const char *id, const char *name, unsigned tenant)
{
    static struct tmpl_tag tags[8];
    struct tmpl *t = &world.tmpl[world.ntmpls];
    *t = (struct tmpl){.tenant = &world.tenant[tenant], .kind = TMPL_SNAPSHOT, .tags = &tags[world.ntmpls], .ntags = 1};
    tags[world.ntmpls] = (struct tmpl_tag){.tag = "default", .created_unix_ms = 1000 + world.ntmpls};
    (void)snprintf(t->id, sizeof t->id, "%s", id);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    world.ntmpls++;
    return t;
}
const struct tmpl *tmpl_find(struct front *f, const struct tenant *who, const char *name, const struct tmpl_tag **tag)
{
    (void)f;
    const char *slash = strchr(name, '/'), *plain = slash ? slash + 1 : name;
    size_t n = strcspn(plain, ":");
    for (size_t i = 0; i < world.ntmpls; i++) {
        struct tmpl *t = &world.tmpl[i];
        bool same = (strlen(t->id) == n && memcmp(t->id, plain, n) == 0) ||
                    (n && strlen(t->name) == n && memcmp(t->name, plain, n) == 0);
        if (!same || t->tenant != who || !t->ntags)
            continue;
        if (tag)
            *tag = plain[n] == 0 || strcmp(plain + n, ":default") == 0 ? t->tags : NULL;
        return t;
    }
    if (tag)
        *tag = NULL;
    return NULL;
}
bool tmpl_room(struct front *f, const struct tenant *t, const char *name, struct state_failure *ret)
{
    (void)f, (void)t;
    if (strcmp(name, "toomany") != 0)
        return true;
    *ret = (struct state_failure){.status = 429, .error_code = "quota_exceeded", .text = "so many templates"};
    return false;
}
void tmpl_each(struct front *f, const struct tenant *who, tmpl_each_fn *fn, void *arg)
{
    (void)f;
    for (size_t i = 0; i < world.ntmpls; i++)
        if (world.tmpl[i].tenant == who && world.tmpl[i].ntags)
            fn(arg, &world.tmpl[i]);
}
void tmpl_remove(struct front *f, const struct tmpl *t, const char *tag, tmpl_done *done, void *arg)
{
    (void)f, (void)tag;
    ((struct tmpl *)t)->ntags = 0;
    done(arg, NULL, NULL);
}
void box_snapshot(struct front *f, struct box *b, const char *name, snapshot_done *done, void *arg)
{
    (void)f, (void)b;
    struct state_cost cost = {.frozen_us = 1500, .bytes = 4096};
    struct state_failure why = {.status = world.state_status, .text = "because"};
    world.state_status = 0;
    if (why.status)
        done(arg, NULL, &cost, &why);
    else
        done(arg, world_tmpl("snap1", name ? name : "", 0), &cost, NULL);
}
void box_fork(struct front *f, struct box *b, unsigned count, uint32_t timeout_s, fork_child *child, void *arg)
{
    (void)f;
    struct state_cost cost = {.frozen_us = 1500, .bytes = 4096};
    if (world.copied_before)
        cost = (struct state_cost){0};
    struct box_failure full = {.status = 429, .text = "no room"};
    world.timeout_s = timeout_s;
    for (unsigned i = 0; i < count; i++) {
        char id[SANDBOX_ID_MAX];
        (void)snprintf(id, sizeof id, "i0kid%u", i);
        struct box *kid = i == world.kid_fails ? NULL : world_box(id, b->tenant == &world.tenant[1], 1000);
        child(arg, i, kid, &cost, kid ? NULL : &full);
    }
}
