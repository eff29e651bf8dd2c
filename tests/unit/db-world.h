/* db-world.h - a database in a directory of its own, a loop for its answers, and what was answered. */
#ifndef HUTCH_TESTS_UNIT_DB_WORLD_H
#define HUTCH_TESTS_UNIT_DB_WORLD_H

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "db/db.h"
#include "tests/lib/unit.h"

static char dir[64], path[96];
static int dir_fd;
static struct loop *loop;
static struct db *db;

static int rm_one(const char *p, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(p);
}

static void open_it(void)
{
    struct err err = {0};
    if (db_open(loop, dir_fd, dir, &db, &err) < 0)
        fail_msg("%s", err.msg);
}
static void reopen(void)
{
    db_close(db);
    open_it();
}

static int set_up(void **state)
{
    struct err err;
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/hutch-db-XXXXXX");
    if (!mkdtemp(dir) || loop_new(&loop, &err) < 0)
        return -1;
    (void)snprintf(path, sizeof path, "%s/" DB_FILE, dir);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    open_it();
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    db_close(db);
    db = NULL;
    loop_free(loop);
    (void)close(dir_fd);
    return nftw(dir, rm_one, 8, FTW_DEPTH | FTW_PHYS);
}

struct result {
    int calls, failures;
    char msg[1024];
};
static void done(void *arg, const struct err *err)
{
    struct result *r = arg;
    r->calls++;
    if (err) {
        r->failures++;
        (void)snprintf(r->msg, sizeof r->msg, "%s", err->msg);
    }
}
static void wait_for(const struct result *r, int calls)
{
    struct err err;
    AWAIT (r->calls >= calls)
        assert_int_equal(loop_step(loop, 20, &err), 0);
    assert_int_equal(r->calls, calls);
}

#endif
