/* parse-limits.c - the section `limits`. */
#include <inttypes.h>
#include <string.h>

#include "base/num.h"
#include "policy/run/doc.h"

#define KIB (1ULL << 10)
#define MIB (1ULL << 20)
#define PIB (1ULL << 50)
#define DAY (86400ULL * 1000)

static const struct limit_kind {
    const char *name;
    bool (*read)(const char *s, uint64_t *ret);
    uint64_t min, max;
    const char *form; /* what a right value looks like */
} kinds[LIMIT_MAX] = {
    [LIMIT_CPU] = {"cpu", num_cpus, 10, 4096000, "a number of CPUs from 0.01 to 4096, like 1.5 or 150%"},
    [LIMIT_MEMORY] = {"memory", num_size, MIB, PIB, "a size from 1M to 1024T, like 512M"},
    [LIMIT_PIDS] = {"pids", num_u64, 1, 4194304, "a number from 1 to 4194304"},
    [LIMIT_DISK] = {"disk", num_size, 64 * KIB, PIB, "a size from 64K to 1024T, like 1G"},
    [LIMIT_INODES] = {"inodes", num_u64, 16, 1ULL << 32, "a number from 16 to 4294967296"},
    [LIMIT_OPEN_FILES] = {"open_files", num_u64, 8, 1048576, "a number from 8 to 1048576"},
    [LIMIT_WALL_TIME] = {"wall_time", num_duration, 1, 365 * DAY, "a time from 1ms to 365d, like 30s"},
    [LIMIT_CPU_TIME] = {"cpu_time", num_duration, 1, 365 * DAY, "a time from 1ms to 365d, like 30s"},
    [LIMIT_OUTPUT] = {"output_bytes", num_size, 1, PIB, "a size from 1 to 1024T, like 10M"},
};

const char *limit_id_name(enum limit_id id) { return kinds[id].name; }

void limit_add_value(struct buf *out, enum limit_id id, uint64_t value)
{
    if (kinds[id].read == num_size)
        num_add_size(out, value);
    else if (kinds[id].read == num_duration)
        num_add_duration(out, value);
    else if (id == LIMIT_CPU && value % 1000 != 0)
        buf_addf(out, "%" PRIu64 ".%03" PRIu64, value / 1000, value % 1000);
    else
        buf_addf(out, "%" PRIu64, id == LIMIT_CPU ? value / 1000 : value);
}

static int limits_read_limit(struct doc *d, const struct node *value, unsigned arg)
{
    const struct limit_kind *kind = &kinds[arg];
    struct limit *limit = &d->p->limits[arg];
    const char *text = doc_scalar(d, value, kind->name);
    uint64_t v = 0;
    if (!text)
        return -1;
    bool unlimited = !d->in_ceiling && strcmp(text, "unlimited") == 0;
    if (!unlimited && (!kind->read(text, &v) || v < kind->min || v > kind->max))
        return doc_fail(d, value->line, "%s must be %s%s, not \"%s\"", kind->name, kind->form,
                        d->in_ceiling ? "" : ", or unlimited", doc_safe(text));
    if (!d->may_widen && limit->set && (unlimited || v > limit->value))
        return doc_fail_widens(d, value->line, kind->name);
    *limit = (struct limit){.set = !unlimited, .typed = !unlimited, .value = v, .origin = doc_origin(d, value->line)};
    return 0;
}

static const struct doc_key limit_keys[] = {
    {"cpu", limits_read_limit, LIMIT_CPU},
    {"memory", limits_read_limit, LIMIT_MEMORY},
    {"pids", limits_read_limit, LIMIT_PIDS},
    {"disk", limits_read_limit, LIMIT_DISK},
    {"inodes", limits_read_limit, LIMIT_INODES},
    {"open_files", limits_read_limit, LIMIT_OPEN_FILES},
    {"wall_time", limits_read_limit, LIMIT_WALL_TIME},
    {"cpu_time", limits_read_limit, LIMIT_CPU_TIME},
    {"output_bytes", limits_read_limit, LIMIT_OUTPUT},
    {NULL, NULL, 0},
};

int doc_read_limits(struct doc *d, const struct node *value, unsigned arg)
{
    (void)arg;
    return doc_map(d, value, d->in_ceiling ? "ceiling.limits" : "limits", limit_keys);
}
