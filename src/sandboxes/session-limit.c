/* session-limit.c - the start of a command whose memory has a limit of its own: keeper makes a cgroup for it and hands it to
 * init, then the command can be started. What the caller said is copied for that time. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/strv.h"
#include "sandboxes/sandboxes-int.h"

struct limited_start {
    limited_ready *ready; /* NULL: the session has ended; freed when keeper has answered */
    void *arg;
    struct exec_spec spec;
    struct exec_rights rights;
    struct strv args, env, write, texts;
};

static void limited_free(struct limited_start *l)
{
    struct strv *const all[] = {&l->args, &l->env, &l->write, &l->texts};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        strv_done(all[i]);
    free(l);
}

static const char *const *limited_copy_list(struct strv *to, const char *const *v)
{
    static const char *const none[] = {NULL};
    for (size_t i = 0; v && v[i]; i++)
        strv_add(to, v[i]);
    return to->n ? (const char *const *)to->v : none;
}

static const char *limited_copy_text(struct limited_start *l, const char *text)
{
    if (!text)
        return NULL;
    strv_add(&l->texts, text);
    return l->texts.v[l->texts.n - 1];
}

static void limited_copy(struct limited_start *l, const struct exec_spec *spec)
{
    l->spec = *spec;
    l->rights = *spec->rights;
    l->spec.rights = &l->rights;
    l->spec.cmd = limited_copy_text(l, spec->cmd);
    l->spec.cwd = limited_copy_text(l, spec->cwd);
    l->spec.user = limited_copy_text(l, spec->user);
    l->spec.tag = limited_copy_text(l, spec->tag);
    l->spec.args = limited_copy_list(&l->args, spec->args);
    l->spec.env = limited_copy_list(&l->env, spec->env);
    l->rights.write = limited_copy_list(&l->write, spec->rights->write);
}

static enum link_code limited_code(uint32_t error)
{
    switch (error) {
    case KEEPER_HOST:
        return LINK_STATE;
    case KEEPER_CAPACITY:
        return LINK_LIMIT;
    case KEEPER_NO_SANDBOX:
        return LINK_GONE;
    case KEEPER_BAD_REQUEST:
        return LINK_INVALID;
    default:
        return LINK_IO;
    }
}

static void limited_on_reply(void *arg, const struct keeper_reply *r)
{
    struct limited_start *l = arg;
    struct link_status st = {.code = limited_code(r->error)};
    (void)snprintf(st.text, sizeof st.text, "rights: memoryMB: %.200s", r->text);
    if (l->ready)
        l->ready(l->arg, &l->spec, r->error == KEEPER_OK ? NULL : &st);
    limited_free(l);
}

struct limited_start *limited_start(struct sandboxes *sb, const char *id, const struct exec_spec *spec,
                                    limited_ready *ready, void *arg)
{
    struct limited_start *l = xcalloc(1, sizeof *l);
    l->ready = ready;
    l->arg = arg;
    limited_copy(l, spec);
    while (l->spec.group == 0) /* nothing inside can use the number: a cgroup is handed out once, by keeper, to init */
        if (getrandom(&l->spec.group, sizeof l->spec.group, 0) != sizeof l->spec.group)
            l->spec.group = 0;
    keeperc_limit(sb->peers->keeper, id, l->spec.group, spec->rights->memory, limited_on_reply, l);
    return l;
}

void limited_drop(struct limited_start *l) { l->ready = NULL; }
