/* files-int.h - shared by files.c, sink.c and watch.c only. */
#ifndef HUTCH_PEERS_FILES_INT_H
#define HUTCH_PEERS_FILES_INT_H

#include "peers/files.h"
#include "peers/link-int.h"

/* sink.c: the sink takes the descriptor that init sent for INIT_CREATE, holds the call, and ends it. */
bool sink_socket_ok(int fd);
struct file_sink *sink_new(struct call *c, const char *id, int fd);
/* Call when the sink's call has ended: the sink forgets it. */
void sink_lost(struct file_sink *s);

/* meta: room for FILES_META_MAX. Strings stay borrowed. */
void files_convert(const struct init_info *i, struct file_info *ret, struct file_meta *meta);

#endif
