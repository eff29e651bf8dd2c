/* Lets a test stop a job at a named stage. The product has no such switch. */
#include "layers/jobs.h"

#ifdef HUTCH_LAYER_REMOVAL
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* The test makes RUN/hold-STAGE. The job takes it by renaming it, and goes on when the test removes it. */
void job_hold(const struct job *j, const char *stage)
{
    static const struct timespec moment = {.tv_nsec = 2000000};
    char asked[40], held[48];
    (void)snprintf(asked, sizeof asked, "hold-%s", stage);
    (void)snprintf(held, sizeof held, "%s-reached", asked);
    if (renameat(j->run_dir, asked, j->run_dir, held) < 0)
        return;
    while (faccessat(j->run_dir, held, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        (void)nanosleep(&moment, NULL);
}
#else
void job_hold(const struct job *j, const char *stage) { (void)j, (void)stage; }
#endif
