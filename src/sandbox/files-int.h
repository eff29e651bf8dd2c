/* files-int.h - shared by files.c and watch.c. */
#ifndef HUTCH_SANDBOX_FILES_INT_H
#define HUTCH_SANDBOX_FILES_INT_H

#include "sandbox/files.h"
#include "sandbox/link-int.h"

/* meta: room for FILES_META_MAX. Strings stay borrowed. */
void files_convert(const struct init_info *i, struct file_info *ret, struct file_meta *meta);

#endif
