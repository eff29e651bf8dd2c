/* explain.h - why something is allowed or denied, and the smallest grant that would change it.
 *
 * `hutch policy explain` prints it, denial records carry it. Deciding never depends on anything here.
 */
#ifndef HUTCH_POLICY_RUN_EXPLAIN_H
#define HUTCH_POLICY_RUN_EXPLAIN_H

#include <netinet/in.h>
#include <stdbool.h>

#include "base/buf.h"
#include "policy/run/policy.h"

/* The smallest grant for reading or writing `path` (clean, absolute, inside): as a line of a policy document and as a
 * flag of `hutch run`, the id of the rule that refuses ("default" if none names the path; borrowed from the policy) and
 * where that rule stands. If a ceiling forbids it, policy_line and flag stay empty and origin is the ceiling's. Nothing
 * is appended if the path is allowed. Any pointer may be NULL. */
void policy_grant_for_path(const struct policy *p, const char *path, bool write, struct buf *policy_line,
                           struct buf *flag, const char **rule_id, struct buf *origin);
/* Exactly this grant for exactly this path, unless a ceiling forbids it: FILE_GRANT_MAKE is --rw-make, for a directory that
 * does not exist; FILE_GRANT_WRITE is --rw; FILE_GRANT_SHOW is --ro, for what a private directory covers. */
enum file_grant { FILE_GRANT_WRITE, FILE_GRANT_MAKE, FILE_GRANT_SHOW };
void policy_grant_as(const struct policy *p, const char *path, enum file_grant as, struct buf *policy_line,
                     struct buf *flag);
/* Whether the directory is a home, or above one: nothing ever suggests to open it as a whole. */
bool policy_holds_home(const struct policy *p, const char *dir);
/* The same for a system call, or for the part of it that `word` (one of filter_words, or NULL) stands for. Calls that no
 * policy can allow leave policy_line and flag empty. */
void policy_grant_for_syscall(const struct policy *p, int nr, const char *word, struct buf *policy_line,
                              struct buf *flag, const char **rule_id, struct buf *origin);
/* Of a host whose rule must open the address that it stands for: --allow-private. */
void policy_grant_for_private(const struct policy *p, const char *host, unsigned port, const char *address,
                              struct buf *policy_line, struct buf *flag);
/* The same for a host name. */
void policy_grant_for_host(const struct policy *p, const char *host, struct buf *policy_line, struct buf *flag,
                           const char **rule_id, struct buf *origin);

/* A few lines for people: verdict, rule, origin, grant. Each returns whether it is allowed. */
bool policy_explain_path(const struct policy *p, const char *path, bool write, struct buf *out);
bool policy_explain_syscall(const struct policy *p, int nr, struct buf *out);
/* For tests: the same of HOST, HOST:PORT, or as below. */
bool policy_explain_host(const struct policy *p, const char *host, struct buf *out);

/* What the name of a host stands for on this machine, and the machine's own addresses; borrowed. */
struct policy_addresses {
    const struct in6_addr *v, *own;
    size_t n, nown;
};
/* The host of "HOST[:PORT]" or a URL if rules allow it, so that its addresses matter: only those that rules leave open are
 * reached. A new string; NULL: nothing needs to be looked up. */
char *policy_explain_name(const struct policy *p, const char *method, const char *what);
/* A URL with http or https and a method, or HOST[:PORT]. `addresses` NULL: they are not known. */
bool policy_explain_request(const struct policy *p, const char *method, const char *url,
                            const struct policy_addresses *addresses, struct buf *out);

#endif
