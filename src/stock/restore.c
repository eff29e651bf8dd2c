/* restore.c - an export becomes a stack again. What makes it an export, its sums, is checked by the worker; the job
 * sees layers. */
#include "base/cleanup.h"
#include "stock/import.h"

int job_restore(struct job *j, struct err *err)
{
    if (import_done(j))
        return 0;
    int rc = import_archive(j, j->fds[0], "", true, err);
    /* The configuration of an export is made up by whoever exported it and means nothing. */
    if (j->reply_fd >= 0)
        (void)close(j->reply_fd);
    j->reply_fd = -1;
    return rc;
}
