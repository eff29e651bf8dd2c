#include "init/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool init_head_ok(const struct init_head *h, size_t got, size_t nfds)
{
    bool memfd = h->flags & INIT_F_MEMFD;
    if (h->version != INIT_VERSION || h->request == 0 || h->zero != 0 || (h->flags & ~(uint32_t)INIT_F_MEMFD))
        return false;
    if (memfd)
        return nfds == 1 && got == sizeof *h && h->length > 0 && h->length <= INIT_BIG_MAX;
    return nfds == 0 && h->length == got - sizeof *h;
}

static int request_refuse(struct init_request *r, enum init_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int request_refuse(struct init_request *r, enum init_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r->why, sizeof r->why, fmt, ap);
    va_end(ap);
    r->code = code;
    return -1;
}

static void get_who(struct wire_in *in, struct init_request *r)
{
    r->pid = wire_u32(in);
    r->tag = wire_str(in, INIT_TAG_MAX);
}

static void get_offsets(struct wire_in *in, struct init_request *r)
{
    for (int s = 1; s < INIT_STREAMS; s++)
        r->offset[s] = wire_u64(in);
}

static int check_env(struct init_request *r)
{
    for (size_t i = 0; i < r->nenv; i++) {
        const char *eq = strchr(r->env[i], '=');
        if (!eq || eq == r->env[i])
            return request_refuse(r, INIT_INVALID, "environment variable '%.60s' is not of the form NAME=value",
                                  r->env[i]);
    }
    return 0;
}

static int request_parse_spawn(struct wire_in *in, struct init_request *r)
{
    r->has_rights = r->type != INIT_SPAWN;
    if (r->type == INIT_SPAWN_LIMITED && (r->group = wire_u64(in)) == 0)
        in->bad = true;
    if (r->has_rights)
        init_get_rights(in, &r->rights);
    r->cmd = r->args[0] = wire_str(in, INIT_PATH_MAX - 1);
    r->nargs = 1 + wire_strv(in, r->args + 1, INIT_ARGS_MAX);
    r->nenv = wire_strv(in, r->env, INIT_ENV_MAX);
    r->cwd = wire_bool(in) ? wire_str(in, INIT_PATH_MAX - 1) : NULL;
    r->user = wire_str(in, INIT_USER_MAX);
    r->tag = wire_str(in, INIT_TAG_MAX);
    r->flags = wire_u32(in);
    r->cols = wire_u32(in);
    r->rows = wire_u32(in);
    r->timeout_ms = wire_u64(in);
    if (in->bad)
        return 0;
    if (r->timeout_ms > INIT_TIMEOUT_MAX_MS)
        return request_refuse(r, INIT_INVALID, "the timeout of a command is at most 10 years");
    if (r->flags & ~(uint32_t)(INIT_SPAWN_PTY | INIT_SPAWN_STDIN | INIT_SPAWN_KEEP))
        return request_refuse(r, INIT_INVALID, "unknown flags of a command: 0x%x", r->flags);
    if (r->cols > UINT16_MAX || r->rows > UINT16_MAX)
        return request_refuse(r, INIT_INVALID, "a terminal has at most 65535 columns and rows, not %u x %u", r->cols,
                              r->rows);
    if (r->cmd[0] == '\0')
        return request_refuse(r, INIT_INVALID, "the command is empty");
    return check_env(r);
}

static int request_parse_bind(struct wire_in *in, struct init_request *r)
{
    r->hostname = wire_str(in, 64);
    r->nenv = wire_strv(in, r->env, INIT_ENV_MAX);
    r->user = wire_str(in, INIT_USER_MAX);
    r->workdir = wire_str(in, INIT_PATH_MAX - 1);
    return in->bad ? 0 : check_env(r);
}

static int request_parse_meta(struct wire_in *in, struct init_request *r)
{
    uint32_t n = wire_u32(in);
    size_t total = 0;
    if (in->bad)
        return 0;
    if (n > INIT_META_MAX)
        return request_refuse(r, INIT_LIMIT, "at most %d metadata entries per file, not %u", INIT_META_MAX, n);
    for (uint32_t i = 0; i < n && !in->bad; i++) {
        r->meta[i].key = wire_str(in, 255);
        r->meta[i].value = wire_str(in, INIT_META_BYTES);
        total += strlen(r->meta[i].key) + strlen(r->meta[i].value);
        if (!in->bad && (r->meta[i].key[0] == '\0' || strlen(r->meta[i].key) > 246))
            return request_refuse(r, INIT_INVALID, "a metadata key has 1 to 246 bytes");
    }
    r->nmeta = in->bad ? 0 : n;
    if (total > INIT_META_BYTES)
        return request_refuse(r, INIT_LIMIT, "metadata of %zu bytes; at most %d", total, INIT_META_BYTES);
    return 0;
}

static void get_path(struct wire_in *in, struct init_request *r)
{
    r->user = wire_str(in, INIT_USER_MAX);
    r->path = wire_str(in, INIT_PATH_MAX - 1);
}

static int request_parse_files(struct wire_in *in, struct init_request *r)
{
    if (r->type == INIT_COMPOSE) {
        r->user = wire_str(in, INIT_USER_MAX);
        r->nargs = wire_strv(in, r->args, INIT_SOURCES_MAX);
        r->to = wire_str(in, INIT_PATH_MAX - 1);
        for (size_t i = 0; i < r->nargs; i++)
            if (strlen(r->args[i]) >= INIT_PATH_MAX)
                return request_refuse(r, INIT_INVALID, "a path is longer than %d bytes", INIT_PATH_MAX - 1);
        return !in->bad && r->nargs == 0
                   ? request_refuse(r, INIT_INVALID, "nothing to put together: no source is given")
                   : 0;
    }
    get_path(in, r);
    if (r->type == INIT_CREATE)
        return request_parse_meta(in, r);
    if (r->type == INIT_MOVE)
        r->to = wire_str(in, INIT_PATH_MAX - 1);
    if (r->type == INIT_LIST_DIR)
        r->number = wire_u32(in);
    if (r->type == INIT_WATCH)
        r->flags = wire_u32(in);
    return 0;
}

/* The root at the end, which INIT_SET must have, and INIT_MOVE, INIT_COMPOSE and INIT_WATCH cannot have. */
static void request_parse_root(struct wire_in *in, struct init_request *r)
{
    bool never = r->type == INIT_MOVE || r->type == INIT_COMPOSE || r->type == INIT_WATCH;
    if (!in->bad && !never && (in->at < in->n || r->type == INIT_SET))
        init_get_root(in, &r->root);
}

static int request_parse_process(struct wire_in *in, struct init_request *r)
{
    get_who(in, r);
    switch (r->type) {
    case INIT_ATTACH:
        get_offsets(in, r);
        break;
    case INIT_SIGNAL:
        r->number = wire_u32(in);
        if (!in->bad && (r->number < 1 || r->number > 64))
            return request_refuse(r, INIT_INVALID, "%u is not a signal (expected 1 to 64)", r->number);
        break;
    case INIT_RESIZE:
        r->cols = wire_u32(in);
        r->rows = wire_u32(in);
        if (!in->bad && (r->cols > UINT16_MAX || r->rows > UINT16_MAX))
            return request_refuse(r, INIT_INVALID, "a terminal has at most 65535 columns and rows");
        break;
    case INIT_INPUT:
        r->bytes = wire_bytes(in, INIT_INPUT_MAX, &r->nbytes);
        break;
    default:
        break;
    }
    return 0;
}

static int request_parse_body(struct wire_in *in, struct init_request *r)
{
    switch (r->type) {
    case INIT_HELLO:
    case INIT_LIST:
    case INIT_UNWATCH:
    case INIT_SHUTDOWN:
    case INIT_SETTLE:
        return 0;
    case INIT_BIND:
        return request_parse_bind(in, r);
    case INIT_SPAWN:
    case INIT_SPAWN_RIGHTS:
    case INIT_SPAWN_LIMITED:
        return request_parse_spawn(in, r);
    case INIT_ACK:
        get_offsets(in, r);
        return 0;
    case INIT_DETACH:
        r->number = wire_bool(in);
        return 0;
    case INIT_ATTACH:
    case INIT_SIGNAL:
    case INIT_RESIZE:
    case INIT_INPUT:
    case INIT_CLOSE_INPUT:
        return request_parse_process(in, r);
    case INIT_DIAL:
        r->number = wire_u32(in);
        if (!in->bad && (r->number < 1 || r->number > 65535))
            return request_refuse(r, INIT_INVALID, "%u is not a port (expected 1 to 65535)", r->number);
        return 0;
    case INIT_OPEN:
    case INIT_CREATE:
    case INIT_STAT:
    case INIT_LIST_DIR:
    case INIT_MAKE_DIR:
    case INIT_MOVE:
    case INIT_REMOVE:
    case INIT_COMPOSE:
    case INIT_WATCH:
    case INIT_SET:
        if (request_parse_files(in, r) < 0)
            return -1;
        request_parse_root(in, r);
        return 0;
    case INIT_TAKE:
        return request_refuse(r, INIT_STATE, "a ticket is taken by the first message of a stream of its own");
    default:
        return request_refuse(r, INIT_STATE,
                              "this sandbox's init speaks version %d of its protocol, which has no request %u",
                              INIT_VERSION, r->type);
    }
}

int init_request_parse(const struct init_head *h, const void *body, size_t n, struct init_request *r)
{
    struct wire_in in = {.p = body, .n = n};
    memset(r, 0, offsetof(struct init_request, args));
    r->nargs = r->nenv = r->nmeta = 0;
    r->args[0] = r->env[0] = NULL;
    r->code = INIT_OK;
    r->why[0] = '\0';
    r->type = h->type;
    r->id = h->request;
    if (request_parse_body(&in, r) < 0)
        return -1;
    if (!wire_done(&in))
        return request_refuse(r, INIT_INVALID, "malformed request of type %u (%zu bytes)", r->type, n);
    return 0;
}
