#include "cli/run/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/text.h"

#define FILES  "Files"
#define LIMITS "Limits"
#define RIGHTS "Rights"
#define OUTPUT "Output"

const struct run_option run_options[] = {
    {"rw", 0, "DIR[:DEST]", "let the command write here (repeatable)", "files.allow_write", FILES},
    {"rw-make", 0, "DIR", "the same, and make the directory if it does not exist (repeatable)", "files.make_write",
     FILES},
    {"ro", 0, "SRC[:DEST]", "show SRC read-only, at DEST if given", "files.read_only", FILES},
    {"deny", 0, "PATH", "hide this from the command", "files.deny_read", FILES},
    {"allow-read", 0, "PATH", "show this even if a rule hides it", "files.allow_read", FILES},
    {"protect", 0, "PATH", "keep this read-only inside a writable directory", "files.deny_write", FILES},
    {"tmpfs", 0, "PATH", "an empty private directory", "files.tmpfs", FILES},
    {"dev", 0, "PATH", "show a device of the host in /dev", "files.devices", FILES},
    {"unix-socket", 0, "PATH", "keep a unix socket of the host reachable", "files.sockets", FILES},
    {"try", 0, NULL, "the next path option is skipped if its path does not exist", NULL, FILES},
    {"no-cwd", 0, NULL, "do not make the current directory writable", NULL, FILES},
    {"chdir", 'C', "DIR", "start here instead of in the current directory", NULL, FILES},
    {"root", 0, "DIR[:DIR...]", "use these directories as the root, uppermost first; changes are private", NULL, FILES},
    {"tx", 0, NULL, "write to private layers; show the changes at the end and ask whether to apply them", NULL, FILES},
    {"commit-on-success", 0, NULL, "with --tx: apply them if the command exits with 0, without asking", NULL, FILES},
    {"memory", 'm', "SIZE", "memory of all processes together, e.g. 512M", "limits.memory", LIMITS},
    {"cpus", 0, "N", "processors, e.g. 1.5", "limits.cpu", LIMITS},
    {"pids", 0, "N", "processes and threads", "limits.pids", LIMITS},
    {"disk", 0, "SIZE", "private writable parts: /tmp, the upper layer of --root", "limits.disk", LIMITS},
    {"inodes", 0, "N", "files in the private writable parts", "limits.inodes", LIMITS},
    {"open-files", 0, "N", "open files per process", "limits.open_files", LIMITS},
    {"timeout", 't', "TIME", "end the command after this, e.g. 30s, 5m", "limits.wall_time", LIMITS},
    {"cpu-time", 0, "TIME", "processor time of all processes together", "limits.cpu_time", LIMITS},
    {"output-bytes", 0, "SIZE", "end the command when it has written this much to stdout and stderr",
     "limits.output_bytes", LIMITS},
    {"env", 'e', "K=V", "set a variable", "env.set", RIGHTS},
    {"pass-env", 0, "NAME", "pass a variable of yours; NAME may end in *", "env.pass", RIGHTS},
    {"network", 0, "off|public|host",
     "off (default): loopback only; public: the internet, by a proxy; host: the host's own", "network", RIGHTS},
    {"allow-host", 0, "HOST[:PORT]", "let the command reach this host (repeatable)", "network.allow", RIGHTS},
    {"allow-private", 0, "HOST[:PORT][=RANGE,...]",
     "let this host have a private or reserved address: behind a VPN, a proxy or split DNS (repeatable)",
     "network.private", RIGHTS},
    {"deny-host", 0, "HOST[:PORT]", "refuse this host even if a rule allows it", "network.deny", RIGHTS},
    {"secret", 0, "NAME=HOST[,HOST...]",
     "let the command use your variable NAME with these hosts without reading it (repeatable)", NULL, RIGHTS},
    {"secret-file", 0, "NAME=FILE", "take the value of a --secret from a file, which is hidden from the command", NULL,
     RIGHTS},
    {"privilege", 0, "strict|computer", "computer: uid 0 and sudo inside; needs --root", "privilege", RIGHTS},
    {"profile", 0, "NAME", "system calls: default, debugger, no-unix", "syscalls.profile", RIGHTS},
    {"allow-syscall", 0, "NAME", "allow a system call that the profile refuses", "syscalls.allow", RIGHTS},
    {"deny-syscall", 0, "NAME", "refuse a system call", "syscalls.deny", RIGHTS},
    {"enforcement", 0, "required|best-effort", "what to do if this host cannot enforce something", "enforcement",
     RIGHTS},
    {"preset", 0, "NAME|list",
     "what a tool needs: its hosts, caches and state, e.g. npm, pip, claude (repeatable); list: all there are",
     "preset", RIGHTS},
    {"policy", 'p', "FILE", "merge this policy document (repeatable)", NULL, RIGHTS},
    {"settings", 0, "FILE", "take over a sandbox-runtime settings file", NULL, RIGHTS},
    {"fd", 0, "N", "keep this descriptor open for the command", NULL, RIGHTS},
    {"hostname", 0, "NAME", "host name inside", NULL, RIGHTS},
    {"json", 0, "FD|FILE", "write the result record here", NULL, OUTPUT},
    {"audit", 0, "FILE", "add a line for everything that leaves, chained; `hutch audit verify FILE` checks it", NULL,
     OUTPUT},
    {"explain", 0, NULL, "also record refused reads and writes of files (costs a little per file opened)", NULL,
     OUTPUT},
    {"trace-start", 0, NULL, "print to stderr how many microseconds each step of starting and ending took", NULL,
     OUTPUT},
    {"learn", 0, "FILE", "run permissively on a private copy and write the smallest policy that would do", NULL,
     OUTPUT},
    {"quiet", 'q', NULL, "print nothing about refusals", NULL, OUTPUT},
    {"help", 'h', NULL, "show this", NULL, OUTPUT},
    {"version", 'V', NULL, "show the version", NULL, OUTPUT},
    {NULL, 0, NULL, NULL, NULL, NULL},
};

static const struct run_option *option_find(const char *word, size_t n)
{
    for (const struct run_option *o = run_options; o->name; o++)
        if (strlen(o->name) == n && strncmp(o->name, word, n) == 0)
            return o;
    return NULL;
}

static int option_unknown(const char *word, struct err *err)
{
    const char *names[64];
    size_t n = 0;
    for (const struct run_option *o = run_options; o->name && n < 63; o++)
        names[n++] = o->name;
    names[n] = NULL;
    _cleanup_free_ char *bare = xstrndup(word + 2, strcspn(word + 2, "="));
    const char *near = text_nearest(bare, names);
    if (near)
        return err_set(err, ERR_USAGE, 0, "unknown option %s; did you mean --%s?", word, near);
    return err_set(err, ERR_USAGE, 0, "unknown option %s; `hutch run --help` lists all", word);
}

static int take_own(struct run_args *a, const struct run_option *o, const char *value, struct err *err)
{
    const char *n = o->name;
    if (strcmp(n, "no-cwd") == 0)
        a->no_cwd = true;
    else if (strcmp(n, "chdir") == 0)
        a->chdir = value;
    else if (strcmp(n, "root") == 0)
        a->root = value;
    else if (strcmp(n, "policy") == 0)
        strv_add(&a->policies, value);
    else if (strcmp(n, "secret") == 0)
        strv_add(&a->secrets, value);
    else if (strcmp(n, "secret-file") == 0)
        strv_add(&a->secret_files, value);
    else if (strcmp(n, "settings") == 0)
        a->settings = value;
    else if (strcmp(n, "hostname") == 0)
        a->hostname = value;
    else if (strcmp(n, "json") == 0)
        a->json = value;
    else if (strcmp(n, "audit") == 0)
        a->audit = value;
    else if (strcmp(n, "explain") == 0)
        a->explain = true;
    else if (strcmp(n, "trace-start") == 0)
        a->trace_start = true;
    else if (strcmp(n, "learn") == 0)
        a->learn = value;
    else if (strcmp(n, "tx") == 0)
        a->tx = true;
    else if (strcmp(n, "commit-on-success") == 0)
        a->tx = a->commit = true;
    else if (strcmp(n, "quiet") == 0)
        a->quiet = true;
    else if (strcmp(n, "help") == 0)
        a->help = true;
    else if (strcmp(n, "version") == 0)
        a->version = true;
    else if (strcmp(n, "fd") == 0) {
        int fd;
        if (!num_int(value, 3, 1023, &fd))
            return err_set(err, ERR_USAGE, 0, "--fd %s: a descriptor from 3 to 1023 is wanted", value);
        if (a->nkeep == ARRAY_LEN(a->keep_fds))
            return err_set(err, ERR_USAGE, 0, "--fd: at most %zu descriptors can be kept", ARRAY_LEN(a->keep_fds));
        size_t at = a->nkeep++; /* ascending */
        for (; at > 0 && a->keep_fds[at - 1] > fd; at--)
            a->keep_fds[at] = a->keep_fds[at - 1];
        a->keep_fds[at] = fd;
    }
    return 0;
}

static int option_take(struct run_args *a, const struct run_option *o, const char *value, bool *try_next,
                       struct err *err)
{
    if (strcmp(o->name, "try") == 0) {
        *try_next = true;
        return 0;
    }
    if (!o->key)
        return take_own(a, o, value, err);
    strv_take(&a->texts, xasprintf("--%s %s", o->name, value));
    MEM_GROW(a->flags, a->nflags, a->cap);
    a->flags[a->nflags++] = (struct policy_flag){
        .key = o->key, .value = value, .text = a->texts.v[a->texts.n - 1], .flags = *try_next ? FILE_TRY : 0U};
    *try_next = false;
    return 0;
}

int run_args_parse(int argc, char **argv, struct run_args *ret, struct err *err)
{
    bool try_next = false;
    int i = 1;
    *ret = (struct run_args){0};
    for (; i < argc; i++) {
        const char *word = argv[i], *value = NULL;
        const struct run_option *o = NULL;
        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (word[0] != '-' || word[1] == '\0')
            break;
        if (word[1] == '-') {
            size_t n = strcspn(word + 2, "=");
            o = option_find(word + 2, n);
            value = word[2 + n] == '=' ? word + 3 + n : NULL;
            if (!o)
                return option_unknown(word, err);
            if (value && !o->arg)
                return err_set(err, ERR_USAGE, 0, "--%s takes no value", o->name);
        } else {
            for (const struct run_option *c = run_options; c->name; c++)
                if (c->short_name && c->short_name == word[1])
                    o = c;
            if (!o || (word[2] && !o->arg))
                return err_set(err, ERR_USAGE, 0, "unknown option %s; `hutch run --help` lists all", word);
            value = word[2] ? word + 2 : NULL;
        }
        if (o->arg && !value) {
            if (i + 1 >= argc)
                return err_set(err, ERR_USAGE, 0, "--%s needs %s", o->name, o->arg);
            value = argv[++i];
        }
        if (option_take(ret, o, value, &try_next, err) < 0)
            return -1;
    }
    if (try_next)
        return err_set(err, ERR_USAGE, 0, "--try stands before --rw, --ro or another path option; none followed");
    ret->command = i < argc ? argv + i : NULL;
    return 0;
}

void run_args_done(struct run_args *a)
{
    free(a->flags);
    strv_done(&a->texts);
    strv_done(&a->policies);
    strv_done(&a->secrets);
    strv_done(&a->secret_files);
    *a = (struct run_args){0};
}

void run_help(void)
{
    const char *group = "";
    puts("usage: hutch run [options] [--] COMMAND [ARG...]\n\n"
         "Runs one command behind a wall: it may read most of the host but no keys and tokens, write only\n"
         "to the current directory and a private /tmp, and reach no network.");
    for (const struct run_option *o = run_options; o->name; o++) {
        char left[64];
        if (strcmp(o->group, group) != 0)
            printf("\n%s:\n", group = o->group);
        (void)snprintf(left, sizeof left, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        if (o->short_name)
            printf("  -%c, %-32s %s\n", o->short_name, left, o->help);
        else
            printf("      %-32s %s\n", left, o->help);
    }
    puts("\nExit code: that of the command; 128+N if signal N ended it; 120 usage, 121 policy, 122 this host cannot,\n"
         "123 set-up failed, 124 a limit was reached, 125 internal, 126 not executable, 127 not found.\n\n"
         "Examples:\n"
         "  hutch run -- npm test\n"
         "  hutch run --preset npm -- npm install express\n"
         "  hutch run --memory 512M --timeout 30s -- python3 job.py\n"
         "  hutch run --no-cwd --rw ./out -- make DESTDIR=./out install\n"
         "  hutch run --json result.json --explain -- sh build.sh\n"
         "  hutch run -- bash                  a shell with job control");
}
