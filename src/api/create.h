/* create.h - creating a sandbox: the parts of a create's body that every dialect reads in the same way, and the act itself.
 * A dialect reads its body into a struct api_create and calls api_create_sandbox(); what a field is called and what an
 * absent one means is the dialect's to say.
 */
#ifndef HUTCH_API_CREATE_H
#define HUTCH_API_CREATE_H

#include <jansson.h>

#include "api/api.h"
#include "network/doc/documents.h"

enum {
    API_METADATA_MAX = 64,          /* pairs */
    API_METADATA_KEY_MAX = 256,     /* bytes */
    API_METADATA_VALUE_MAX = 4096,  /* bytes */
    API_METADATA_TOTAL_MAX = 16384, /* bytes of all keys and values */
    API_ENV_MAX = 256,              /* variables */
    API_ENV_NAME_MAX = 256,
    API_ENV_TOTAL_MAX = 48 * 1024, /* bytes: they travel to init in one message */
    API_IDEMPOTENCY_KEY_MAX = 128,
};
/* The checked body of a create. */
/* Answers in the words of a dialect. */
typedef void api_create_refuse_fn(struct http_req *r, const struct sandbox_failure *failure);
struct api_create {
    struct sandbox_spec spec;
    struct strv ignored; /* names of unknown fields, for a response header */
    struct net_doc net;
    bool net_given; /* the body asks for a network of its own, or for none */
    bool refusals_given;
    enum net_dialect dialect;
    api_create_refuse_fn *refuse; /* NULL: reply_refuse() with what the failure says */
};
void api_create_done(struct api_create *c);
/* Creates the sandbox that `what` describes, calls `answer` with it, or answers with an error; frees `what`. */
void api_create_sandbox(struct api_call *c, struct api_create *what,
                        void (*answer)(struct http_req *r, struct sandbox *b));
/* An `answer` for api_create_sandbox(): 201 with the sandbox's JSON. */
void api_answer_created(struct http_req *r, struct sandbox *b);

/* Readers of fields: 0 or more, or -1 with a text for a 400 that names the field and what it should be. */
/* The members of an object of strings: metadata and variables, with the limits above. */
int api_read_metadata(json_t *root, struct strv *ret, struct err *err);
int api_read_env(json_t *root, const char *field, struct strv *ret, struct err *err);
/* "history": true or false overrides the template; an absent field leaves the template's setting. */
int api_read_history(json_t *root, struct sandbox_desc *ret, struct err *err);
/* Names of volumes and absolute paths. api_create_sandbox() looks the volumes up. */
int api_read_mounts(json_t *root, const char *field, struct api_create *ret, struct err *err);
/* The same for directories that the operator offers. */
int api_read_host_dirs(json_t *root, const char *field, struct api_create *ret, struct err *err);
/* "timeout" in seconds; max 0: no limit. */
int api_read_timeout(json_t *root, int64_t otherwise, uint32_t max, uint32_t *ret, struct err *err);
/* The longest timeout that the caller may ask for, in seconds; 0: no limit. */
uint32_t api_longest_life(const struct api_call *c);

#endif
