/* main.c - `hutch-node image WHAT`: parses its arguments, confines itself, works, reports the result. */
#include <fcntl.h>
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/num.h"
#include "image/image-int.h"

static const struct {
    const char *name;
    int (*run)(const struct image_options *o, struct err *err);
    bool net;
} commands[] = {
    {"unpack", image_unpack, false},
    {"layer", image_layer, false},
    {"pack", image_pack, false},
    {"fetch", image_fetch, true},
};

static const struct option options[] = {
    {"image", required_argument, NULL, 'i'},
    {"hutch", no_argument, NULL, 'h'},
    {"oci", no_argument, NULL, 'o'},
    {"private", no_argument, NULL, 'p'},
    {"infra", required_argument, NULL, 'n'},
    {"registries", required_argument, NULL, 'r'},
    {"max-bytes", required_argument, NULL, 'b'},
    {"max-entries", required_argument, NULL, 'e'},
    {NULL, 0, NULL, 0},
};

static int image_read_options(int argc, char **argv, struct image_options *o)
{
    int opt;
    *o = (struct image_options){.image = "", .ref = ""};
    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        if (opt == 'i')
            o->image = optarg;
        else if (opt == 'h')
            o->hutch = true;
        else if (opt == 'o')
            o->oci = true;
        else if (opt == 'p')
            o->private = true;
        else if (opt == 'n')
            o->infra = optarg;
        else if (opt == 'r')
            o->registries = optarg;
        else if (opt == '?' || (opt == 'b' && !num_u64(optarg, &o->max_bytes)) ||
                 (opt == 'e' && !num_u64(optarg, &o->max_entries)))
            return -1;
    }
    if (optind < argc)
        o->ref = argv[optind++];
    return optind < argc || o->max_bytes > IMAGE_BYTES_MAX ? -1 : 0;
}

static void image_on_no_memory(void)
{
    struct err err = {0};
    (void)image_fail(&err, IMAGE_TOO_LARGE, "the image worker ran out of memory over it");
    say_failed(&err);
    _exit(1);
}

int image_main(int argc, char **argv)
{
    struct image_options o;
    struct err err = {0};
    size_t i = 0;
    const char *what = argc > 1 ? argv[1] : "";
    while (i < sizeof commands / sizeof commands[0] && strcmp(commands[i].name, what) != 0)
        i++;
    if (i == sizeof commands / sizeof commands[0] || image_read_options(argc - 1, argv + 1, &o) < 0 ||
        fcntl(IMAGE_FD_CONTROL, F_GETFD) < 0) {
        static const char text[] = "hutch-node image is started by the layer store and not by hand\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        return ERR_USAGE;
    }
    mem_on_failure(image_on_no_memory);
    int rc = commands[i].net ? image_fetch_prepare(&err) : 0;
    if (rc == 0)
        rc = image_confine(commands[i].net, &err);
    if (rc == 0)
        rc = commands[i].run(&o, &err);
    if (rc < 0)
        say_failed(&err);
    /* Not exit(): handlers that libraries registered must not run in the confined process. */
    _exit(rc < 0 ? 1 : 0);
}
