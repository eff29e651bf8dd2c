#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAIL = 32 /* kept free for the end of a record */ };

static const char *const words[] = {"error", "warn", "info", "debug"};
static struct {
    const char *process;
    enum log_level level;
    int fd;
    bool human;
    unsigned long long second; /* the second that is being counted */
    unsigned count, dropped;
} out = {.process = "hutch", .level = LOG_LEVEL_INFO, .fd = STDERR_FILENO};

void log_open(const char *process, enum log_level level, int fd)
{
    out.process = process;
    out.level = level;
    out.fd = fd;
    out.human = isatty(fd) == 1;
}

bool log_level_of(const char *word, enum log_level *ret)
{
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], word) == 0) {
            *ret = (enum log_level)i;
            return true;
        }
    return false;
}

bool log_on(enum log_level level) { return level <= out.level; }

static void log_add(struct log_line *l, const char *s, size_t n)
{
    if (l->cut || l->n + n > sizeof l->text - TAIL)
        l->cut = true;
    else {
        memcpy(l->text + l->n, s, n);
        l->n += n;
    }
}

/* Length of the valid UTF-8 sequence at s, or 0. */
static size_t utf8_at(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t n = u[0] < 0x80                   ? 1
               : u[0] >= 0xc2 && u[0] < 0xe0 ? 2
               : u[0] >= 0xe0 && u[0] < 0xf0 ? 3
               : u[0] >= 0xf0 && u[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f) || (u[0] == 0xf0 && u[1] < 0x90) ||
        (u[0] == 0xf4 && u[1] > 0x8f))
        return 0;
    return n;
}

/* Control characters, quotes and bytes that are not UTF-8 are escaped in both forms: a value never ends a line. */
static void log_add_escaped(struct log_line *l, const char *s)
{
    while (*s && !l->cut) {
        unsigned char c = (unsigned char)*s;
        size_t n = utf8_at(s);
        char esc[8];
        if (c == '"' || c == '\\') {
            log_add(l, (const char[]){'\\', (char)c}, 2);
            n = 1;
        } else if (c == '\n' || c == '\t' || c == '\r') {
            log_add(l, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r", 2);
        } else if (n == 0 || c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s[1] < 0xa0)) {
            log_add(l, esc, (size_t)snprintf(esc, sizeof esc, "\\u%04x", n == 2 ? (unsigned char)s[1] : c));
            n = n ? n : 1;
        } else
            log_add(l, s, n);
        s += n;
    }
}

static bool over_rate(enum log_level level)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    unsigned long long second = (unsigned long long)now.tv_sec;
    if (__atomic_exchange_n(&out.second, second, __ATOMIC_RELAXED) != second)
        __atomic_store_n(&out.count, 0, __ATOMIC_RELAXED);
    if (level == LOG_LEVEL_ERROR || __atomic_fetch_add(&out.count, 1, __ATOMIC_RELAXED) < LOG_BURST)
        return false;
    __atomic_fetch_add(&out.dropped, 1, __ATOMIC_RELAXED);
    return true;
}

static void log_add_time(struct log_line *l, const char *format)
{
    struct timespec now;
    struct tm tm;
    char text[40];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    size_t n = strftime(text, sizeof text, format, gmtime_r(&now.tv_sec, &tm));
    n += (size_t)snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    log_add(l, text, n);
}

bool log_start(struct log_line *l, enum log_level level, const char *message)
{
    if (!log_on(level) || over_rate(level))
        return false;
    l->n = 0;
    l->cut = false;
    l->human = out.human;
    if (l->human) {
        log_add_time(l, "%H:%M:%S");
        char head[64];
        log_add(l, head, (size_t)snprintf(head, sizeof head, " %-5s %.20s: ", words[level], out.process));
        log_add_escaped(l, message);
    } else {
        log_add(l, "{\"time\":\"", 9);
        log_add_time(l, "%Y-%m-%dT%H:%M:%S");
        char head[80];
        log_add(l, head,
                (size_t)snprintf(head, sizeof head, "\",\"level\":\"%s\",\"process\":\"%.20s\",\"message\":\"",
                                 words[level], out.process));
        log_add_escaped(l, message);
        if (l->cut) /* a message that does not fit is cut, its record stays whole */
            l->cut = false;
        log_add(l, "\"", 1);
    }
    unsigned dropped = __atomic_exchange_n(&out.dropped, 0, __ATOMIC_RELAXED);
    if (dropped)
        log_u64(l, "dropped_records", dropped);
    return true;
}

/* Adds a field completely or not at all. */
void log_str(struct log_line *l, const char *key, const char *value)
{
    if (!value || l->cut)
        return;
    size_t was = l->n;
    log_add(l, l->human ? " " : ",\"", l->human ? 1 : 2);
    log_add(l, key, strlen(key));
    log_add(l, l->human ? "=" : "\":\"", l->human ? 1 : 3);
    log_add_escaped(l, value);
    if (!l->human)
        log_add(l, "\"", 1);
    if (l->cut)
        l->n = was;
}

void log_request(struct log_line *l, const char *request_id)
{
    if (request_id && *request_id)
        log_str(l, "request", request_id);
}

void log_u64(struct log_line *l, const char *key, uint64_t value)
{
    char field[96];
    size_t was = l->n;
    int n = snprintf(field, sizeof field, l->human ? " %.48s=%llu" : ",\"%.48s\":%llu", key, (unsigned long long)value);
    log_add(l, field, (size_t)n);
    if (l->cut)
        l->n = was;
}

void log_end(struct log_line *l)
{
    bool cut = l->cut;
    const char *tail = l->human ? (cut ? " (cut)\n" : "\n") : cut ? ",\"cut\":true}\n" : "}\n";
    memcpy(l->text + l->n, tail, strlen(tail));
    l->n += strlen(tail);
    ssize_t written = write(out.fd, l->text, l->n); /* a failed write must not stop the program */
    (void)written;
}

void log_text(enum log_level level, const char *fmt, ...)
{
    struct log_line l;
    char message[LOG_LINE_MAX / 2];
    va_list ap;
    if (!log_on(level))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (log_start(&l, level, message))
        log_end(&l);
}
