#include "node/build-base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "node/build-int.h"

#define SMALL                                                                                                        \
    "bash,coreutils,sudo,curl,git,python3,python-is-python3,ncurses-bin,util-linux,procps,ca-certificates,iproute2," \
    "less,xz-utils"
/* What a person, an agent and E2B's base expect of a computer. */
#define LARGE                                                                                                         \
    "build-essential,bzip2,file,gnupg,iputils-ping,jq,libffi-dev,libssl-dev,lsof,nano,netcat-openbsd,openssh-client," \
    "patch,pkg-config,python3-dev,python3-pip,python3-venv,ripgrep,rsync,sqlite3,strace,tree,unzip,vim,wget,zip,"     \
    "zlib1g-dev"

/* In the order they are built: the small one can be used while the large one is being made. */
static const struct recipe recipes[] = {
    {TEMPLATE_SLIM, SMALL, false, false},
    {TEMPLATE_BASE, SMALL "," LARGE, true, true},
};

static bool recipe_wanted(const struct recipe *r, const char *what)
{
    return what && (strcmp(what, "auto") == 0 || strcmp(what, r->name) == 0);
}

static bool recipe_missing(int dirfd, const struct recipe *r, const char *what)
{
    struct stat st;
    return recipe_wanted(r, what) && fstatat(dirfd, r->name, &st, 0) < 0;
}

bool template_build_missing(int dirfd, const struct config *c)
{
    for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
        if (recipe_missing(dirfd, &recipes[i], c->build_base))
            return true;
    return false;
}

void template_build_tell(int dirfd, const struct config *c, const char *state, const char *text)
{
    for (size_t i = 0; i < ARRAY_LEN(recipes); i++)
        if (recipe_missing(dirfd, &recipes[i], c->build_base))
            builder_set_progress(dirfd, recipes[i].name, state, text);
}

/* --- the root ----------------------------------------------------------------------------------------------------- */

/* The release of this host, which its apt sources belong to. */
static int builder_host_suite(char ret[40], struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, "/etc/os-release", 1 << 16, &text) == 0) {
        const char *at = strstr(buf_str(&text), "VERSION_CODENAME=");
        if (at && sscanf(at, "VERSION_CODENAME=%39[a-z]", ret) == 1)
            return 0;
    }
    return err_set(err, ERR_HOST, 0,
                   "this host's release is not known (no VERSION_CODENAME in /etc/os-release); put a root directory at "
                   "templates/base/" TEMPLATE_ROOT " instead");
}

/* Hooks of mmdebstrap that bring files of the node into the new root: its namespace cannot read them itself. */
static void builder_add_upload(struct strv *argv, const char *path, const char *name)
{
    strv_take(argv, xasprintf("--customize-hook=upload '%s' '/var/tmp/hutch/%s'", path, name));
}

static void builder_add_hooks(const struct builder *b, struct strv *argv)
{
    static const char *const of_node[] = {"node.tgz", "npm.tgz"};
    strv_add(argv, "--setup-hook=mkdir -p \"$1/var/cache/apt/archives\"");
    strv_take(argv, xasprintf("--setup-hook=sync-in '%s/" FETCHED "/archives' /var/cache/apt/archives", b->dir));
    strv_add(argv, "--customize-hook=mkdir -p \"$1/var/tmp/hutch\"");
    for (size_t i = 0; b->recipe->node && i < ARRAY_LEN(of_node); i++) {
        _cleanup_free_ char *path = xasprintf("%s/" FETCHED "/%s", b->dir, of_node[i]);
        builder_add_upload(argv, path, of_node[i]);
    }
    if (*b->mirrors.pip)
        builder_add_upload(argv, b->mirrors.pip, "pip.conf");
    if (*b->mirrors.npm && b->recipe->node)
        builder_add_upload(argv, b->mirrors.npm, "npmrc");
    strv_take(argv, xasprintf("--customize-hook=%.*s", (int)finish_root_size, finish_root));
}

/* Packages that were fetched: each is unpacked and set up. */
static unsigned builder_count_packages(int dirfd)
{
    unsigned n = 0;
    int fd = openat(dirfd, FETCHED "/archives", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    _cleanup_closedir_ DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, ".deb") != NULL;
    return n;
}

static int builder_run_mmdebstrap(struct builder *b, const char *target, int out, struct err *err)
{
    static const char *const fixed[] = {"--variant=minbase",
                                        "--verbose",
                                        "--skip=essential/unlink",
                                        "--aptopt=Acquire::GzipIndexes \"true\"",
                                        "--aptopt=Acquire::Languages \"none\"",
                                        "--aptopt=Acquire::Retries \"3\"",
                                        "--dpkgopt=path-exclude=/usr/share/doc/*",
                                        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
                                        "--dpkgopt=path-exclude=/usr/share/man/*",
                                        "--dpkgopt=path-exclude=/usr/share/locale/*"};
    _cleanup_strv_ struct strv argv = {0};
    char suite[40];
    if (builder_host_suite(suite, err) < 0)
        return -1;
    strv_add(&argv, "mmdebstrap");
    strv_add(&argv, out < 0 ? "--mode=root" : "--mode=unshare");
    strv_add(&argv, out < 0 ? "--format=directory" : "--format=tar");
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        strv_add(&argv, fixed[i]);
    if (b->recipe->lists)
        strv_add(&argv, "--skip=cleanup/apt/lists");
    builder_add_apt_settings(&b->mirrors, &argv);
    strv_take(&argv, xasprintf("--include=%s", b->recipe->packages));
    builder_add_hooks(b, &argv);
    strv_add(&argv, suite);
    strv_add(&argv, target);
    builder_add_apt_sources(&b->mirrors, &argv);
    builder_begin_step(b, 45, 97, "installing packages");
    b->done = 0;
    b->total = builder_count_packages(b->dirfd);
    return builder_run_program(b, &argv, -1, out, err);
}

/* An ordinary user's mmdebstrap cannot enter the directory of templates: its temporary files have a directory of their
 * own, which this builder removes when it ends. */
static int builder_make_tmpdir(struct builder *b, struct err *err)
{
    const char *where = getenv("TMPDIR");
    if (b->tmp)
        return 0;
    char *path = xasprintf("%s/hutch-build-XXXXXX", where && *where == '/' ? where : "/tmp");
    if (!mkdtemp(path) || chmod(path, 01777) < 0 || setenv("TMPDIR", path, 1) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "cannot make %s", path);
        free(path);
        return -1;
    }
    b->tmp = path;
    return 0;
}

/* apt and mmdebstrap leave temporary files behind when they are ended: they lie where the next build removes them. */
static int builder_set_tmpdir(struct builder *b, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("%s/" FETCHED "/tmp", b->dir);
    if (geteuid() != 0)
        return builder_make_tmpdir(b, err);
    if ((mkdirat(b->dirfd, FETCHED, 0755) < 0 && errno != EEXIST) || (mkdir(path, 0700) < 0 && errno != EEXIST) ||
        setenv("TMPDIR", path, 1) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make %s", path);
    return 0;
}

static int builder_make_root(struct builder *b, const char *work, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    _cleanup_free_ char *root = xasprintf("%s/%s/" TEMPLATE_ROOT, b->dir, work);
    if (geteuid() == 0)
        return builder_run_mmdebstrap(b, root, -1, err);
    /* mmdebstrap's own namespace cannot enter a user's private directories, so it writes an archive. */
    _cleanup_close_ int tar = openat(b->dirfd, work, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (tar < 0 || mkdir(root, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write to %s/%s", b->dir, work);
    if (builder_run_mmdebstrap(b, "-", tar, err) < 0)
        return -1;
    builder_begin_step(b, 97, 99, "unpacking");
    builder_add_namespace(&argv);
    strv_add(&argv, "tar");
    strv_add(&argv, "--extract");
    strv_add(&argv, "--numeric-owner");
    strv_add(&argv, "--preserve-permissions");
    strv_add(&argv, "--exclude=./dev/*"); /* only real root makes device nodes; sandboxes have a /dev of their own */
    strv_add(&argv, "--file=-");
    strv_take(&argv, xasprintf("--directory=%s", root));
    if (lseek(tar, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read the archive");
    return builder_run_program(b, &argv, tar, -1, err);
}

static int builder_remove_path(struct builder *b, const char *path, struct err *err)
{
    _cleanup_strv_ struct strv argv = {0};
    builder_add_namespace(&argv);
    strv_add(&argv, "rm");
    strv_add(&argv, "-rf");
    strv_add(&argv, "--one-file-system");
    strv_add(&argv, path);
    return builder_run_program(b, &argv, -1, -1, err);
}

static int builder_remove(struct builder *b, const char *name, struct err *err)
{
    _cleanup_free_ char *path = xasprintf("%s/%s", b->dir, name);
    struct stat st;
    if (fstatat(b->dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    return builder_remove_path(b, path, err);
}

static void builder_drop_tmpdir(struct builder *b)
{
    struct err ignored;
    if (!b->tmp)
        return;
    (void)builder_remove_path(b, b->tmp, &ignored);
    free(b->tmp);
    b->tmp = NULL;
}

static int builder_build(struct builder *b, struct err *err)
{
    static const char config[] = "# Made by hutch.\nuser: user\nworkdir: /home/user\n";
    char work[40], file[60];
    (void)snprintf(work, sizeof work, ".%s.tmp", b->recipe->name);
    (void)snprintf(file, sizeof file, "%s/config", work);
    builder_begin_step(b, 0, 1, "preparing");
    if (strpbrk(b->dir, "'\n"))
        return err_set(err, ERR_USAGE, 0, "templates.dir: the name of the directory has a quote; take another");
    if (builder_check_mirrors(&b->mirrors, err) < 0 || builder_remove(b, work, err) < 0 ||
        builder_remove(b, FETCHED "/tmp", err) < 0 || builder_set_tmpdir(b, err) < 0 || builder_fetch(b, err) < 0)
        return -1;
    if (mkdirat(b->dirfd, work, 0755) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make %s/%s", b->dir, work);
    if (builder_make_root(b, work, err) < 0) {
        struct err ignored;
        (void)builder_remove(b, work, &ignored);
        return -1;
    }
    builder_begin_step(b, 99, 99, "writing to disk");
    _cleanup_close_ int fd = openat(b->dirfd, file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || fd_write_all(fd, config, sizeof config - 1) < 0 || syncfs(fd) < 0 ||
        renameat2(b->dirfd, work, b->dirfd, b->recipe->name, RENAME_NOREPLACE) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot put the finished root at %s/%s", b->dir, b->recipe->name);
    (void)snprintf(file, sizeof file, "%s" TEMPLATE_PROGRESS, b->recipe->name);
    (void)unlinkat(b->dirfd, file, 0);
    log_text(LOG_LEVEL_INFO, "template %s is ready", b->recipe->name);
    return 0;
}

/* All that are missing; stops at the first that cannot be made, because the next needs the same sources. */
static int builder_build_all(struct builder *b, const char *what, struct err *err)
{
    _cleanup_close_ int lock = openat(b->dirfd, ".base.lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write to %s", b->dir);
    if (flock(lock, LOCK_EX) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot lock %s/.base.lock", b->dir);
    for (size_t i = 0; i < ARRAY_LEN(recipes); i++) {
        b->recipe = &recipes[i];
        if (!recipe_missing(b->dirfd, b->recipe, what) || builder_build(b, err) == 0)
            continue;
        log_text(LOG_LEVEL_ERROR, "template %s: %s", b->recipe->name, err->msg);
        for (; i < ARRAY_LEN(recipes); i++)
            if (recipe_missing(b->dirfd, &recipes[i], what))
                builder_set_progress(b->dirfd, recipes[i].name, "error", err->msg);
        return -1;
    }
    b->step = "removing what was downloaded";
    return builder_remove(b, FETCHED, err);
}

/* Passes the signal on to our process group, so that mmdebstrap removes its mounts before it ends. */
static void builder_on_sigterm(int signo)
{
    (void)signal(signo, SIG_IGN);
    (void)kill(0, signo);
}

int template_build_main(char *const args[TEMPLATE_BUILD_ARGS])
{
    struct err err = {0};
    struct sigaction act = {.sa_handler = builder_on_sigterm, .sa_flags = SA_RESTART};
    struct builder b = {.dir = args[0], .mirrors = {args[2], args[3], args[4]}, .step = "preparing"};
    (void)sigaction(SIGTERM, &act, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    log_open("builder", LOG_LEVEL_INFO, 2);
    _cleanup_close_ int dirfd = open(b.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    b.dirfd = dirfd;
    if (dirfd < 0)
        (void)err_set(&err, ERR_SETUP, errno, "cannot open %s", b.dir);
    int rc = dirfd < 0 ? -1 : builder_build_all(&b, args[1], &err);
    builder_drop_tmpdir(&b);
    if (rc == 0)
        return 0;
    log_text(LOG_LEVEL_ERROR, "templates: %s", err.msg);
    return err.code;
}
