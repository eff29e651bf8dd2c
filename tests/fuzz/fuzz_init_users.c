/* /etc/passwd, /etc/group and paths, as a tenant may write them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "init/init-int.h"
#include "init/users.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct user u;
    struct users_file f = {.p = (const char *)data, .n = size};
    char name[INIT_USER_MAX + 1], path[INIT_PATH_MAX];
    if (users_by_name(f, "user", &u) && (u.home[0] != '/' || strcmp(u.name, "user") != 0))
        abort();
    users_groups(f, &u);
    if (u.ngroups < 1 || u.ngroups > USERS_GROUPS_MAX)
        abort();
    (void)users_name_of(f, 1000, name, sizeof name);
    (void)users_group_of(f, 1000, name, sizeof name);
    char *s = malloc(size + 1);
    if (!s)
        return 0;
    if (size > 0)
        memcpy(s, data, size);
    s[size] = '\0';
    paths_resolve(path, "/home/user", "/work", s);
    if (path[0] != '\0' &&
        (path[0] != '/' || strstr(path, "/../") || strstr(path, "//") || strlen(path) >= INIT_PATH_MAX))
        abort();
    free(s);
    return 0;
}
