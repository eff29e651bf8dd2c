/* page.h - errors of the data plane, where programs and people with a browser ask alike: JSON, or a small page if a browser
 * is navigating.
 */
#ifndef HUTCH_API_PAGE_H
#define HUTCH_API_PAGE_H

#include <stdint.h>

#include "http/http.h"

/* port 0: not named. limit: the limit of connections that was reached, else 0. hint: a sentence for people, may be NULL;
 * message and hint are written into the page as they are. */
void page_refuse(struct http_req *r, unsigned status, const char *sandbox, uint32_t port, unsigned limit,
                 const char *message, const char *hint);
/* Answers that there is no such sandbox. */
void page_no_sandbox(struct http_req *r, const char *sandbox);

#endif
