#include "keeper/place.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/random.h"
#include "keeper/proto.h"
#include "keeper/request.h"

_Static_assert((int)STACK_BASE_MAX == (int)KEEPER_TEMPLATE_MAX, "a base is a template's name");
_Static_assert(sizeof(struct stack_file) == 16 + STACK_BASE_MAX + (STACK_LAYERS_MAX + 1) * SHA256_BYTES,
               "no bytes between the fields that no code sets");

static const char magic[8] = "hstack1";
enum { VERSION = 1, ID_RANDOM = 24, ID_TAIL_MIN = 8, ID_TAIL_MAX = 32 };

/* --- directories -------------------------------------------------------------------------------------------------- */

static int place_open_dir(int at, const char *name, mode_t mode, int *ret, struct err *err)
{
    struct stat st;
    if (mkdirat(at, name, mode) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make the directory %s of the store", name);
    *ret = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret < 0 || fstat(*ret, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "open the directory %s of the store", name);
    /* Restore bits that the umask removed; a mode that the operator changed otherwise stays. */
    if ((st.st_mode & 07777 & ~mode) == 0 && (st.st_mode & 07777) != mode && fchmod(*ret, mode) < 0)
        return err_set(err, ERR_SETUP, errno, "set the mode of the directory %s of the store", name);
    return 0;
}

int layers_place_open(int state, int templates, struct layers_place *ret, struct err *err)
{
    *ret = (struct layers_place)LAYERS_PLACE_INIT;
    if (place_open_dir(state, LAYERS_DIR, 0700, &ret->root, err) < 0)
        return -1;
    const struct {
        const char *name;
        mode_t mode;
        int *fd;
    } dirs[] = {{"layers", 0755, &ret->layers}, {"stacks", 0700, &ret->stacks},   {"tmp", 0700, &ret->tmp},
                {"uppers", 0700, &ret->uppers}, {"volumes", 0700, &ret->volumes}, {"blobs", 0700, &ret->blobs}};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        if (place_open_dir(ret->root, dirs[i].name, dirs[i].mode, dirs[i].fd, err) < 0) {
            layers_place_close(ret);
            return -1;
        }
    if (templates >= 0 && (ret->templates = fcntl(templates, F_DUPFD_CLOEXEC, 3)) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "keep the directory of templates");
        layers_place_close(ret);
        return -1;
    }
    return 0;
}

void layers_place_close(struct layers_place *p)
{
    int *fds[] = {&p->root, &p->layers, &p->stacks, &p->tmp, &p->uppers, &p->volumes, &p->blobs, &p->templates};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
}

/* --- ids and files ------------------------------------------------------------------------------------------------ */

bool stack_id_valid(const char *id)
{
    if (strncmp(id, "st-", 3) != 0)
        return false;
    size_t n = strnlen(id + 3, ID_TAIL_MAX + 1);
    return n >= ID_TAIL_MIN && n <= ID_TAIL_MAX && strspn(id + 3, "abcdefghijklmnopqrstuvwxyz0123456789") == n;
}

void stack_id_new(char ret[STACK_ID_MAX])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345"; /* 32: every one of five bits */
    unsigned char bytes[ID_RANDOM];
    random_bytes(bytes, sizeof bytes);
    memcpy(ret, "st-", 3);
    for (size_t i = 0; i < sizeof bytes; i++)
        ret[3 + i] = letters[bytes[i] & 31];
    ret[3 + sizeof bytes] = '\0';
}

static void stack_file_sum(const struct stack_file *f, uint8_t ret[SHA256_BYTES])
{
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, f, offsetof(struct stack_file, sum));
    sha256_end(&h, ret);
}

static bool base_valid(const char base[STACK_BASE_MAX])
{
    if (base[0] == '\0')
        return true;
    /* A stack cannot stand on the host's tree or on another stack. */
    return keeper_template_valid(base) && strcmp(base, "host") != 0 && !stack_id_valid(base);
}

bool stack_file_valid(const struct stack_file *f)
{
    uint8_t sum[SHA256_BYTES];
    if (memcmp(f->magic, magic, sizeof magic) != 0 || f->version != VERSION || f->n > STACK_LAYERS_MAX ||
        !base_valid(f->base) || (f->n == 0 && f->base[0] == '\0'))
        return false;
    stack_file_sum(f, sum);
    return memcmp(sum, f->sum, sizeof sum) == 0;
}

void stack_file_seal(struct stack_file *f)
{
    memcpy(f->magic, magic, sizeof magic);
    f->version = VERSION;
    stack_file_sum(f, f->sum);
}

int stack_read(const struct layers_place *p, const char *id, struct stack_file *ret, struct err *err)
{
    if (!stack_id_valid(id))
        return err_set(err, ERR_USAGE, 0, "a stack's id is \"st-\" and %d to %d of a-z and 0-9", ID_TAIL_MIN,
                       ID_TAIL_MAX);
    _cleanup_close_ int fd = openat(p->stacks, id, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "open the stack %s", id);
    struct stack_file f;
    char more;
    ssize_t n = pread(fd, &f, sizeof f, 0), after = pread(fd, &more, 1, sizeof f);
    if (n < 0 || after < 0)
        return err_set(err, ERR_SETUP, errno, "read the stack %s", id);
    if (n != sizeof f || after != 0 || !stack_file_valid(&f))
        return err_set(err, ERR_SETUP, EBADMSG, "the stack %s is damaged", id);
    *ret = f;
    return 0;
}

/* --- trees -------------------------------------------------------------------------------------------------------- */

static int open_beneath(int dir, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

int layer_open(const struct layers_place *p, const uint8_t layer[SHA256_BYTES], struct err *err)
{
    char path[LAYER_NAME + 8];
    for (size_t i = 0; i < SHA256_BYTES; i++)
        (void)snprintf(path + 2 * i, 3, "%02x", layer[i]);
    memcpy(path + 2 * SHA256_BYTES, "/root", 6);
    int fd = open_beneath(p->layers, path);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open the layer %.12s", path) : fd;
}

static int base_open(const struct layers_place *p, const char *base, struct err *err)
{
    char path[STACK_BASE_MAX + 8];
    (void)snprintf(path, sizeof path, "%s/root", base);
    if (p->templates < 0)
        return err_set(err, ERR_SETUP, ENOENT, "there is no directory of templates for %s", base);
    int fd = open_beneath(p->templates, path);
    return fd < 0 ? err_set(err, ERR_SETUP, errno, "open the template %s", base) : fd;
}

int stack_open(const struct layers_place *p, const struct stack_file *f, int *fds, size_t *n, struct err *err)
{
    size_t room = *n, have = 0, want = f->n + (f->base[0] ? 1U : 0U);
    *n = 0;
    if (want > room)
        return err_set(err, ERR_INTERNAL, 0, "a stack of %zu directories does not fit into %zu", want, room);
    for (; have < want; have++) {
        fds[have] = have < f->n ? layer_open(p, f->layer[have], err) : base_open(p, f->base, err);
        if (fds[have] < 0)
            break;
    }
    if (have == want) {
        *n = want;
        return 0;
    }
    while (have > 0)
        (void)close(fds[--have]);
    return -1;
}
