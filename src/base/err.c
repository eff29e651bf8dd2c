#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef err_set /* what the analyzer sees of it in other files */
int err_set(struct err *err, enum err_code code, int eno, const char *fmt, ...)
{
    va_list ap;
    err->code = code;
    err->eno = eno;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (eno != 0 && n >= 0 && (size_t)n < sizeof err->msg)
        (void)snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", strerror(eno));
    return -1;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    char old[sizeof err->msg];
    va_list ap;
    memcpy(old, err->msg, sizeof old);
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->msg)
        (void)snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %.900s", old);
    return -1;
}
