#include "keeper/request.h"

#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/path.h"

static bool all_of(const char *s, size_t room, const char *more, bool upper)
{
    size_t n = strnlen(s, room);
    if (n == 0 || n == room)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (upper && c >= 'A' && c <= 'Z') ||
                  (c != '\0' && strchr(more, c));
        if (!ok)
            return false;
    }
    return true;
}

bool keeper_id_valid(const char *id)
{
    static const char *const taken[] = {"keeper", "front", "egress",     "egress-keeper", "api",
                                        "admin",  "node",  "supervisor", "stock"};
    for (size_t i = 0; i < ARRAY_LEN(taken); i++)
        if (strncmp(id, taken[i], KEEPER_ID_MAX) == 0)
            return false;
    return all_of(id, KEEPER_ID_MAX, "-_", true) && id[0] != '-';
}

bool keeper_template_valid(const char *name)
{
    return all_of(name, KEEPER_TEMPLATE_MAX, "_-", false) && name[0] != '-';
}

static bool hostname_valid(const char *name, size_t room)
{
    if (name[0] == '\0')
        return true;
    return all_of(name, room, "-.", true) && name[0] != '-' && name[0] != '.';
}

static int request_check_id(const char *id, struct err *err)
{
    if (!keeper_id_valid(id))
        return err_set(err, ERR_USAGE, 0, "id: must be 1 to %d letters, digits, '-' or '_', not starting with '-'",
                       KEEPER_ID_MAX - 1);
    return 0;
}

static int check_range(const char *what, uint64_t value, uint64_t min, uint64_t max, struct err *err)
{
    if (value == 0 || (value >= min && value <= max))
        return 0;
    return err_set(err, ERR_USAGE, 0, "%s: %" PRIu64 " is not between %" PRIu64 " and %" PRIu64 " (0 is the default)",
                   what, value, min, max);
}

/* Absolute, without empty, "." and ".." parts, and outside the kernel's trees. */
static bool place_valid(const char *place, size_t room)
{
    static const char *const not [] = {"/proc", "/dev", "/sys"};
    size_t n = strnlen(place, room);
    if (n < 2 || n == room || place[0] != '/')
        return false;
    for (const char *p = place; *p;) {
        size_t part = strcspn(++p, "/");
        if (part == 0 || (part <= 2 && strncmp(p, "..", part) == 0))
            return false;
        p += part;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)place[i] < 0x20 || place[i] == 0x7f)
            return false;
    for (size_t i = 0; i < ARRAY_LEN(not ); i++)
        if (path_under(place, not [i]))
            return false;
    return true;
}

static int check_volumes(const struct keeper_create *c, struct err *err)
{
    if (c->nvolumes > KEEPER_VOLUMES_MAX)
        return err_set(err, ERR_USAGE, 0, "volume: %" PRIu32 " are more than %d", c->nvolumes, KEEPER_VOLUMES_MAX);
    for (uint32_t i = 0; i < c->nvolumes; i++) {
        const struct keeper_volume *v = &c->volume[i];
        bool known = strncmp(v->id, "vol-", 4) == 0 || strncmp(v->id, "host-", 5) == 0;
        if (!known || !keeper_id_valid(v->id))
            return err_set(err, ERR_USAGE, 0, "volume: its id must be \"vol-...\" or \"host-...\"");
        if (!place_valid(v->place, sizeof v->place))
            return err_set(err, ERR_USAGE, 0,
                           "volume: the place of %s must be an absolute path, not / and not in /proc, /dev or /sys",
                           v->id);
        if (v->flags & ~(uint32_t)KEEPER_VOLUME_RO)
            return err_set(err, ERR_USAGE, 0, "volume: flags 0x%" PRIx32 " have bits that mean nothing", v->flags);
    }
    return 0;
}

static int check_create(const struct keeper_create *c, struct err *err)
{
    if (request_check_id(c->id, err) < 0)
        return -1;
    if (!keeper_template_valid(c->template))
        return err_set(err, ERR_USAGE, 0, "template: must be 1 to %d of a-z, 0-9, '_' and '-'",
                       KEEPER_TEMPLATE_MAX - 1);
    if (!hostname_valid(c->hostname, sizeof c->hostname))
        return err_set(err, ERR_USAGE, 0, "hostname: must be at most 63 letters, digits, '-' and '.'");
    if (c->flags & ~(uint32_t)(KEEPER_STRICT | KEEPER_BEST_EFFORT | KEEPER_BUILD | KEEPER_WISH))
        return err_set(err, ERR_USAGE, 0, "flags: 0x%" PRIx32 " has bits that mean nothing", c->flags);
    if (c->tier >= KEEPER_TIERS)
        return err_set(err, ERR_USAGE, 0, "tier: %" PRIu32 " is no tier of this version", c->tier);
    if (c->deadline_ms == 0)
        return err_set(err, ERR_USAGE, 0, "deadline_ms: must be given");
    if (check_range("cpu_milli", c->cpu_milli, 1, KEEPER_CPU_MILLI_MAX, err) < 0 ||
        check_range("memory", c->memory, KEEPER_MEMORY_MIN, KEEPER_BYTES_MAX, err) < 0 ||
        check_range("disk", c->disk, KEEPER_DISK_MIN, KEEPER_BYTES_MAX, err) < 0 ||
        check_range("inodes", c->inodes, KEEPER_INODES_MIN, UINT32_MAX, err) < 0 ||
        check_range("pids", c->pids, KEEPER_PIDS_MIN, KEEPER_PIDS_MAX, err) < 0 ||
        check_range("open_files", c->open_files, KEEPER_FILES_MIN, KEEPER_FILES_MAX, err) < 0)
        return -1;
    if (c->driver[0] && !all_of(c->driver, sizeof c->driver, "-", false))
        return err_set(err, ERR_USAGE, 0, "driver: must be at most %d of a-z, 0-9 and '-'", KEEPER_DRIVER_MAX - 1);
    return check_volumes(c, err);
}

static size_t size_of(uint32_t type)
{
    switch (type) {
    case KEEPER_CREATE:
        return sizeof(struct keeper_create);
    case KEEPER_DEADLINE:
        return sizeof(struct keeper_deadline);
    case KEEPER_LIMIT:
        return sizeof(struct keeper_limit);
    case KEEPER_KILL:
    case KEEPER_USAGE:
    case KEEPER_LIST:
    case KEEPER_FORGET:
    case KEEPER_PAUSE:
    case KEEPER_RESUME:
    case KEEPER_HOLD:
    case KEEPER_RELEASE:
        return sizeof(struct keeper_simple);
    default:
        return 0;
    }
}

int keeper_request_parse(const void *p, size_t n, union keeper_request *ret, struct err *err)
{
    memset(ret, 0, sizeof *ret);
    if (n < sizeof ret->head)
        return err_set(err, ERR_USAGE, 0, "a message of %zu bytes has no head", n);
    memcpy(&ret->head, p, sizeof ret->head);
    if (ret->head.version != KEEPER_VERSION)
        return err_set(err, ERR_USAGE, 0, "version: %" PRIu32 " is not %d", ret->head.version, KEEPER_VERSION);
    size_t want = size_of(ret->head.type);
    if (want == 0)
        return err_set(err, ERR_USAGE, 0, "type: %" PRIu32 " is no request", ret->head.type);
    if (n != want)
        return err_set(err, ERR_USAGE, 0, "a request of type %" PRIu32 " has %zu bytes, not %zu", ret->head.type, want,
                       n);
    memcpy(ret, p, n);
    switch (ret->head.type) {
    case KEEPER_CREATE:
        return check_create(&ret->create, err);
    case KEEPER_DEADLINE:
        if (ret->deadline.deadline_ms == 0)
            return err_set(err, ERR_USAGE, 0, "deadline_ms: must be given");
        return request_check_id(ret->deadline.id, err);
    case KEEPER_LIMIT:
        if (ret->limit.number == 0 || ret->limit.memory == 0)
            return err_set(err, ERR_USAGE, 0, "number, memory: must be given");
        if (check_range("memory", ret->limit.memory, KEEPER_MEMORY_MIN, KEEPER_BYTES_MAX, err) < 0)
            return -1;
        return request_check_id(ret->limit.id, err);
    case KEEPER_LIST:
        return 0;
    default:
        return request_check_id(ret->simple.id, err);
    }
}
