/* send-file.h - sends an open file as the whole answer: ranges, the file's name and time, HEAD. It never blocks the loop. */
#ifndef HUTCH_API_SEND_FILE_H
#define HUTCH_API_SEND_FILE_H

#include <stdbool.h>
#include <time.h>

#include "http/http.h"

/* Of a socket over which a regular file comes: its size and time. */
struct send_file_facts {
    uint64_t size;
    time_t mtime;
};
/* Takes r->user and closes fd: a regular file, a pipe, or a socket over which the bytes come from the first on. facts: NULL
 * if it is no socket, or if the length is not known. */
void api_send_file(struct http_req *r, int fd, const char *name, const struct send_file_facts *facts);
/* Whether a worker may read an open file: of a FUSE file system inside the sandbox it could wait for ever. */
bool api_file_is_trusted(int fd);

#endif
