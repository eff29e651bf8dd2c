/* layers.c - `hutch layers`, the layer store; started by `hutch serve`, which passes directories and sockets by descriptor. */
#include <getopt.h>
#include <stddef.h>
#include <string.h>

#include "base/num.h"
#include "cli/cli.h"
#include "layers/jobs.h"

static const struct option options[] = {
    {"templates", required_argument, NULL, 't'},  {"node", required_argument, NULL, 'n'},
    {"image-uid", required_argument, NULL, 'u'},  {"image-gid", required_argument, NULL, 'g'},
    {"front-gid", required_argument, NULL, 'f'},  {"infra", required_argument, NULL, 'i'},
    {"registries", required_argument, NULL, 'r'}, {NULL, 0, NULL, 0},
};

static bool is_id(const char *text, uint32_t *ret)
{
    uint64_t v;
    if (!num_u64(text, &v) || v >= UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

static bool layers_take_option(struct layers_config *c, int opt, const char *text)
{
    switch (opt) {
    case 't':
        c->templates = text;
        return text[0] == '/';
    case 'n':
        c->node_program = text;
        return text[0] == '/';
    case 'u':
        return is_id(text, &c->image_uid) && c->image_uid != 0;
    case 'g':
        return is_id(text, &c->image_gid) && c->image_gid != 0;
    case 'i':
        c->infra = text;
        return true;
    case 'r':
        c->registries = text;
        return true;
    case 'f':
        return is_id(text, &c->front_gid);
    default:
        return false;
    }
}

int cmd_layers(int argc, char **argv)
{
    struct err err = {0};
    struct layers_config c = {.image_uid = (uid_t)-1, .image_gid = (gid_t)-1, .front_gid = (gid_t)-1};
    int opt, which = 0;
    opterr = 0;
    while ((opt = getopt_long(argc, argv, "", options, &which)) != -1)
        if (opt == '?' || !layers_take_option(&c, opt, optarg)) {
            (void)err_set(&err, ERR_USAGE, 0, "the layer store: %s is not valid%s%s",
                          opt == '?' ? argv[optind - 1] : options[which].name, opt == '?' ? "" : ": ",
                          opt == '?' ? "" : optarg);
            return cli_fail(&err);
        }
    if (layers_run(&c, &err) == 0)
        return 0;
    (void)err_wrap(&err, "layer store");
    return cli_fail(&err);
}
