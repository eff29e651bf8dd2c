/* config.c - `hutch config`: checks a configuration and shows the values in force. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "config/config.h"

static const char usage[] = "usage: hutch config check FILE    check a configuration of `hutch serve`\n"
                            "       hutch config show [FILE]   show all keys with their values in force and meaning\n"
                            "\n"
                            "Without FILE " CONFIG_PATH " is read, if it is there. All keys: docs/config.md\n"
                            "\n"
                            "example: hutch config show >/etc/hutch/config.yaml; edit it; hutch config check "
                            "/etc/hutch/config.yaml\n";

static int config_show_file(const char *path)
{
    struct config c;
    struct err err = {0};
    struct buf out = {0};
    if (config_load(path, &c, &err) < 0)
        return cli_fail(&err);
    config_show(&c, true, &out);
    (void)fwrite(out.p, 1, out.n, stdout);
    buf_done(&out);
    config_done(&c);
    return 0;
}

static int config_check_file(const char *path)
{
    struct config c;
    struct err err = {0};
    if (config_load(path, &c, &err) < 0)
        return cli_fail(&err);
    config_done(&c);
    printf("%s: ok\n", path);
    return 0;
}

int cmd_config(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (strcmp(what, "check") == 0 && argc == 3)
        return config_check_file(argv[2]);
    if (strcmp(what, "show") == 0 && argc <= 3)
        return config_show_file(argc == 3 ? argv[2] : NULL);
    if (strcmp(what, "docs") == 0 && argc == 2) { /* the table of docs/config.md; not for people */
        struct buf out = {0};
        config_docs(&out);
        (void)fwrite(out.p, 1, out.n, stdout);
        buf_done(&out);
        return 0;
    }
    fputs(usage, stderr);
    return ERR_USAGE;
}
