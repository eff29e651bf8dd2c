/* policy-harness.h - what the tests of policy/ share: a fixed place, documents as text, and one-line expectations. */
#ifndef HUTCH_TESTS_POLICY_HARNESS_H
#define HUTCH_TESTS_POLICY_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "policy/run/policy.h"

static const struct policy_where place = {.cwd = "/home/u/work", .home = "/home/u"};

static inline void policy_free_p(struct policy **p) { policy_free(*p); }
#define _cleanup_policy_ __attribute__((cleanup(policy_free_p)))

/* The text must be refused at this level with a message that contains `want`. */
static inline void refused_at(enum policy_level level, const char *text, const char *want)
{
    struct err err = {0};
    _cleanup_policy_ struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    int r = policy_parse(text, strlen(text), "p.yaml", level, &place, p, &err);
    if (r == 0)
        fail_msg("accepted, but should be refused with \"%s\":\n%s", want, text);
    if (!strstr(err.msg, want))
        fail_msg("message is  \"%s\"\nand lacks   \"%s\"", err.msg, want);
    assert_null(strchr(err.msg, '\n'));
    assert_int_equal(err.code, ERR_POLICY);
}

/* The text must be accepted; returns the policy with the built-in level under it. */
static inline struct policy *accepted_at(enum policy_level level, const char *text)
{
    struct err err = {0};
    struct policy *p = policy_new();
    policy_add_defaults(&place, p);
    if (policy_parse(text, strlen(text), "p.yaml", level, &place, p, &err) < 0)
        fail_msg("refused: %s", err.msg);
    return p;
}

static inline const struct file_rule *rule_at(const struct policy *p, enum file_verb verb, const char *path)
{
    for (size_t i = 0; i < p->nfiles; i++)
        if (p->files[i].verb == verb && strcmp(p->files[i].path, path) == 0)
            return &p->files[i];
    return NULL;
}

/* A directory of its own for tests that need files. */
struct scratch {
    char dir[64], home[80], work[80];
    struct policy_where where;
    char system[96], user[128], trust[128];
};

static inline void scratch_make(struct scratch *s)
{
    (void)snprintf(s->dir, sizeof s->dir, "/tmp/hutch-policy-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    (void)snprintf(s->home, sizeof s->home, "%s/home", s->dir);
    (void)snprintf(s->work, sizeof s->work, "%s/work", s->dir);
    (void)snprintf(s->system, sizeof s->system, "%s/system.yaml", s->dir);
    (void)snprintf(s->user, sizeof s->user, "%s/user.yaml", s->dir);
    (void)snprintf(s->trust, sizeof s->trust, "%s/state/hutch/trusted", s->home);
    assert_int_equal(mkdir(s->home, 0755), 0);
    assert_int_equal(mkdir(s->work, 0755), 0);
    s->where = (struct policy_where){
        .cwd = s->work, .home = s->home, .system_file = s->system, .user_file = s->user, .trust_file = s->trust};
}

static inline void scratch_done(struct scratch *s)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
}

static inline void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#endif
