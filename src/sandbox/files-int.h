/* files-int.h - shared by files.c, sink.c and watch.c. */
#ifndef HUTCH_SANDBOX_FILES_INT_H
#define HUTCH_SANDBOX_FILES_INT_H

#include "sandbox/files.h"
#include "sandbox/link-int.h"

/* sink.c. The descriptor is what init handed out for INIT_CREATE, and becomes the sink's. It keeps the call, and ends it. */
bool sink_socket_ok(int fd);
struct file_sink *sink_new(struct call *c, const char *id, int fd);
/* The call is gone. */
void sink_lost(struct file_sink *s);

/* meta: room for FILES_META_MAX. Strings stay borrowed. */
void files_convert(const struct init_info *i, struct file_info *ret, struct file_meta *meta);

#endif
