#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/json.h"
#include "cli/cli.h"
#include "os/probe/probe.h"

static const char usage[] = "usage: hutch doctor [--json] [--quiet]\n"
                            "\n"
                            "Tries what `hutch run` needs on this host and says how to get what is missing.\n"
                            "\n"
                            "  --json    one JSON object instead of the table\n"
                            "  --quiet   only what is missing, with its remedy\n"
                            "  --help    this text\n"
                            "\n"
                            "Exit code: 0 if `hutch run` works behind every wall, 122 if it does not.\n"
                            "\n"
                            "examples:\n"
                            "  hutch doctor\n"
                            "  hutch doctor --json | jq -r '.probes[] | select(.state == \"missing\") | .remedy'\n";

static const char *state_name(enum probe_state s)
{
    static const char *const names[] = {"ok", "advice", "missing"};
    return names[s];
}

static const char *need_name(enum probe_need n)
{
    static const char *const names[] = {"run", "container", "feature", "hardening"};
    return names[n];
}

/* The names of what --root and a node need and this host has not: "a and b". */
static void doctor_add_lacking(const struct probe_report *r, struct buf *out)
{
    bool first = true;
    for (size_t i = 0; i < r->n; i++)
        if (r->probes[i].need == NEED_CONTAINER && r->results[i].state == PROBE_MISSING) {
            buf_addf(out, "%s`%s`", first ? "" : " and ", r->probes[i].title);
            first = false;
        }
}

/* One line: what `hutch run` can do on this host. */
static void doctor_add_verdict(const struct probe_report *r, struct buf *out)
{
    const struct probe_result *limits = probe_find(r, "cgroup.limits");
    if (r->tier == TIER_NONE) {
        buf_adds(out, "`hutch run` cannot work here.");
        return;
    }
    if (r->tier == TIER_NESTED) {
        buf_adds(out,
                 "only Landlock, seccomp and rlimits can be had here; `hutch run` needs `--enforcement best-effort`.");
        return;
    }
    buf_adds(out, limits && limits->state == PROBE_MISSING
                      ? "`hutch run` works behind every wall; without a cgroup, rlimits and a watcher hold limits as "
                        "far as they can"
                      : "`hutch run` works with everything enforced");
    if (r->tier == TIER_CONTAINER) {
        buf_adds(out, ", also with --root.");
        return;
    }
    buf_adds(out, "; --root does not: it needs ");
    doctor_add_lacking(r, out);
    buf_addc(out, '.');
}

static bool doctor_has(const struct probe_report *r, const char *id)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->probes[i].id, id) == 0)
            return r->results[i].state == PROBE_OK;
    return false;
}

/* What a node enforces here; less if an ordinary user starts it. */
static void node_verdict(const struct probe_report *r, struct buf *out)
{
    if (r->tier != TIER_CONTAINER) {
        buf_adds(out, "`hutch serve` does not work here: it needs what --root needs.");
        return;
    }
    buf_adds(
        out,
        geteuid() == 0
            ? "`hutch serve` works: every sandbox has a uid range of its own"
            : "`hutch serve` works for this user: sandboxes share one uid range, host directories are not id-mapped");
    buf_adds(out, doctor_has(r, "cgroup.limits")
                      ? ", limits are held by cgroups."
                      : ", memory, CPU and process limits are not enforced (no cgroup of its own; `hutch "
                        "serve` says so in every answer).");
}

static void doctor_print_table(const struct probe_report *r, bool quiet, struct buf *out)
{
    const char *group = "";
    for (size_t i = 0; i < r->n; i++) {
        const struct probe *p = &r->probes[i];
        const struct probe_result *res = &r->results[i];
        if (quiet && res->state != PROBE_MISSING)
            continue;
        if (!quiet && strcmp(group, p->group) != 0)
            buf_addf(out, "%s%s\n", *group ? "\n" : "", p->group);
        group = p->group;
        buf_addf(out, "  %-8s %-34s %s\n", state_name(res->state), p->title, res->detail);
        if (res->remedy[0])
            buf_addf(out, "  %-8s %-34s -> %s\n", "", "", res->remedy);
    }
    buf_addf(out, "%stier: %s\n", quiet ? "" : "\n", probe_tier_name(r->tier));
    doctor_add_verdict(r, out);
    buf_addc(out, '\n');
    node_verdict(r, out);
    buf_addc(out, '\n');
}

static void capacity_json(struct json *j)
{
    struct probe_capacity c;
    if (probe_read_capacity(&c) < 0) {
        json_none(j, "capacity");
        return;
    }
    json_obj(j, "capacity");
    json_u64(j, "at_rest", c.at_rest);
    json_str(j, "at_rest_bound_by", c.at_rest_by);
    json_u64(j, "full", c.full);
    json_str(j, "full_bound_by", c.full_by);
    json_obj(j, "limits");
    json_u64(j, "kernel.pid_max", c.pid_max);
    json_u64(j, "kernel.threads-max", c.threads_max);
    json_u64(j, "fs.file-max", c.file_max);
    json_u64(j, "nofile", c.nofile);
    json_end_obj(j);
    json_end_obj(j);
}

static void doctor_print_json(const struct probe_report *r, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_str(&j, "version", HUTCH_VERSION);
    json_str(&j, "tier", probe_tier_name(r->tier));
    json_bool(&j, "can_run", r->can_run);
    json_bool(&j, "root", geteuid() == 0);
    _cleanup_buf_ struct buf node = {0};
    node_verdict(r, &node);
    json_str(&j, "serve", buf_str(&node));
    capacity_json(&j);
    json_arr(&j, "probes");
    for (size_t i = 0; i < r->n; i++) {
        const struct probe *p = &r->probes[i];
        json_obj(&j, NULL);
        json_str(&j, "id", p->id);
        json_str(&j, "state", state_name(r->results[i].state));
        json_str(&j, "needed_for", need_name(p->need));
        json_str(&j, "title", p->title);
        json_str(&j, "tested", p->how);
        json_str(&j, "detail", r->results[i].detail);
        json_str(&j, "remedy", r->results[i].remedy[0] ? r->results[i].remedy : NULL);
        json_end_obj(&j);
    }
    json_end_arr(&j);
    json_end_obj(&j);
    buf_addc(out, '\n');
}

int cmd_doctor(int argc, char **argv)
{
    enum { OPT_JSON = 256, OPT_QUIET, OPT_HELP };
    static const struct option options[] = {{"json", no_argument, NULL, OPT_JSON},
                                            {"quiet", no_argument, NULL, OPT_QUIET},
                                            {"help", no_argument, NULL, OPT_HELP},
                                            {0}};
    bool as_json = false, quiet = false;
    _cleanup_buf_ struct buf out = {0};
    struct err err;
    struct probe_report report;
    opterr = 0;
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, "qh", options, NULL)) != -1;) {
        if (c == OPT_JSON) {
            as_json = true;
        } else if (c == OPT_QUIET || c == 'q') {
            quiet = true;
        } else if (c == OPT_HELP || c == 'h') {
            return (void)fputs(usage, stdout), 0;
        } else {
            (void)err_set(&err, ERR_USAGE, 0, "doctor: unknown option '%s'; see hutch doctor --help", argv[optind - 1]);
            return cli_fail(&err);
        }
    }
    if (optind < argc) {
        (void)err_set(&err, ERR_USAGE, 0, "doctor takes no arguments, got '%s'", argv[optind]);
        return cli_fail(&err);
    }
    probe_run_all(&report);
    if (as_json)
        doctor_print_json(&report, &out);
    else
        doctor_print_table(&report, quiet, &out);
    int code = report.can_run ? 0 : ERR_HOST;
    probe_report_done(&report);
    if (fd_write_all(STDOUT_FILENO, buf_str(&out), out.n) < 0) {
        (void)err_set(&err, ERR_INTERNAL, 0, "doctor: standard output is closed or full");
        return cli_fail(&err);
    }
    return code;
}
