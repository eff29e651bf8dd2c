/* rights.h - what a client says that one command may less than its sandbox: the object `rights` of every dialect.
 *
 *     {"network": "off", "write": "none" | ["/work", "~/out"], "user": "own", "timeoutSeconds": 60, "outputBytes": 65536,
 *      "memoryMB": 256}
 */
#ifndef HUTCH_SANDBOXES_RIGHTS_H
#define HUTCH_SANDBOXES_RIGHTS_H

#include <jansson.h>

#include "base/err.h"
#include "peers/exec.h"

enum { RIGHTS_TEXT_MAX = 64 * 1024 };

/* Made by the readers below; rights_done() frees what they hold. */
struct rights {
    bool given; /* false: the rights of the sandbox */
    struct exec_rights exec;
    const char *write[EXEC_WRITE_MAX + 1]; /* borrowed from own */
    json_t *own;
};
/* NULL gives no rights at all, as null does. ERR_USAGE names the field. */
int rights_read(json_t *o, struct rights *ret, struct err *err);
/* The same of text, from a header or a variable; `where` begins the message. */
int rights_read_text(const char *where, const char *text, struct rights *ret, struct err *err);
void rights_done(struct rights *r);
#define _cleanup_rights_ __attribute__((cleanup(rights_done)))

/* What r holds goes to the caller. */
struct rights rights_take(struct rights *r);
/* For exec_spec.rights. Points into r. */
const struct exec_rights *rights_of(struct rights *r);

#endif
