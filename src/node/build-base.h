/* build-base.h - builds the node's own templates, `slim` and `base`: Debian roots made with mmdebstrap.
 *
 * supervisor starts the builder as a process of its own when one of them is missing. A template NAME is made in steps:
 * the packages are fetched into TEMPLATES/.fetched, then the root is installed in TEMPLATES/.NAME.tmp and renamed when
 * it is complete, so a visible template is never partial. A builder that was interrupted goes on with what is fetched
 * and with the templates that are missing. Its progress is in TEMPLATES/NAME.progress: one line, "building N % TEXT"
 * or "error TEXT".
 */
#ifndef HUTCH_NODE_BUILD_BASE_H
#define HUTCH_NODE_BUILD_BASE_H

#include <stdbool.h>

#include "config/config.h"

/* Whether the configuration wants a template that is not in the directory. */
bool template_build_missing(int dirfd, const struct config *c);
/* For each template that is missing, what became of it. */
void template_build_tell(int dirfd, const struct config *c, const char *state, const char *text);
/* Arguments of the process, after its name: the templates' directory, templates.base, mirrors.apt, .pip, .npm ("": none). */
enum { TEMPLATE_BUILD_ARGS = 5 };
int template_build_main(char *const args[TEMPLATE_BUILD_ARGS]);

#endif
