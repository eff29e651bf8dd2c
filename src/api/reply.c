#include "api/reply.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "db/db.h"
#include "http/outq.h"
#include "stacks/stacks.h"

#define JSON_TYPE "application/json; charset=utf-8"

void reply_json(struct http_req *r, unsigned status, const struct buf *body)
{
    http_reply(r, status, JSON_TYPE, buf_str(body), body->n);
}

void reply_empty(struct http_req *r, unsigned status) { http_reply(r, status, NULL, NULL, 0); }

void reply_refuse(struct http_req *r, unsigned status, const char *error_code, unsigned retry_after,
                  const char *message)
{
    _cleanup_buf_ struct buf body = {0};
    struct json j;
    json_start(&j, &body);
    json_obj(&j, NULL);
    json_u64(&j, "code", status);
    json_str(&j, "message", message);
    if (error_code)
        json_str(&j, "error_code", error_code);
    json_end_obj(&j);
    if (retry_after > 0) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", retry_after);
        http_set(r, "retry-after", text);
    }
    reply_json(r, status, &body);
}

void reply_error(struct http_req *r, unsigned status, const char *fmt, ...)
{
    _cleanup_free_ char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        text = xstrdup("out of memory");
    reply_refuse(r, status, NULL, 0, text);
}

void reply_state_failure(struct http_req *r, const struct state_failure *failure)
{
    reply_refuse(r, failure->status, failure->error_code, failure->status == 503 ? 1 : 0, failure->text);
}

static unsigned reply_err_status(const struct err *err)
{
    switch (err->eno) {
    case ENOENT:
        return 404;
    case EBUSY:
    case EEXIST:
        return 409;
    case EAGAIN:
        return 503;
    case EPERM:
        return 403;
    case EINVAL:
        return 400;
    case EDQUOT:
        return 429;
    case ENOSPC:
        return 507;
    default:
        return 500;
    }
}

void reply_err(struct http_req *r, const struct err *err)
{
    _cleanup_free_ char *text = xstrdup(err->msg), *tail = xasprintf(": %s", strerror(err->eno));
    size_t n = strlen(text), t = strlen(tail);
    if (err->eno && n > t && strcmp(text + n - t, tail) == 0)
        text[n - t] = 0;
    if (err->code == ERR_SETUP && err->eno == ENOSPC) { /* from the database; do not show clients its path */
        reply_refuse(r, 507, "disk_full", 0, "the change cannot be recorded: the node's disk is full");
        return;
    }
    reply_error(r, reply_err_status(err), "%s", text);
}

void reply_not_stored(struct http_req *r, const struct db *s)
{
    bool full = db_disk_full(s);
    reply_refuse(r, full ? 507 : 503, full ? "disk_full" : NULL, 0,
                 full ? "the change is in force, but could not be stored, because the node's disk is full: "
                        "it is lost when the node restarts"
                      : "the change is in force, but could not be stored: it is lost when the node restarts");
}

void reply_add(struct json *j, const char *key, const json_t *v)
{
    const char *name;
    json_t *member;
    size_t i;
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        json_obj(j, key);
        json_object_foreach((json_t *)v, name, member) reply_add(j, name, member);
        json_end_obj(j);
        return;
    case JSON_ARRAY:
        json_arr(j, key);
        json_array_foreach((json_t *)v, i, member) reply_add(j, NULL, member);
        json_end_arr(j);
        return;
    case JSON_STRING:
        json_str(j, key, json_string_value(v));
        return;
    case JSON_INTEGER:
        json_i64(j, key, json_integer_value(v));
        return;
    case JSON_REAL: /* thousandths are precise enough for every value here */
        json_fixed(j, key, json_real_value(v) > 0 ? (uint64_t)(json_real_value(v) * 1000) : 0, 3);
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        json_bool(j, key, json_is_true(v));
        return;
    case JSON_NULL:
        json_none(j, key);
    }
}

void reply_add_text(struct json *j, const char *key, const char *text)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    reply_add(j, key, v);
    json_decref(v);
}

void reply_time(uint64_t unix_ms, char ret[REPLY_TIME_MAX])
{
    time_t s = (time_t)(unix_ms / 1000);
    struct tm tm;
    if (!gmtime_r(&s, &tm))
        memset(&tm, 0, sizeof tm);
    size_t n = strftime(ret, REPLY_TIME_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(ret + n, REPLY_TIME_MAX - n, ".%03uZ", (unsigned)(unix_ms % 1000));
}

static bool reply_time_digits(const char **s, int n, int *ret)
{
    int v = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (**s < '0' || **s > '9')
            return false;
        v = v * 10 + (**s - '0');
    }
    *ret = v;
    return true;
}

/* Reads "Z", "+hh:mm", "-hhmm" or nothing as seconds to subtract. */
static bool reply_time_zone(const char *s, int *ret)
{
    *ret = 0;
    if (*s == 0 || ((*s == 'Z' || *s == 'z') && s[1] == 0))
        return true;
    int sign = *s == '+' || *s == ' ' ? 1 : -1; /* an unescaped '+' in a query arrives as a space */
    if (*s != '+' && *s != '-' && *s != ' ')
        return false;
    s++;
    int h, m;
    if (!reply_time_digits(&s, 2, &h))
        return false;
    if (*s == ':')
        s++;
    if (!reply_time_digits(&s, 2, &m) || *s != 0 || h > 23 || m > 59)
        return false;
    *ret = sign * (h * 3600 + m * 60);
    return true;
}

bool reply_time_parse(const char *s, uint64_t *ret_unix_ms)
{
    struct tm tm = {0};
    int ms = 0, offset = 0;
    if (!reply_time_digits(&s, 4, &tm.tm_year) || *s++ != '-' || !reply_time_digits(&s, 2, &tm.tm_mon) || *s++ != '-' ||
        !reply_time_digits(&s, 2, &tm.tm_mday))
        return false;
    if (*s == 'T' || *s == 't' || *s == ' ') {
        s++;
        if (!reply_time_digits(&s, 2, &tm.tm_hour) || *s++ != ':' || !reply_time_digits(&s, 2, &tm.tm_min))
            return false;
        if (*s == ':' && (s++, !reply_time_digits(&s, 2, &tm.tm_sec)))
            return false;
        if (*s == '.') {
            int scale = 100;
            for (s++; *s >= '0' && *s <= '9'; s++, scale /= 10)
                ms += (*s - '0') * scale;
        }
        if (!reply_time_zone(s, &offset))
            return false;
    } else if (*s != 0) {
        return false;
    }
    if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 || tm.tm_min > 59 ||
        tm.tm_sec > 60 || tm.tm_year < 1970)
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    time_t t = timegm(&tm) - offset;
    if (t < 0)
        return false;
    *ret_unix_ms = (uint64_t)t * 1000 + (unsigned)ms;
    return true;
}

void reply_set_safe(struct http_req *r, const char *name, const char *value)
{
    _cleanup_free_ char *copy = xstrdup(value);
    for (char *p = copy; *p; p++)
        if (*p < 0x20 || *p > 0x7e)
            *p = '?';
    http_set(r, name, copy);
}

int reply_may_list(size_t n, struct err *err)
{
    enum { LONG_LIST = 1000, UNREAD_MAX = 128 << 20 };
    if (n <= LONG_LIST || outq_total() <= UNREAD_MAX)
        return 0;
    return err_set(
        err, ERR_LIMIT, 0,
        "the list has %zu entries, and the node's clients have not read more than %d MiB of earlier answers; "
        "read those, or try again later",
        n, UNREAD_MAX >> 20);
}
