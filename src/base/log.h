/* log.h - what a process of the node did, as JSON lines on stderr: one write per record, at most LOG_LINE_MAX bytes, so that
 * records of several processes never mix. When stderr is a terminal a record is a line for people instead. Records below the
 * level cost nothing; more than LOG_BURST a second are counted and dropped, errors excepted. Usable from any thread.
 *
 *     log_text(LOG_LEVEL_INFO, "listening on %s", addr);
 *
 *     struct log_line l;
 *     if (log_start(&l, LOG_LEVEL_INFO, "sandbox created")) {
 *         log_str(&l, "sandbox", id);
 *         log_end(&l);
 *     }
 *
 * Values are escaped here; secrets must not be given. A record that grows too long loses its last fields and says so.
 */
#ifndef HUTCH_BASE_LOG_H
#define HUTCH_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum { LOG_LINE_MAX = 4096, LOG_BURST = 2000 };

/* `process` stands in every record ("front"); static storage. fd is usually 2. */
void log_open(const char *process, enum log_level level, int fd);
/* "error", "warn", "info", "debug". */
bool log_level_of(const char *word, enum log_level *ret);
bool log_on(enum log_level level);

struct log_line {
    size_t n;
    bool cut, human;
    char text[LOG_LINE_MAX];
};
/* False: the record is not wanted; nothing else may be called for it then. */
bool log_start(struct log_line *l, enum log_level level, const char *message);
/* A NULL or empty request id is left out. */
void log_request(struct log_line *l, const char *request_id);
void log_str(struct log_line *l, const char *key, const char *value); /* NULL is left out */
void log_u64(struct log_line *l, const char *key, uint64_t value);
void log_end(struct log_line *l);

void log_text(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
