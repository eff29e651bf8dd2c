/* peers.h - counts the connections of each peer address. */
#ifndef HUTCH_HTTP_PEERS_H
#define HUTCH_HTTP_PEERS_H

struct peers;

struct peers *peers_new(void);
void peers_free(struct peers *p);
unsigned peers_count(const struct peers *p, const char *address);
void peers_add(struct peers *p, const char *address);
void peers_remove(struct peers *p, const char *address);

#endif
