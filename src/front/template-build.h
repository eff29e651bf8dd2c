/* template-build.h - the template "base": a Debian root made with mmdebstrap from the host's own apt sources.
 *
 * A short-lived process of its own, started by supervisor when TEMPLATES/base is missing. It works in TEMPLATES/.base.tmp and
 * renames that when it is whole, so a template that can be seen is complete. What it is doing stands in
 * TEMPLATES/base.progress: one line, "building TEXT" or "error TEXT".
 */
#ifndef HUTCH_FRONT_TEMPLATE_BUILD_H
#define HUTCH_FRONT_TEMPLATE_BUILD_H

#include "base/err.h"

#define TEMPLATE_BASE     "base"
#define TEMPLATE_HOST     "host"
#define TEMPLATE_ROOT     "root" /* TEMPLATES/NAME/root is the root directory of NAME */
#define TEMPLATE_PROGRESS "base.progress"

/* Blocks for as long as it takes. `dir` is the templates' directory, an absolute path; its descriptor is dirfd. */
int template_build_base(int dirfd, const char *dir, struct err *err);
void template_set_progress(int dirfd, const char *state, const char *text);
/* The program of that process: argv[1] is the directory. */
int template_build_main(const char *dir);

#endif
