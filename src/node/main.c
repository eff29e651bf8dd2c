/* hutch-node: the processes of a node that need more libraries than the static program `hutch` has. Users start it with
 * `hutch serve`, and `hutch cluster` is here because its engines need these libraries, too.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cluster/tool/tool.h"
#include "egress/core/egress.h"
#include "image/image.h"
#include "node/build-base.h"
#include "node/procs.h"

static const char usage[] =
    "usage: hutch serve [options]\n"
    "\n"
    "Serves sandboxes over HTTP on this machine until it is told to stop; sandboxes survive that.\n"
    "\n"
    "  --config FILE        configuration (default " CONFIG_PATH ", if it is there; see docs/config.md)\n"
    "  --state DIR          what outlives a restart (root: /var/lib/hutch)\n"
    "  --run DIR            sockets (root: /run/hutch)\n"
    "  --listen ADDR:PORT   plain HTTP (default 127.0.0.1:7070)\n"
    "  --listen-tls ADDR:PORT  HTTPS (default port 7443, with a certificate)\n"
    "  --domain NAME[:PORT] name under which sandboxes are reached: PORT-ID.NAME\n"
    "  --tls-cert FILE --tls-key FILE   certificate and key, PEM\n"
    "  --tls-dev            a certificate authority of this machine's own, for development\n"
    "  --no-base            do not build the templates slim and base\n"
    "  --help               this text\n"
    "\n"
    "The first start prints the operator's API key, which is kept in STATE/admin.key. An ordinary user's node keeps "
    "its\n"
    "state in ~/.local/state/hutch and its sockets in $XDG_RUNTIME_DIR/hutch or, without that, in STATE/run.\n"
    "HUTCH_STATE and HUTCH_URL tell the other commands of a node that is not in its usual place. Guide: docs/node.md\n"
    "\n"
    "examples:\n"
    "  hutch serve\n"
    "  hutch serve --tls-dev                               names and HTTPS on this machine\n"
    "  hutch serve --state ./state --run ./run --listen 127.0.0.1:7171 --no-base\n";

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},
    {"state", required_argument, NULL, 's'},
    {"run", required_argument, NULL, 'r'},
    {"listen", required_argument, NULL, 'l'},
    {"domain", required_argument, NULL, 'd'},
    {"tls-cert", required_argument, NULL, 'C'},
    {"tls-key", required_argument, NULL, 'K'},
    {"tls-dev", no_argument, NULL, 'D'},
    {"listen-tls", required_argument, NULL, 'L'},
    {"no-base", no_argument, NULL, 'B'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int node_fail(const struct err *err)
{
    fprintf(stderr, "hutch: %s\n", err->msg);
    return err->code ? err->code : ERR_INTERNAL;
}

static const char *serve_option_key(int opt)
{
    switch (opt) {
    case 's':
        return "state";
    case 'r':
        return "run";
    case 'l':
        return "listen";
    case 'L':
        return "listen_tls";
    case 'd':
        return "domain";
    case 'C':
        return "tls.cert";
    case 'K':
        return "tls.key";
    case 'D':
        return "tls.dev";
    case 'B':
        return "templates.base";
    default:
        return NULL;
    }
}

/* Paths on the command line may be relative, unlike those in a file. */
static int serve_set_option(struct config *c, int opt, int index, const char *text, struct err *err)
{
    char where[40], path[4096];
    (void)snprintf(where, sizeof where, "--%s", options[index].name);
    const char *value = opt == 'D' ? "true" : opt == 'B' ? "off" : text ? text : "";
    if (strchr("srCK", opt) && value[0] != '/') {
        char cwd[2048];
        if (!getcwd(cwd, sizeof cwd) || (size_t)snprintf(path, sizeof path, "%s/%s", cwd, value) >= sizeof path)
            return err_set(err, ERR_USAGE, 0, "%s: the path is too long", where);
        value = path;
    }
    return config_set(c, serve_option_key(opt), value, where, err);
}

/* Reads the file before the flags, so that flags override it. 1: --help was printed. */
static int serve_read_options(int argc, char **argv, struct config *c, struct err *err)
{
    const char *file = access(CONFIG_PATH, F_OK) == 0 ? CONFIG_PATH : NULL;
    int opt, index = -1;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, "+h", options, &index)) != -1) {
        if (opt == 'c')
            file = optarg;
        if (opt == 'h') {
            fputs(usage, stdout);
            return 1;
        }
        if (opt == '?')
            return err_set(err, ERR_USAGE, 0,
                           "serve: %s is not an option, or lacks its value; `hutch serve --help` lists all",
                           argv[optind - 1]);
    }
    if (optind < argc)
        return err_set(err, ERR_USAGE, 0, "serve: unexpected argument %s", argv[optind]);
    if (file && config_file(c, file, err) < 0)
        return -1;
    optind = 1;
    while ((opt = getopt_long(argc, argv, "+h", options, &index)) != -1)
        if (opt != 'c' && serve_set_option(c, opt, index, optarg, err) < 0)
            return -1;
    return config_finish(c, err);
}

static int serve_main(int argc, char **argv)
{
    struct config c;
    struct node_files n = NODE_FILES_INIT;
    struct err err = {0};
    enum log_level level = LOG_LEVEL_INFO;
    config_start(&c);
    int rc = serve_read_options(argc, argv, &c, &err);
    if (rc == 0) {
        (void)log_level_of(c.log_level, &level);
        log_open("supervisor", level, STDERR_FILENO);
        rc = node_files_open(&c, &n, &err);
    }
    if (rc == 0)
        rc = node_supervise(&c, &n, &err);
    node_files_close(&n);
    config_done(&c);
    return rc < 0 ? node_fail(&err) : 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "serve") == 0)
        return serve_main(argc - 1, argv + 1);
    if (strcmp(what, "cluster") == 0)
        return cluster_main(argc - 1, argv + 1);
    if (strcmp(what, "front") == 0)
        return front_main(argc - 1, argv + 1);
    if (strcmp(what, "egress") == 0)
        return egress_main(argc - 1, argv + 1);
    if (strcmp(what, "image") == 0)
        return image_main(argc - 1, argv + 1);
    if (strcmp(what, "build-base") == 0 && argc == 2 + TEMPLATE_BUILD_ARGS)
        return template_build_main(argv + 2);
    fputs(usage, stderr);
    return ERR_USAGE;
}
