/* interpreter.h - one request to the code interpreter inside a sandbox (docs/code.md): wakes the sandbox, dials its port
 * through init, sends the request and passes the answer on as it comes. Dialects share it.
 *
 * The service inside is not trusted: it may answer with anything, or never. Its refusals become one of the codes below, and
 * its texts are cut. No callback is made from inside interpreter_ask(); the last one is `ended` or `failed`.
 */
#ifndef HUTCH_API_INTERPRETER_H
#define HUTCH_API_INTERPRETER_H

#include "api/api.h"
#include "base/json.h"
#include "http/client.h"

enum {
    INTERPRETER_PORT = 49999,
    INTERPRETER_BODY_MAX = 8 << 20,     /* of a request; the service has the same limit */
    INTERPRETER_PER_SANDBOX_MAX = 100,  /* requests under way */
    INTERPRETER_ANSWER_MS = 90 * 1000,  /* until the head of an answer: a kernel may take 60 s to start */
    INTERPRETER_SILENCE_MS = 60 * 1000, /* then it is lost: a living one sends a line every 2 s */
    INTERPRETER_HELD_MAX = 64 << 20,    /* bytes of bodies that wait for a head, of all sandboxes */
    INTERPRETER_TEXT_MAX = 600          /* of a refusal */
};

struct interpreter_failure {
    unsigned status;  /* for HTTP */
    const char *code; /* "no_interpreter", "context_not_found", ... */
    const char *text;
    bool begun; /* `data` was called: the answer is cut short */
};

struct interpreter_ops {
    void (*data)(void *arg, const void *p, size_t n); /* of an answer with status 200; may call interpreter_refuse() */
    void (*ended)(void *arg);
    void (*failed)(void *arg, const struct interpreter_failure *f);
};

struct interpreter;
/* `body` is JSON and copied; NULL: none. b stays in use until the end. */
struct interpreter *interpreter_ask(struct api *api, struct sandbox *b, const char *method, const char *path,
                                    const struct buf *body, const struct interpreter_ops *ops, void *arg);
/* Ends it without a callback; a cell that it runs is interrupted. NULL is fine. */
void interpreter_cancel(struct interpreter *x);
/* Ends it with `failed`: its answer is too long. */
void interpreter_refuse(struct interpreter *x);
void interpreter_pause(struct interpreter *x);
void interpreter_resume(struct interpreter *x);
/* interpreter-keep.c: idle connections. interpreter_keep() takes c over; interpreter_kept() gives one that is still open,
 * or NULL. Call interpreter_forget() for a sandbox that ends or is paused. */
void interpreter_keep(struct loop *l, const char *sandbox, struct client *c);
struct client *interpreter_kept(const char *sandbox);
void interpreter_forget(const char *sandbox);
/* Adds the member `rights`, if there is one, to a request of which j writes into b. 1: the request goes to the path below
 * INTERPRETER_RIGHTS, which an older service, that would run it with all rights, does not have. 0: no rights; -1: ERR_USAGE. */
int interpreter_add_rights(json_t *rights, struct json *j, struct buf *b, struct err *err);
#define INTERPRETER_RIGHTS "/rights"
/* Whether `id` has the form of a context's id. */
bool interpreter_is_context(const char *id);

#endif
