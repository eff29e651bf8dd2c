/* corpus_main.c - runs a fuzz driver over files and directories, for builds without libFuzzer. Prints the file before it
 * is tried when HUTCH_CORPUS_VERBOSE is set, so that a crash names its input. */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long tried;

static int try_file(const char *path)
{
    _cleanup_buf_ struct buf b = {0};
    if (getenv("HUTCH_CORPUS_VERBOSE"))
        (void)fprintf(stderr, "%s\n", path);
    if (fd_read_file(AT_FDCWD, path, 1 << 20, &b) < 0) {
        perror(path);
        return -1;
    }
    /* An exact-size copy, so that reading one byte too far is seen. */
    _cleanup_free_ uint8_t *copy = malloc(b.n ? b.n : 1);
    if (!copy)
        return -1;
    for (size_t i = 0; i < b.n; i++)
        copy[i] = (uint8_t)b.p[i];
    (void)LLVMFuzzerTestOneInput(copy, b.n);
    tried++;
    return 0;
}

static int try_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        perror(path);
        return -1;
    }
    if (!S_ISDIR(st.st_mode))
        return try_file(path);
    _cleanup_closedir_ DIR *dir = opendir(path);
    int status = 0;
    if (!dir)
        return -1;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        _cleanup_free_ char *name = path_join(path, e->d_name);
        if (try_path(name) < 0)
            status = -1;
    }
    return status;
}

int main(int argc, char **argv)
{
    int status = 0;
    for (int i = 1; i < argc; i++)
        if (try_path(argv[i]) < 0)
            status = 1;
    (void)printf("%lu inputs\n", tried);
    return tried > 0 ? status : 1;
}
