/* Writes the configuration as a file, and as the table of the documentation. */
#include <string.h>

#include "base/cleanup.h"
#include "config/config-int.h"
#include "policy/node.h"

/* In a form that num_size() and its like read back exactly. */
static void config_add_size(struct buf *out, uint64_t v)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    unsigned i = 0;
    for (; v != 0 && v % 1024 == 0 && i + 1 < ARRAY_LEN(units); i++)
        v /= 1024;
    buf_addf(out, "%llu%s", (unsigned long long)v, units[i]);
}

static void config_add_seconds(struct buf *out, uint64_t v)
{
    if (v != 0 && v % 3600 == 0)
        buf_addf(out, "%lluh", (unsigned long long)v / 3600);
    else
        buf_addf(out, "%llus", (unsigned long long)v);
}

static void config_add_number(struct buf *out, enum config_kind kind, uint64_t v)
{
    if (kind == KEY_SIZE)
        config_add_size(out, v);
    else if (kind == KEY_SECONDS)
        config_add_seconds(out, v);
    else if (kind == KEY_CPUS && v % 1000 != 0)
        buf_addf(out, "%llu.%03llu", (unsigned long long)v / 1000, (unsigned long long)v % 1000);
    else
        buf_addf(out, "%llu", (unsigned long long)(kind == KEY_CPUS ? v / 1000 : v));
}

void config_range(const struct config_key *k, struct buf *out)
{
    if (k->max == 0)
        return;
    buf_adds(out, "between ");
    config_add_number(out, k->kind, k->min);
    buf_adds(out, " and ");
    config_add_number(out, k->kind, k->max);
}

static void config_add_value(const struct config *c, const struct config_key *k, struct buf *out)
{
    const void *at = (const char *)c + k->at;
    switch (k->kind) {
    case KEY_BOOL:
        buf_adds(out, *(const bool *)at ? "true" : "false");
        return;
    case KEY_WORD:
        buf_adds(out, k->words[2] ? *(char *const *)at : k->words[*(const bool *)at]);
        return;
    case KEY_SIZE:
    case KEY_U64:
        config_add_number(out, k->kind, *(const uint64_t *)at);
        return;
    case KEY_CPUS:
    case KEY_SECONDS:
    case KEY_U32:
        config_add_number(out, k->kind, *(const uint32_t *)at);
        return;
    default:
        if (*(char *const *)at)
            node_add_scalar(out, *(char *const *)at);
    }
}

static void config_add_comment(const struct config_key *k, const char *indent, struct buf *out)
{
    buf_addf(out, "%s# %s.", indent, k->help);
    if (*k->standard)
        buf_addf(out, " Default %s", k->standard);
    if (k->max) {
        buf_adds(out, *k->standard ? ", " : " ");
        config_range(k, out);
    }
    buf_adds(out, *k->standard || k->max ? ".\n" : "\n");
}

void config_show(const struct config *c, bool comments, struct buf *out)
{
    char section[32] = "";
    for (const struct config_key *k = config_keys; k->name; k++) {
        const char *dot = strchr(k->name, '.');
        size_t len = dot ? (size_t)(dot - k->name) : 0;
        /* Always write values that depend on the environment; leave out defaults, so that they stay defaults. */
        if (!comments && *k->standard && !c->given[k - config_keys])
            continue;
        if (comments && k != config_keys && (!dot || strlen(section) != len || strncmp(section, k->name, len) != 0))
            buf_addc(out, '\n');
        if (dot && (strlen(section) != len || strncmp(section, k->name, len) != 0)) {
            (void)memcpy(section, k->name, len);
            section[len] = '\0';
            buf_addf(out, "%s:\n", section);
        }
        const char *indent = dot ? "  " : "";
        if (comments)
            config_add_comment(k, indent, out);
        buf_addf(out, "%s%s: ", indent, dot ? dot + 1 : k->name);
        config_add_value(c, k, out);
        while (out->n > 0 && out->p[out->n - 1] == ' ')
            out->n--;
        buf_addc(out, '\n');
    }
}

void config_docs(struct buf *out)
{
    buf_adds(out, "| key | default | range | what |\n|---|---|---|---|\n");
    for (const struct config_key *k = config_keys; k->name; k++) {
        _cleanup_buf_ struct buf range = {0};
        config_range(k, &range);
        for (size_t i = 0; k->words && k->words[i]; i++)
            buf_addf(&range, "%s`%s`", i ? ", " : "", k->words[i]);
        buf_addf(out, "| `%s` | %s%s%s | %s | %s |\n", k->name, *k->standard ? "`" : "", k->standard,
                 *k->standard ? "`" : "", buf_str(&range), k->help);
    }
}
