/* hostexec-int.h - shared by the files of hostexec only: hostexec.c walks, hostexec-git.c looks into repositories. */
#ifndef HUTCH_CLI_RUN_HOSTEXEC_INT_H
#define HUTCH_CLI_RUN_HOSTEXEC_INT_H

#include <dirent.h>
#include <sys/stat.h>

#include "cli/run/hostexec.h"

enum { CONFIGS_MAX = 128 }; /* configuration files of git that are read for the places they name */

/* An entry with a name that matters, found while the command was started. */
struct noted {
    const struct plan_op *root;
    char *dir, *entry;
};

struct hostexec {
    const struct policy *policy;
    const struct plan *plan;
    const char *home;
    struct timespec start;
    const struct seen *before; /* what the search for repositories saw; or NULL */
    struct noted *noted;
    size_t nnoted, noted_cap;
    bool looked;       /* the first walk was made and was complete */
    unsigned thorough; /* entries that are always read at the end */
};

struct walk {
    struct hostexec *h;
    const struct plan_op *root;
    struct strv *ret;
    struct strv works; /* working trees of the repositories that the plan knows */
    unsigned configs;  /* read so far */
    unsigned left;     /* directory entries that may still be looked at */
    bool cut;          /* some git directories inside others were not read */
    bool first;        /* first walk: entries are noted, not listed */
    int top;           /* the writable root */
    bool starts[256];  /* first bytes of names that matter: they exclude nearly every entry */
};

/* Since the start. */
bool hostexec_changed(const struct walk *w, const struct stat *st);
/* Whether the plan let the command write at this path of the host. */
bool hostexec_was_writable(const struct walk *w, const char *host);
/* Appends a path, which is owned from here on, once. */
void hostexec_add(struct strv *ret, char *path);
/* The same, if the command could write there; protected paths are judged by the ops of the plan. */
void hostexec_list(struct walk *w, char *path);
/* Lists dir/name if it changed. */
void hostexec_list_changed(struct walk *w, int fd, const char *dir, const char *name);
/* Lists the entries of a directory that changed, up to a bound. With `all` also those that the plan protects: they may
 * have been changed through another hard link, or from outside. */
void hostexec_list_entries(struct walk *w, const char *dir, bool all);

/* dir holds a ".git"; fd is open on it. */
void hostexec_look_git(struct walk *w, int fd, const char *dir);
/* dir holds a "HEAD". */
void hostexec_look_bare(struct walk *w, int fd, const char *dir);
/* The places that the configuration of one repository names, whose git directory is `git`. */
void hostexec_look_repository(struct walk *w, const char *git, const char *config);
/* The places that the caller's own configurations name; they hold for every repository. */
void hostexec_look_global(struct walk *w);

#endif
