#include "cli/run/run-java.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "wall/sandbox-trust.h"

#define STORE_IN_HOME "lib/security/cacerts"

static const char *const places[] = {
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
};

static bool java_has(const struct run_java *j, const char *path)
{
    for (size_t i = 0; i < j->n; i++)
        if (strcmp(j->paths[i], path) == 0)
            return true;
    return false;
}

static void java_add(struct run_java *j, const char *path, const struct buf *bundle, const struct buf *ca)
{
    char real[PATH_MAX];
    struct stat st;
    _cleanup_buf_ struct buf old = {0}, new = {0};
    if (j->n == RUN_JAVA_STORES || !realpath(path, real) || java_has(j, real) || stat(real, &st) < 0 ||
        !S_ISREG(st.st_mode) || fd_read_file(AT_FDCWD, real, TRUST_FILE_MAX, &old) < 0 ||
        jks_make(old.p, old.n, bundle->p, bundle->n, ca->p, ca->n, &new) < 0)
        return;
    j->paths[j->n] = xstrdup(real);
    j->stores[j->n++] = new;
    new = (struct buf){0};
}

/* The home of the `java` that PATH finds: bin/java lies in it, behind links. */
static char *java_in_path(void)
{
    const char *p = getenv("PATH");
    char real[PATH_MAX];
    for (size_t n; p && *p; p += n + (p[n] == ':')) {
        n = strcspn(p, ":");
        _cleanup_free_ char *program = xasprintf("%.*s/java", (int)n, p);
        if (*p != '/' || access(program, X_OK) < 0 || !realpath(program, real))
            continue;
        char *end = strstr(real, "/bin/java");
        if (!end || end[strlen("/bin/java")])
            return NULL;
        *end = '\0';
        return xstrdup(real);
    }
    return NULL;
}

void run_java_make(struct run_java *j, const struct buf *bundle, const struct buf *ca)
{
    const char *given = getenv("JAVA_HOME");
    _cleanup_free_ char *found = java_in_path(), *in_given = NULL, *in_found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        java_add(j, places[i], bundle, ca);
    if (given && *given == '/') {
        in_given = xasprintf("%s/" STORE_IN_HOME, given);
        java_add(j, in_given, bundle, ca);
    }
    if (found) {
        in_found = xasprintf("%s/" STORE_IN_HOME, found);
        java_add(j, in_found, bundle, ca);
    }
}
