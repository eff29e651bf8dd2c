/* proto.h - who tells egress what.
 *
 * keeper -> egress: SEQPACKET, RUN/egress-keeper.sock (0600). One struct egress_attach each, no answers. keeper connects
 * when it has something to say and again whenever the connection ended, and then says everything again. With EGRESS_ATTACH
 * come two descriptors: the listener and the datagram socket of the sandbox's namespace. Which sandbox a connection belongs
 * to is known by the listener that accepted it and by nothing else.
 *
 * front -> egress: STREAM, RUN/egress.sock (0660, front's group). Messages are a 32-bit little-endian length (at most
 * EGRESS_JSON_MAX) and a JSON object with "type". The newest front connection is the front; after connecting it sends
 * {"type":"hello","version":1}, one "policy" per sandbox and tenant secret it knows, then {"type":"synced"}.
 *
 *   to egress
 *   hello     version
 *   policy    sandbox, tenant, epoch, policy (the document, presets resolved), placeholders {secret name: text},
 *             denied_approvals [id], proxy_password (of its upstream proxy; sealed, base64), replaced (the epoch since
 *             which it was only changed in parts: what was granted once before that does not hold any more)
 *   secret    tenant, name, revision, sealed (base64), spec; no answer. From `hutch run`: value (base64) instead of sealed, and
 *             one that cannot be used is an error
 *   unsecret  tenant, name; no answer
 *   forget    sandbox, or tenant: its sums, one of that name begins anew; no answer
 *   unask     sandbox, id: nobody is asked, too many questions wait; no answer
 *   seed      tenant, sandbox (or none: the tenant's sums), usage {counters, hosts, sandboxes_ended}: what was counted before
 *             this egress began, as "usage" and "tenant_usage" told it; before the first policy, later ones are
 *             ignored; no answer
 *   synced    -: what was not named since hello is dropped
 *   stats     request, sandbox
 *   tenant    request, tenant
 *   learned   request, sandbox
 *   denials   request, sandbox, since, limit
 *   check     request, sandbox, url, method
 *
 *   from egress
 *   hello     version, ca (PEM or null), key (hex, X25519)
 *   applied   sandbox, epoch, error {path, text} if it was refused (then the old one stays in force)
 *   denied    a deny record, see deny.c
 *   ask       sandbox, id, host, port, method, path, rule, tls
 *   used      sandbox, rule: a grant with `uses` was used up
 *   record    record: a line of the audit log, for the record of a `hutch run`, with --audit too
 *   usage     sandbox, counters, hosts {name: counters}: totals, and those hosts whose totals have changed since they were told
 *   tenant_usage  tenant, sandboxes_ended, counters, hosts: the same of all sandboxes of a tenant together
 *   stats     request, sandboxes [{sandbox, counters, hosts {name: counters}}]
 *   tenant    request, tenant, sandboxes, sandboxes_ended, counters, hosts {name: counters}: also of those that ended
 *   learned   request, policy (a document)
 *   denials   request, denials [], next
 *   check     request, verdict, reason, rule
 *   error     text (the connection ends)
 *
 * `request` is a number or a string of the asker's and comes back as it was; an answer about a sandbox that is not
 * known, or to a URL that is none, has `error` (text) instead. placeholders, denied_approvals, proxy_password, replaced,
 * since, limit, method and the sandbox of stats may be missing.
 *
 * A sandbox that is attached but has no policy is not served: its connections wait in the backlog. That is the state after
 * egress was restarted until front has spoken. No egress, no network.
 */
#ifndef HUTCH_EGRESS_PROTO_H
#define HUTCH_EGRESS_PROTO_H

#include "keeper/attach.h"

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
