/* main.c - `hutch cluster`, executed by `hutch` as hutch-node. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/tool/tool.h"

static const char usage[] =
    "usage: hutch cluster check --engine ENGINE\n"
    "\n"
    "A cluster keeps its facts in an engine. There is no cluster of nodes yet; docs/cluster.md says what exists so "
    "far.\n"
    "\n"
    "  check   tries everything that a cluster needs of an engine, on facts of its own that it removes again\n"
    "\n";
static const char examples[] = "\n"
                               "examples:\n"
                               "  mkdir facts && hutch cluster check --engine sqlite:facts\n"
                               "  hutch cluster check --engine http://127.0.0.1:2379\n";

static int main_fail(const struct err *err)
{
    fprintf(stderr, "hutch: cluster: %s\n", err->msg);
    return err->code ? err->code : ERR_INTERNAL;
}

static int main_check(struct engine *e, struct err *err)
{
    struct loop *l = NULL;
    struct facts *f = NULL;
    int failed = -1;
    if (loop_new(&l, err) == 0 && engine_open(e, l, &f, err) == 0) {
        printf("engine: %s\n", facts_engine(f));
        failed = cluster_check(l, f);
        if (failed == 0)
            printf("this engine can be used\n");
        else
            (void)err_set(err, ERR_HOST, 0, "this engine cannot be used: %d of its promises do not hold", failed);
    }
    facts_close(f);
    loop_free(l);
    return failed ? -1 : 0;
}

static int main_usage_error(const char *word, struct err *err)
{
    static const char *const commands[] = {"check", NULL};
    const char *near = text_nearest(word, commands);
    _cleanup_buf_ struct buf shown = {0};
    text_add_safe(&shown, word, 80);
    return err_set(err, ERR_USAGE, 0, "%s is not a command or an option here%s%s; `hutch cluster --help` lists all",
                   buf_str(&shown), near ? "; did you mean " : "", near ? near : "");
}

int cluster_main(int argc, char **argv)
{
    struct engine e = ENGINE_INIT;
    struct err err = {0};
    log_open("cluster", LOG_LEVEL_ERROR, 2);
    int n = engine_take_options(&e, argc, argv, &err);
    for (int i = 1; i <= n; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("%s%s%s", usage, engine_usage, examples);
            return fflush(stdout) == 0 ? 0 : ERR_SETUP;
        }
    int rc = n;
    if (n == 0)
        rc = err_set(&err, ERR_USAGE, 0, "a command must follow: check");
    else if (n > 0 && (n > 1 || strcmp(argv[1], "check") != 0))
        rc = main_usage_error(argv[n > 1 && strcmp(argv[1], "check") == 0 ? 2 : 1], &err);
    else if (n > 0)
        rc = main_check(&e, &err);
    engine_done(&e);
    return rc < 0 ? main_fail(&err) : 0;
}
