/* send-file.h - sends an open file as the whole answer: ranges, the file's name and time, HEAD. It never blocks the loop. */
#ifndef HUTCH_API_SEND_FILE_H
#define HUTCH_API_SEND_FILE_H

#include "http/http.h"

/* Takes r->user and closes fd. */
void api_send_file(struct http_req *r, int fd, const char *name);

#endif
