/* filter-docs.c - the reference page of the filter, written from its tables so that it cannot drift. */
#include <errno.h>
#include <string.h>

#include "base/text.h"
#include "policy/run/filter-int.h"

static const char *errno_word(int eno)
{
    switch (eno) {
    case ANSWER_ALLOW:
        return "allowed";
    case ANSWER_NETLINK:
        return "made by the supervisor; ENOBUFS beyond 32; EAFNOSUPPORT where there is none";
    case ANSWER_BUFFER:
        return "set by the supervisor; without effect on netlink sockets";
    default:
        return text_errno(eno);
    }
}

static const char *grant_word(enum filter_grant g)
{
    switch (g) {
    case GRANT_NEVER:
        return "never";
    case GRANT_ALLOW:
        return "`syscalls.allow`";
    case GRANT_DEBUGGER:
        return "profile `debugger`, `syscalls.allow`";
    case GRANT_COMPUTER:
        return "privilege `computer`";
    }
    return "";
}

/* Calls with rows of their own are in the second table. */
static bool refused_with(int nr, enum category cat, int eno)
{
    for (size_t i = 0; i < nchecks; i++)
        if (checks[i].nr == nr && checks[i].text)
            return false;
    struct answer a = rules_plain(nr, 0, NULL);
    return syscall_name(nr) && a.cat == cat && a.eno == eno;
}

static void add_refused_row(struct buf *out, enum category cat, int eno)
{
    bool any = false;
    for (int nr = 0; nr <= SYSCALL_MAX; nr++) {
        if (!refused_with(nr, cat, eno))
            continue;
        buf_addf(out, "%s`%s`", any ? ", " : "| ", syscall_name(nr));
        any = true;
    }
    if (any)
        buf_addf(out, " | %s | %s | %s | %s |\n", errno_word(eno), categories[cat].reason,
                 grant_word(categories[cat].grant), categories[cat].notify ? "yes" : "");
}

static void add_refused(struct buf *out)
{
    static const int errnos[] = {EPERM, ENOSYS, EAFNOSUPPORT};
    buf_adds(out, "## Refused calls\n\n"
                  "| Calls | Answer | Because | Can be had with | Recorded |\n|---|---|---|---|---|\n");
    for (int cat = CAT_NONE + 1; cat < CAT_MAX; cat++)
        for (size_t i = 0; i < sizeof errnos / sizeof errnos[0]; i++)
            add_refused_row(out, (enum category)cat, errnos[i]);
}

static void add_checked(struct buf *out)
{
    buf_adds(
        out,
        "\n## Calls that depend on their arguments\n\n"
        "Rows of one call are tried in order; what matches none gets the last answer. Only the low 32 bits count.\n\n"
        "| Call | Arguments | Answer | Because | Can be had with |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < nchecks; i++) {
        const struct check *c = &checks[i];
        if (!c->text)
            continue;
        const struct category_info *cat = &categories[c->answer.cat];
        buf_addf(out, "| `%s` | %s | %s | %s | ", syscall_name(c->nr), c->text, errno_word(c->answer.eno),
                 c->answer.eno != ANSWER_ALLOW ? cat->reason : "");
        const char *word = category_words[c->answer.cat];
        buf_addf(out, word ? "`syscalls.allow: [%s]` |\n" : "%s|\n", word ? word : "");
        bool last = true;
        for (size_t k = i + 1; k < nchecks; k++)
            last = last && !(checks[k].nr == c->nr && checks[k].text);
        if (last && c->conds[0].op != COND_END)
            buf_addf(out, "| `%s` | else | %s | | |\n", syscall_name(c->nr),
                     errno_word(rules_plain(c->nr, 0, NULL).eno));
    }
}

static void add_told(struct buf *out)
{
    buf_adds(out, "\n## Calls the supervisor is told about\n\n"
                  "With `--explain` opens and calls that mean to write to a path, with `--learn` also exec.\n"
                  "They are always continued: mounts decide.\n\n");
    bool any = false;
    for (int nr = 0; nr <= SYSCALL_MAX; nr++)
        for (size_t i = 0; i < nchecks; i++)
            if (rules_applies(&checks[i], nr, rules_complete_flags(FILTER_LEARN)) &&
                checks[i].answer.eno == ANSWER_TELL) {
                buf_addf(out, "%s`%s`", any ? ", " : "", syscall_name(nr));
                any = true;
                break;
            }
    buf_adds(out, "\n");
}

static void add_allowed(struct buf *out)
{
    buf_adds(out, "\n## Allowed calls\n\nWhatever their arguments, unless the table above lists some:\n\n");
    bool any = false;
    for (int nr = 0; nr <= SYSCALL_MAX; nr++) {
        if (!syscall_name(nr) || rules_plain(nr, 0, NULL).eno != ANSWER_ALLOW)
            continue;
        buf_addf(out, "%s`%s`", any ? ", " : "", syscall_name(nr));
        any = true;
    }
    buf_adds(out, "\n");
}

void filter_add_docs(struct buf *out)
{
    buf_adds(
        out,
        "# System calls\n\n"
        "Find here what the seccomp filter of the `default` profile answers on x86-64. `gen-filters --docs` writes "
        "this page from the\n"
        "filter's own tables; a test compares the two.\n\n"
        "A call that is in none of these lists is newer than this build and answers ENOSYS, so that programs fall\n"
        "back as on an older kernel. Calls of another architecture (`int 0x80`, x32) end the process with SIGSYS.\n"
        "A policy may deny any call but those without which nothing starts or ends, and allow those whose row says\n"
        "`syscalls.allow`. \"Recorded\" refusals appear in the result record as denials.\n\n"
        "A filter cannot see names of extended attributes. File capabilities (`security.capability`) are refused by\n"
        "the kernel instead, because CAP_SETFCAP is not in the bounding set.\n\n");
    add_refused(out);
    add_checked(out);
    add_told(out);
    add_allowed(out);
}
