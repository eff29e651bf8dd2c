#include "init/wire.h"

#include <string.h>
#include <sys/time.h>

static const void *wire_take_bytes(struct wire_in *in, size_t n)
{
    if (in->bad || in->n - in->at < n) {
        in->bad = true;
        return NULL;
    }
    const void *p = in->p + in->at;
    in->at += n;
    return p;
}

uint32_t wire_u32(struct wire_in *in)
{
    uint32_t v = 0;
    const void *p = wire_take_bytes(in, sizeof v);
    if (p)
        memcpy(&v, p, sizeof v);
    return v;
}

uint64_t wire_u64(struct wire_in *in)
{
    uint64_t v = 0;
    const void *p = wire_take_bytes(in, sizeof v);
    if (p)
        memcpy(&v, p, sizeof v);
    return v;
}

bool wire_bool(struct wire_in *in)
{
    uint32_t v = wire_u32(in);
    if (v > 1)
        in->bad = true;
    return v == 1;
}

const void *wire_bytes(struct wire_in *in, size_t max, size_t *ret_n)
{
    uint32_t n = wire_u32(in);
    if (n > max)
        in->bad = true;
    const char *p = wire_take_bytes(in, (size_t)n + 1);
    if (p && p[n] != '\0')
        in->bad = true;
    *ret_n = in->bad ? 0 : n;
    return in->bad ? "" : p;
}

const char *wire_str(struct wire_in *in, size_t max)
{
    size_t n;
    const char *s = wire_bytes(in, max, &n);
    if (memchr(s, '\0', n)) {
        in->bad = true;
        return "";
    }
    return s;
}

size_t wire_strv(struct wire_in *in, const char **v, size_t max)
{
    uint32_t n = wire_u32(in);
    if (n > max)
        in->bad = true;
    size_t got = 0;
    while (!in->bad && got < n) {
        v[got] = wire_str(in, INIT_BIG_MAX);
        got++;
    }
    if (in->bad)
        got = 0;
    v[got] = NULL;
    return got;
}

bool wire_done(const struct wire_in *in) { return !in->bad && in->at == in->n; }

static void wire_append(struct wire_out *o, const void *p, size_t n)
{
    if (o->p && (o->bad || o->cap - o->n < n)) {
        o->bad = true;
        return;
    }
    if (o->p && n > 0)
        memcpy(o->p + o->n, p, n);
    o->n += n;
}

void wire_put_u32(struct wire_out *o, uint32_t v) { wire_append(o, &v, sizeof v); }
void wire_put_u64(struct wire_out *o, uint64_t v) { wire_append(o, &v, sizeof v); }

void wire_put_bytes(struct wire_out *o, const void *p, size_t n)
{
    if (n > UINT32_MAX - 1) {
        o->bad = true;
        return;
    }
    wire_put_u32(o, (uint32_t)n);
    wire_append(o, p, n);
    wire_append(o, "", 1);
}

void wire_put_str(struct wire_out *o, const char *s) { wire_put_bytes(o, s ? s : "", s ? strlen(s) : 0); }

void wire_put_strv(struct wire_out *o, const char *const *v, size_t n)
{
    wire_put_u32(o, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        wire_put_str(o, v[i]);
}

/* Number by number: the two sides may be built with different C libraries, whose struct rusage differ in length. */
static void wire_put_usage(struct wire_out *o, const struct rusage *u)
{
    wire_put_u64(o, (uint64_t)u->ru_utime.tv_sec * 1000000 + (uint64_t)u->ru_utime.tv_usec);
    wire_put_u64(o, (uint64_t)u->ru_stime.tv_sec * 1000000 + (uint64_t)u->ru_stime.tv_usec);
    const long counts[] = {u->ru_maxrss,  u->ru_minflt, u->ru_majflt, u->ru_inblock,
                           u->ru_oublock, u->ru_nvcsw,  u->ru_nivcsw};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        wire_put_u64(o, (uint64_t)counts[i]);
}

static void get_usage(struct wire_in *in, struct rusage *ret)
{
    struct timeval *const times[] = {&ret->ru_utime, &ret->ru_stime};
    long *const counts[] = {&ret->ru_maxrss,  &ret->ru_minflt, &ret->ru_majflt, &ret->ru_inblock,
                            &ret->ru_oublock, &ret->ru_nvcsw,  &ret->ru_nivcsw};
    for (size_t i = 0; i < 2; i++) {
        uint64_t us = wire_u64(in);
        times[i]->tv_sec = (time_t)(us / 1000000);
        times[i]->tv_usec = (suseconds_t)(us % 1000000);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        *counts[i] = (long)wire_u64(in);
}

void init_put_end(struct wire_out *o, const struct init_end *e)
{
    wire_put_u32(o, e->exited);
    wire_put_u32(o, e->code);
    wire_put_u32(o, e->core);
    wire_put_u32(o, e->oom);
    wire_put_u64(o, e->wall_ms);
    for (int s = 1; s < INIT_STREAMS; s++)
        wire_put_u64(o, e->omitted[s]);
    wire_put_usage(o, &e->usage);
    wire_put_u32(o, e->ndenied);
    for (uint32_t i = 0; i < e->ndenied; i++) {
        wire_put_u32(o, e->denied[i].nr);
        wire_put_u32(o, e->denied[i].count);
        for (int k = 0; k < 3; k++)
            wire_put_u64(o, e->denied[i].args[k]);
    }
}

void init_get_end(struct wire_in *in, struct init_end *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->exited = wire_bool(in);
    ret->code = wire_u32(in);
    ret->core = wire_bool(in);
    ret->oom = wire_bool(in);
    ret->wall_ms = wire_u64(in);
    for (int s = 1; s < INIT_STREAMS; s++)
        ret->omitted[s] = wire_u64(in);
    get_usage(in, &ret->usage);
    ret->ndenied = wire_u32(in);
    if (ret->ndenied > INIT_DENIED_MAX)
        in->bad = true;
    for (uint32_t i = 0; !in->bad && i < ret->ndenied; i++) {
        ret->denied[i].nr = wire_u32(in);
        ret->denied[i].count = wire_u32(in);
        for (int k = 0; k < 3; k++)
            ret->denied[i].args[k] = wire_u64(in);
    }
    if (ret->code > 255)
        in->bad = true;
}

void init_put_info(struct wire_out *o, const struct init_info *i)
{
    wire_put_str(o, i->name);
    wire_put_str(o, i->path);
    wire_put_u32(o, i->type);
    wire_put_u32(o, i->mode);
    wire_put_u64(o, i->size);
    wire_put_str(o, i->owner);
    wire_put_str(o, i->group);
    wire_put_u64(o, (uint64_t)i->mtime_s);
    wire_put_u32(o, i->mtime_ns);
    wire_put_u32(o, i->target != NULL);
    if (i->target)
        wire_put_str(o, i->target);
    wire_put_u32(o, i->nmeta);
    for (uint32_t m = 0; m < i->nmeta; m++) {
        wire_put_str(o, i->meta[m].key);
        wire_put_str(o, i->meta[m].value);
    }
}

void init_get_info(struct wire_in *in, struct init_info *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->name = wire_str(in, 255);
    ret->path = wire_str(in, INIT_LISTED_PATH_MAX);
    ret->type = wire_u32(in);
    ret->mode = wire_u32(in);
    ret->size = wire_u64(in);
    ret->owner = wire_str(in, INIT_USER_MAX);
    ret->group = wire_str(in, INIT_USER_MAX);
    ret->mtime_s = (int64_t)wire_u64(in);
    ret->mtime_ns = wire_u32(in);
    if (wire_bool(in))
        ret->target = wire_str(in, 2 * INIT_PATH_MAX);
    uint32_t n = wire_u32(in);
    if (n > INIT_META_MAX || ret->type >= INIT_FILE_TYPES || ret->mtime_ns > 999999999 || ret->mode > 0177777 ||
        ret->size > INT64_MAX)
        in->bad = true;
    for (uint32_t m = 0; m < n && !in->bad; m++) {
        ret->meta[m].key = wire_str(in, 255);
        ret->meta[m].value = wire_str(in, INIT_META_BYTES);
        ret->nmeta = m + 1;
    }
}

void init_put_root(struct wire_out *o, const struct init_root *p)
{
    wire_put_str(o, p->path);
    wire_put_u32(o, p->flags);
    wire_put_u32(o, p->uid);
    wire_put_u32(o, p->gid);
    wire_put_u32(o, p->mode);
}

void init_get_root(struct wire_in *in, struct init_root *ret)
{
    ret->path = wire_str(in, INIT_PATH_MAX - 1);
    ret->flags = wire_u32(in);
    ret->uid = wire_u32(in);
    ret->gid = wire_u32(in);
    ret->mode = wire_u32(in);
    if (ret->path[0] != '/' || (ret->flags & ~(uint32_t)INIT_ROOT_FORCE) ||
        (ret->uid > UINT16_MAX && ret->uid != INIT_UNCHANGED) ||
        (ret->gid > UINT16_MAX && ret->gid != INIT_UNCHANGED) || (ret->mode > 07777 && ret->mode != INIT_UNCHANGED))
        in->bad = true;
}

void init_put_rights(struct wire_out *o, const struct init_rights *r)
{
    wire_put_u32(o, r->flags);
    wire_put_u64(o, r->time_ms);
    wire_put_u64(o, r->output_max);
    wire_put_strv(o, r->write, r->nwrite);
}

void init_get_rights(struct wire_in *in, struct init_rights *ret)
{
    const uint32_t known = INIT_RIGHTS_NO_NETWORK | INIT_RIGHTS_WRITE | INIT_RIGHTS_OWN_USER;
    ret->flags = wire_u32(in);
    ret->time_ms = wire_u64(in);
    ret->output_max = wire_u64(in);
    ret->nwrite = wire_strv(in, ret->write, INIT_WRITE_MAX);
    for (size_t i = 0; i < ret->nwrite; i++)
        if (strlen(ret->write[i]) >= INIT_PATH_MAX || ret->write[i][0] == '\0')
            in->bad = true;
    if ((ret->flags & ~known) || (ret->nwrite && !(ret->flags & INIT_RIGHTS_WRITE)) ||
        ret->time_ms > INIT_TIMEOUT_MAX_MS || ret->output_max > INT64_MAX)
        in->bad = true;
}

void init_put_facts(struct wire_out *o, const struct init_facts *f)
{
    wire_put_u32(o, f->uid);
    wire_put_u32(o, f->gid);
    wire_put_u64(o, (uint64_t)f->atime_s);
    wire_put_u32(o, f->atime_ns);
    wire_put_u64(o, (uint64_t)f->ctime_s);
    wire_put_u32(o, f->ctime_ns);
}

void init_get_facts(struct wire_in *in, struct init_facts *ret)
{
    ret->uid = wire_u32(in);
    ret->gid = wire_u32(in);
    ret->atime_s = (int64_t)wire_u64(in);
    ret->atime_ns = wire_u32(in);
    ret->ctime_s = (int64_t)wire_u64(in);
    ret->ctime_ns = wire_u32(in);
    if (ret->atime_ns > 999999999 || ret->ctime_ns > 999999999)
        in->bad = true;
}
