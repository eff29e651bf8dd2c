/* run-tx.c - at the end of a run with --tx, shows the changes and asks the user what to do with them; and the commands that
 * decide later: hutch diff, apply, discard. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/run/tx.h"

const char *tx_end_name(enum tx_end e)
{
    static const char *const names[] = {"nothing", "applied", "kept", "discarded"};
    return names[e];
}

static void tx_show_changes(const struct tx *tx)
{
    _cleanup_buf_ struct buf text = {0};
    tx_list(tx, TX_SHOWN_MAX, &text);
    (void)fd_write_all(2, buf_str(&text), text.n);
}

static void show_running(const struct tx *tx)
{
    _cleanup_buf_ struct buf text = {0};
    tx_list_running(tx, TX_SHOWN_MAX, &text);
    (void)fd_write_all(2, buf_str(&text), text.n);
}

static void show_lines(const struct strv *lines)
{
    for (size_t i = 0; i < lines->n; i++)
        fprintf(stderr, "hutch: note: %s\n", lines->v[i]);
}

static void show_notes(const struct tx *tx) { show_lines(&tx->notes); }

/* For a kept transaction: where the parts are that lie too deep. */
static void show_apart(const struct tx *tx)
{
    for (size_t i = 0; i < tx->apart.n && i < TX_SHOWN_MAX; i++)
        fprintf(stderr, "hutch: note: %s lies too deep to be applied; it is in %s/apart/%zu\n",
                tx_shown(tx->apart.v[i].path), tx_where(tx), i);
}

/* Waits for a line. False if SIGINT or the like came: these are blocked during the run to be passed on to the command, which
 * has ended by now. */
static bool wait_for_line(FILE *tty)
{
    sigset_t ends;
    struct signalfd_siginfo si;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGHUP);
    (void)sigaddset(&ends, SIGQUIT);
    _cleanup_close_ int signals = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd p[2] = {{.fd = fileno(tty), .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    while (poll(p, 2, -1) < 0 && errno == EINTR) {
    }
    return !p[1].revents || read(signals, &si, sizeof si) != sizeof si;
}

/* 'a', 'k' or 'x'. 0 at the end of input or after a signal; the caller then keeps the changes, which loses nothing. */
static char tx_ask_user(const struct tx *tx)
{
    _cleanup_fclose_ FILE *tty = fopen("/dev/tty", "re");
    char line[64];
    while (tty) {
        fprintf(stderr, "Apply %zu change%s? [a]pply, show the [d]iff, [k]eep for later, e[x] discard: ", tx->n,
                tx->n == 1 ? "" : "s");
        if (!wait_for_line(tty)) {
            fputc('\n', stderr);
            break;
        }
        if (!fgets(line, sizeof line, tty))
            break;
        char c = line[0] == 'y' ? 'a' : line[0] == 'n' ? 'k' : line[0];
        if (c == 'a' || c == 'k' || c == 'x')
            return c;
        if (c == 'd')
            (void)tx_diff(tx, 2);
    }
    return 0;
}

/* Applies, drops or keeps the changes. -1: failed; the changes are still undecided. */
static int carry_out(struct tx *tx, char what, bool quiet, enum tx_end *ret, struct err *err)
{
    struct err why = {0};
    *err = why;
    bool applied = what == 'a' && tx_apply(tx, false, &why) == 0;
    if (!quiet)
        show_lines(&tx->left);
    if (applied && tx->apart.n == 0) {
        *ret = TX_END_APPLIED;
        if (!quiet)
            fprintf(stderr, "hutch: %zu change%s applied\n", tx->n, tx->n == 1 ? "" : "s");
        return 0;
    }
    if (what == 'x') {
        *ret = TX_END_DROPPED;
        return 0;
    }
    if (tx_keep(tx, err) < 0)
        return err_wrap(err, "%s%sthey cannot be kept", why.msg, why.code ? "; " : "");
    *ret = TX_END_KEPT;
    *err = why;
    if (!quiet)
        fprintf(stderr, "hutch: kept as %s; see it with `hutch diff %s`, then `hutch apply %s` or `hutch discard %s`\n",
                tx->id, tx->id, tx->id, tx->id);
    if (!quiet)
        show_apart(tx);
    return 0;
}

int tx_rescue(struct tx *tx, enum tx_end *ret, struct err *err)
{
    struct err why = *err, more = {0};
    for (size_t i = 0; i < tx->nplaces; i++) { /* compare with empty directories: everything is new */
        if (tx->place[i].host >= 0)
            (void)close(tx->place[i].host);
        tx->place[i].host = -1;
    }
    tx_forget_changes(tx);
    if (tx_compare(tx, &more) == 0 && tx->n == 0 && tx->apart.n == 0)
        return -1; /* the command wrote nothing */
    tx->unseen = true;
    if (tx_keep(tx, &more) < 0)
        return err_set(err, why.code, 0, "%s; the changes are lost: they cannot be kept: %s", why.msg, more.msg);
    *ret = TX_END_KEPT;
    return err_set(err, why.code, 0, "%s; what the command wrote is kept as %s, in %s", why.msg, tx->id, tx_where(tx));
}

int tx_decide(struct tx *tx, bool commit, bool quiet, enum tx_end *ret, struct err *err)
{
    *ret = TX_END_NOTHING;
    if (!quiet)
        show_notes(tx);
    if (tx->n == 0 && tx->apart.n == 0) {
        if (!quiet)
            fputs("hutch: the command changed no files\n", stderr);
        return 0;
    }
    tx_survey(tx, TX_BELOW_MAX);
    if (!quiet) {
        fprintf(stderr, "hutch: %zu change%s, none of them on the host yet:\n", tx->n, tx->n == 1 ? "" : "s");
        tx_show_changes(tx);
    }
    bool person = isatty(0) && isatty(2);
    size_t refused = tx_count_class(tx, TX_REFUSED);
    if (commit && refused > 0 && !quiet)
        fprintf(stderr, "hutch: not applied unasked: %zu of the changes are to protected names (`--allow-protected`)\n",
                refused);
    char what = commit && refused == 0 ? 'a' : person ? tx_ask_user(tx) : 0;
    while (carry_out(tx, what ? what : 'k', quiet, ret, err) < 0) {
        if (!person || !what)
            return err_wrap(err, "the changes are lost");
        fprintf(stderr, "hutch: the changes are still there, but %s\n", err->msg);
        what = tx_ask_user(tx); /* the user can free space and choose again */
    }
    return err->code ? -1 : 0;
}

/* --- commands ------------------------------------------------------------------------------------------------------- */

static int tx_print_usage(const char *text)
{
    fputs(text, stdout);
    return 0;
}

static bool tx_wants_help(int argc, char **argv)
{
    return argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

static int tx_command_fail(struct tx *tx, const struct err *err)
{
    tx_done(tx);
    return cli_fail(err);
}

int cmd_apply(int argc, char **argv)
{
    static struct tx tx;
    struct err err = {0};
    bool force = false, protected = false;
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        force = force || strcmp(argv[at], "--force") == 0;
        protected = protected || strcmp(argv[at], "--allow-protected") == 0;
        if (strcmp(argv[at], "--force") != 0 && strcmp(argv[at], "--allow-protected") != 0)
            break;
    }
    const char *id = argv[at];
    if (tx_wants_help(argc, argv))
        return tx_print_usage(
            "usage: hutch apply [--force] [--allow-protected] [TX]\n\nMakes the changes of a kept transaction "
            "(hutch run --tx) on "
            "the host. Refuses\n"
            "if one of the files was changed there since, unless --force is given. Without TX: the only one "
            "that waits.\n"
            "Changes to names that policies protect (hooks and configuration of git, shell and editor files) "
            "are\n"
            "applied with --allow-protected only.\n");
    if (argc > at + 1)
        return err_set(&err, ERR_USAGE, 0,
                       "one transaction at a time; usage: hutch apply [--force] [--allow-protected] [TX]"),
               cli_fail(&err);
    _cleanup_close_ int lock = tx_lock(id, &err);
    if (lock < 0 || tx_load(id, true, &tx, &err) < 0)
        return tx_command_fail(&tx, &err);
    show_notes(&tx);
    show_running(&tx);
    size_t refused = protected ? 0 : tx_count_class(&tx, TX_REFUSED);
    if (refused > 0) {
        (void)err_set(
            &err, ERR_POLICY, 0,
            "%zu of the changes are to protected names, and nothing was applied: look at `hutch diff %s`, then "
            "`hutch apply --allow-protected %s`",
            refused, tx.id, tx.id);
        return tx_command_fail(&tx, &err);
    }
    int r = tx_apply(&tx, force, &err);
    show_lines(&tx.left);
    if (r < 0)
        return tx_command_fail(&tx, &err);
    size_t n = tx.n;
    show_apart(&tx);
    if (tx.apart.n == 0 && tx_drop(tx.id, &err) < 0)
        return tx_command_fail(&tx, &err);
    printf("%zu change%s applied\n", n, n == 1 ? "" : "s");
    tx_done(&tx);
    return 0;
}

int cmd_discard(int argc, char **argv)
{
    struct err err = {0};
    if (tx_wants_help(argc, argv))
        return tx_print_usage(
            "usage: hutch discard [TX]\n\nDrops a kept transaction (hutch run --tx). Without TX: the only "
            "one that waits.\n");
    if (argc > 2)
        return err_set(&err, ERR_USAGE, 0, "one transaction at a time; usage: hutch discard [TX]"), cli_fail(&err);
    const char *id = argc > 1 ? argv[1] : NULL;
    _cleanup_close_ int lock = tx_lock(id, &err);
    return lock < 0 || tx_drop(id, &err) < 0 ? cli_fail(&err) : 0;
}

int tx_cmd_diff(const char *id)
{
    static struct tx tx;
    struct err err = {0};
    if (tx_load(id, false, &tx, &err) < 0)
        return tx_command_fail(&tx, &err);
    show_notes(&tx);
    show_apart(&tx);
    show_running(&tx);
    if (tx_diff(&tx, 1) < 0) {
        (void)err_set(&err, ERR_SETUP, errno, "write the diff");
        return tx_command_fail(&tx, &err);
    }
    tx_done(&tx);
    return 0;
}

int cmd_diff(int argc, char **argv)
{
    struct err err = {0};
    if (tx_wants_help(argc, argv))
        return tx_print_usage(
            "usage: hutch diff [TX]\n\nShows what a kept transaction (hutch run --tx) would change on the "
            "host. Without TX: the\n"
            "only one that waits.\n");
    if (argc > 2)
        return err_set(&err, ERR_USAGE, 0, "one transaction at a time; usage: hutch diff [TX]"), cli_fail(&err);
    return tx_cmd_diff(argc > 1 ? argv[1] : NULL);
}
