/* attach.h - the message with which keeper hands a sandbox's two sockets to egress: once per sandbox, and again after
 * either process restarts. Fixed layout, SEQPACKET, no answers; see egress/proto.h.
 */
#ifndef HUTCH_KEEPER_ATTACH_H
#define HUTCH_KEEPER_ATTACH_H

#include <stdint.h>

enum { EGRESS_VERSION = 1, EGRESS_ID_MAX = 40 };
enum egress_type { EGRESS_ATTACH = 1, EGRESS_DETACH };

#define EGRESS_KEEPER_SOCKET "egress-keeper.sock"

struct egress_attach {
    uint32_t version, type;
    char id[EGRESS_ID_MAX];
    uint64_t ns_cookie, tcp_cookie, udp_cookie;
};

#endif
