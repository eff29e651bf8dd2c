/* exec-json.h - how a command's end is written in answers of every dialect. */
#ifndef HUTCH_API_EXEC_JSON_H
#define HUTCH_API_EXEC_JSON_H

#include "base/json.h"
#include "peers/exec.h"

/* "stdout", "stderr", "pty", by enum exec_stream. */
extern const char *const api_exec_streams[];
/* Adds "usage", and "death" if a signal a limit of its rights or the memory limit ended the command. */
void api_add_exec_end(struct json *j, const struct exec_end *end);

#endif
