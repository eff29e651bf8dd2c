#include "os/title.h"

#include <stddef.h>
#include <string.h>

static char *area;
static size_t area_len;

/* Only what follows on without a gap: a string somewhere else is not the kernel's. */
static char *behind(char *const *list, char *end)
{
    for (; *list && *list == end; list++)
        end += strlen(end) + 1;
    return end;
}

void title_note(char *const *argv, char *const *envp)
{
    if (!argv[0])
        return;
    area = argv[0];
    area_len = (size_t)(behind(envp, behind(argv, argv[0])) - argv[0]);
}

void title_forget(const char *title)
{
    size_t n = strlen(title) + 1;
    if (area_len == 0)
        return;
    explicit_bzero(area, area_len); /* nothing in this program reads it again, and a compiler may know that */
    if (n <= area_len)
        memcpy(area, title, n);
}
