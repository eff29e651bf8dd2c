/* proto.h - the messages between keeper, front and egress, and the descriptors egress is started with.
 *
 * keeper -> egress: SEQPACKET, RUN/egress-keeper.sock (0600). One struct egress_attach each, no answers. keeper
 * connects when it has something to send, connects again when the connection ended, and then attaches all its sandboxes
 * again. With EGRESS_ATTACH come two descriptors: the listener and the datagram socket of the sandbox's namespace. Only
 * the listener that accepted a connection tells which sandbox it belongs to.
 *
 * front -> egress: STREAM, RUN/egress.sock (0660, front's group). Messages are a 32-bit little-endian length (at most
 * EGRESS_JSON_MAX) and a JSON object with "type". The newest front connection is the front; after connecting it sends
 * {"type":"hello","version":1}, one "policy" per sandbox and tenant secret it knows, then {"type":"synced"}.
 *
 *   to egress
 *   hello     version
 *   policy    sandbox, tenant, epoch, policy (the document, presets resolved), placeholders {secret name: text},
 *             denied_approvals [id], proxy_password (of its upstream proxy; sealed, base64), replaced (the epoch at which the
 *             whole document was last replaced: use counts granted before it do not hold any more)
 *   secret    tenant, name, revision, sealed (base64), spec; no answer. From `hutch run`: value (base64) instead of sealed, and
 *             an unusable secret is an error
 *   unsecret  tenant, name; no answer
 *   forget    sandbox, or tenant: drops its sums, a new tenant of that name begins at zero; no answer
 *   unask     sandbox, id: front did not take the question, too many wait; no answer
 *   seed      tenant, sandbox (or none: the tenant's sums), usage {counters, hosts, sandboxes_ended}: the counts of earlier
 *             egress processes, as "usage" and "tenant_usage" told them; ignored after the first policy; no answer
 *   synced    -: sandboxes and secrets that were not named since hello are dropped
 *   stats     request, sandbox
 *   tenant    request, tenant
 *   learned   request, sandbox
 *   denials   request, sandbox, since, limit
 *   check     request, sandbox, url, method
 *
 *   from egress
 *   hello     version, ca (PEM or null), key (hex, X25519)
 *   applied   sandbox, epoch, error {path, text} if it was refused (the old policy stays in force)
 *   denied    a deny record, see deny.c
 *   ask       sandbox, id, host, port, method, path, rule, tls
 *   used      sandbox, rule: a grant with `uses` was used up
 *   record    record: a line of the audit log, for the record of a `hutch run`, with --audit too
 *   usage     sandbox, counters, hosts {name: counters}: totals, with the hosts that changed since the last message
 *   tenant_usage  tenant, sandboxes_ended, counters, hosts: the same for all sandboxes of a tenant together
 *   stats     request, sandboxes [{sandbox, counters, hosts {name: counters}}]
 *   tenant    request, tenant, sandboxes, sandboxes_ended, counters, hosts {name: counters}: ended sandboxes included
 *   learned   request, policy (a document)
 *   denials   request, denials [], next
 *   check     request, verdict, reason, rule
 *   error     text (the connection ends)
 *
 * `request` is a number or a string that front chose; the answer repeats it. An answer about an unknown sandbox has
 * `error` (text) instead, one to a malformed URL `wrong` (text). placeholders, denied_approvals, proxy_password,
 * replaced, since, limit, method and the sandbox of stats may be missing.
 *
 * A sandbox that is attached but has no policy is not served: its connections wait in the backlog, for example after
 * egress was restarted and before front has sent policies. Without egress a sandbox has no network.
 */
#ifndef HUTCH_EGRESS_CORE_PROTO_H
#define HUTCH_EGRESS_CORE_PROTO_H

#include "keeper/attach.h"

/* Ends the text of a refusal if `private` of a rule, or --allow-private of `hutch run`, would open the address. */
#define EGRESS_PRIVATE "which is not a public address: a rule opens it with `private`"

enum { EGRESS_JSON_MAX = 4 << 20 };

#define EGRESS_SOCKET "egress.sock"

/* Descriptors of the process `hutch-node egress`, from supervisor. Those that do not apply are closed. */
enum {
    EGRESS_FD_CONFIG = 3, /* JSON: see struct egress_config */
    EGRESS_FD_KEEPER,  /* listening, EGRESS_KEEPER_SOCKET; for `hutch run`: one connected socket on which it attaches */
    EGRESS_FD_FRONT,   /* listening, EGRESS_SOCKET; for `hutch run`: one connected socket on which it speaks as front */
    EGRESS_FD_CA_CERT, /* the installation's root, PEM; in memory */
    EGRESS_FD_CA_KEY,
    EGRESS_FD_VAULT_KEY, /* 32 bytes, the private X25519 key to which secrets are sealed */
    EGRESS_FD_AUDIT, /* directory of the audit log, writable; `hutch run --audit`: the one file, opened and locked, and
                            audit_file in the configuration */
    EGRESS_FD_TRUST, /* PEM bundle of roots for upstreams */
    EGRESS_FD_READY, /* one byte is written when connections are served */
    EGRESS_FD_END,
};

#endif
