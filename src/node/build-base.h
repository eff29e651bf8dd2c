/* build-base.h - builds the template "base": a Debian root made with mmdebstrap from the host's own apt sources.
 *
 * supervisor starts the builder as a process of its own when TEMPLATES/base is missing. The builder works in
 * TEMPLATES/.base.tmp and renames that when it is complete, so a visible template is never partial. Its progress is in
 * TEMPLATES/base.progress: one line, "building TEXT" or "error TEXT".
 */
#ifndef HUTCH_NODE_BUILD_BASE_H
#define HUTCH_NODE_BUILD_BASE_H

#include "base/err.h"
#include "config/names.h"

/* Blocks for as long as it takes. `dir` is the templates' directory, an absolute path; its descriptor is dirfd. */
int template_build_base(int dirfd, const char *dir, struct err *err);
void template_set_progress(int dirfd, const char *state, const char *text);
/* The program of that process: argv[1] is the directory. */
int template_build_main(const char *dir);

#endif
