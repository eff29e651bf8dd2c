#include "os/title.h"

#include <stddef.h>
#include <string.h>

static char *area;
static size_t area_len;

/* Counts only adjacent strings: one elsewhere was not put there by the kernel. */
static char *title_end_of_strings(char *const *list, char *end)
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
    area_len = (size_t)(title_end_of_strings(envp, title_end_of_strings(argv, argv[0])) - argv[0]);
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
