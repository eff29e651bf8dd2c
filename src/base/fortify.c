/* fortify.c - the checked functions that Debian's static libraries call and musl does not have. Compiled into the program
 * that is linked with musl, nowhere else. Each does what its glibc namesake does: an overflow ends the program. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __snprintf_chk(char *to, size_t n, int flag, size_t room, const char *fmt, ...);
int __vsnprintf_chk(char *to, size_t n, int flag, size_t room, const char *fmt, va_list ap);
char *__strncpy_chk(char *to, const char *from, size_t n, size_t room);

int __vsnprintf_chk(char *to, size_t n, int flag, size_t room, const char *fmt, va_list ap)
{
    (void)flag;
    if (n > room)
        abort();
    return vsnprintf(to, n, fmt, ap);
}

int __snprintf_chk(char *to, size_t n, int flag, size_t room, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int r = __vsnprintf_chk(to, n, flag, room, fmt, ap);
    va_end(ap);
    return r;
}

char *__strncpy_chk(char *to, const char *from, size_t n, size_t room)
{
    if (n > room)
        abort();
    return strncpy(to, from, n);
}
