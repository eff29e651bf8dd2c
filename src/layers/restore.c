/* restore.c - turns an export back into a stack. The worker checks the sums that make it an export; the job sees
 * layers. */
#include "base/cleanup.h"
#include "layers/import.h"

int job_restore(struct job *j, struct err *err)
{
    if (import_done(j))
        return 0;
    int rc = import_archive(j, j->fds[0], "", true, err);
    /* Drop the image's configuration: job_export() writes an empty one. */
    if (j->reply_fd >= 0)
        (void)close(j->reply_fd);
    j->reply_fd = -1;
    return rc;
}
