/* sandbox-own.c - gives each sandbox its own machine id, boot id and volumes, in the child before its entry function. No
 * allocation; failures go to the shared page. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/path.h"
#include "wall/inside.h"
#include "wall/sandbox-int.h"

#define BOOT_ID "sys/kernel/random/boot_id" /* in /proc */

enum { ID_BYTES = 16, NAME_ROOM = 256, RESOLVED_ROOM = 4096 };

/* Neither waits nor fails: no code of ours runs before the kernel's pool is ready. */
static void own_random_id(unsigned char ret[ID_BYTES]) { (void)!getrandom(ret, ID_BYTES, 0); }

void sandbox_own_machine_id(char ret[34])
{
    unsigned char v[ID_BYTES] = {0};
    own_random_id(v);
    for (unsigned i = 0; i < ID_BYTES; i++)
        (void)snprintf(ret + (size_t)2 * i, 3, "%02x", v[i]);
    memcpy(ret + 32, "\n", 2);
}

int sandbox_own_boot_id(struct inside *in, int *ret)
{
    unsigned char v[ID_BYTES] = {0};
    char text[64];
    own_random_id(v);
    v[6] = (unsigned char)((v[6] & 0x0f) | 0x40); /* a random UUID, as the kernel's */
    v[8] = (unsigned char)((v[8] & 0x3f) | 0x80);
    (void)snprintf(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", v[0],
                   v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]);
    _cleanup_close_ int vault = inside_place(in, "/sys");
    _cleanup_close_ int f =
        vault < 0 ? -1 : openat(vault, "boot", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (f < 0 || fd_write_all(f, text, strlen(text)) < 0)
        return inside_fail(in, errno, "make the boot id");
    _cleanup_close_ int at = openat(vault, "boot", O_PATH | O_NOFOLLOW | O_CLOEXEC);
    *ret = at < 0 ? -1 : mount_clone(at, "", 0);
    if (*ret < 0 || mount_set(*ret, "", MOUNT_RO | MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC) < 0)
        return inside_fail(in, errno, "take the boot id");
    return 0;
}

int sandbox_own_cover_boot_id(struct inside *in, int fd)
{
    int r = mount_attach_at(fd, in->proc, BOOT_ID), eno = errno;
    (void)close(fd);
    return r < 0 && eno != ENOENT ? inside_fail(in, eno, "cover /proc/%s", BOOT_ID) : 0;
}

/* --- volumes -------------------------------------------------------------------------------------------------------- */

/* A usage error: the client chose the place and can choose another. */
#define REFUSE(in, eno, ...) (inside_fail((in), (eno), "volume: " __VA_ARGS__), (in)->shared->err.code = ERR_USAGE, -1)

static int own_open_dir(int root, const char *path) { return fd_open_in_root(root, path, O_PATH | O_DIRECTORY, 0); }

/* The path of a descriptor as the kernel resolves it, seen from the new root, in which we stand. */
static bool own_name_of_fd(int fd, char ret[RESOLVED_ROOM])
{
    char link[32];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, ret, RESOLVED_ROOM - 1);
    ret[n > 0 ? n : 0] = '\0';
    return n > 0 && ret[0] == '/';
}

static bool own_is_kernel_path(const char *path)
{
    return path_under(path, "/proc") || path_under(path, "/dev") || path_under(path, "/sys");
}

/* Opens the next directory and makes it if it is missing; a link may lead anywhere but to the kernel's trees. */
static int own_step_into(struct inside *in, int at, const char *prefix, const char *name, const char *place)
{
    char real[RESOLVED_ROOM];
    int fd = own_open_dir(in->root, prefix);
    if (fd < 0 && errno == ENOENT) {
        if (mkdirat(at, name, 0755) < 0)
            return REFUSE(in, errno, "make %s for %s", prefix, place);
        fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd < 0)
        return REFUSE(in, errno, "%s cannot be a place for a directory: %s", place, prefix);
    if (own_name_of_fd(fd, real) && !own_is_kernel_path(real))
        return fd;
    (void)close(fd);
    return REFUSE(in, 0, "%s leads to %.100s, where nothing can be mounted", place, real);
}

static int own_find_place(struct inside *in, const char *place)
{
    char prefix[RESOLVED_ROOM], name[NAME_ROOM];
    int at = own_open_dir(in->root, "/");
    for (const char *p = place; at >= 0 && *(p += strspn(p, "/"));) {
        size_t n = strcspn(p, "/"), upto = (size_t)(p - place) + n;
        if (n >= sizeof name || upto >= sizeof prefix) {
            (void)close(at);
            return REFUSE(in, ENAMETOOLONG, "%s", place);
        }
        (void)snprintf(name, sizeof name, "%.*s", (int)n, p);
        (void)snprintf(prefix, sizeof prefix, "%.*s", (int)upto, place);
        int next = own_step_into(in, at, prefix, name, place);
        (void)close(at);
        if (next < 0)
            return -1;
        at = next;
        p += n;
    }
    return at < 0 ? inside_fail(in, errno, "volume: open the root") : at;
}

/* Refuses nested volumes: mounting one in another would create directories in the outer one. */
static int own_check_apart(struct inside *in, const struct wall_sandbox_spec *s, size_t i, const char *real,
                           char (*before)[NAME_ROOM])
{
    if (strcmp(real, "/") == 0 || strlen(real) >= NAME_ROOM)
        return REFUSE(in, 0, "%s leads to %.100s, where none can be", s->volumes[i].place, real);
    for (size_t k = 0; k < i; k++)
        if (path_under(real, before[k]) || path_under(before[k], real))
            return REFUSE(in, 0, "%s and %s are one inside the other", s->volumes[k].place, s->volumes[i].place);
    (void)snprintf(before[i], NAME_ROOM, "%s", real);
    return 0;
}

int sandbox_own_volumes(struct inside *in, const struct wall_sandbox_spec *s, const int *fds)
{
    char before[WALL_SANDBOX_VOLUMES_MAX][NAME_ROOM], real[RESOLVED_ROOM];
    for (size_t i = 0; i < s->nvolumes; i++) {
        _cleanup_close_ int at = own_find_place(in, s->volumes[i].place);
        if (at < 0 || !own_name_of_fd(at, real) || own_check_apart(in, s, i, real, before) < 0)
            return at < 0 || in->shared->failed ? -1 : inside_fail(in, errno, "volume: find its place");
        if (mount_attach(fds[i], at) < 0)
            return inside_fail(in, errno, "volume: mount it at %s", s->volumes[i].place);
        (void)close(fds[i]);
    }
    return 0;
}
