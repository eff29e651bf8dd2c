#include "os/term.h"

#include <stddef.h>

static volatile sig_atomic_t came;
static void term_on_signal(int sig)
{
    (void)sig;
    came = 1;
}

void term_hold(sigset_t *ret)
{
    struct sigaction act = {.sa_handler = term_on_signal};
    sigset_t term;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigprocmask(SIG_BLOCK, &term, ret);
    (void)sigdelset(ret, SIGTERM);
}

bool term_came(void) { return came; }
