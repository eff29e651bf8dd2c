/* explain.h - why something is allowed or denied, and the smallest grant that would change it.
 *
 * `hutch policy explain` prints it, denial records carry it. Deciding never depends on anything here.
 */
#ifndef HUTCH_POLICY_RUN_EXPLAIN_H
#define HUTCH_POLICY_RUN_EXPLAIN_H

#include <stdbool.h>

#include "base/buf.h"
#include "policy/run/policy.h"

/* The smallest grant for reading or writing `path` (clean, absolute, inside): as a line of a policy document and as a
 * flag of `hutch run`, the id of the rule that refuses ("default" if none names the path; borrowed from the policy) and
 * where that rule stands. If a ceiling forbids it, policy_line and flag stay empty and origin is the ceiling's. Nothing
 * is appended if the path is allowed. Any pointer may be NULL. */
void policy_grant_for_path(const struct policy *p, const char *path, bool write, struct buf *policy_line,
                           struct buf *flag, const char **rule_id, struct buf *origin);
/* The same for a system call, or for the part of it that `word` (one of filter_words, or NULL) stands for. Calls that no
 * policy can allow leave policy_line and flag empty. */
void policy_grant_for_syscall(const struct policy *p, int nr, const char *word, struct buf *policy_line,
                              struct buf *flag, const char **rule_id, struct buf *origin);
/* The same for a host name. */
void policy_grant_for_host(const struct policy *p, const char *host, struct buf *policy_line, struct buf *flag,
                           const char **rule_id, struct buf *origin);

/* A few lines for people: verdict, rule, origin, grant. Each returns whether it is allowed. */
bool policy_explain_path(const struct policy *p, const char *path, bool write, struct buf *out);
bool policy_explain_syscall(const struct policy *p, int nr, struct buf *out);
/* For tests: the same of HOST, HOST:PORT, or as below. */
bool policy_explain_host(const struct policy *p, const char *host, struct buf *out);
/* A URL with http or https, and a method. */
bool policy_explain_request(const struct policy *p, const char *method, const char *url, struct buf *out);

#endif
