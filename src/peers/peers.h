/* peers.h - the clients of the processes beside front, as every room of front sees them.
 *
 * Owned by the process (node/front-main.c), which sets a member to NULL when it has let that client go: a room that may
 * be asked while the process ends looks before it uses one. May never decide anything: a client carries requests and
 * answers.
 */
#ifndef HUTCH_PEERS_PEERS_H
#define HUTCH_PEERS_PEERS_H

struct keeperc;
struct layersc;
struct links;

struct peers {
    struct keeperc *keeper; /* keeperc.h */
    struct layersc *layers; /* layersc.h; the layer store */
    struct links *links;    /* link.h: the inits of sandboxes */
};

#endif
