/* caps.h - capabilities and securebits of the calling thread. No allocation; may run after clone. -1 with errno. */
#ifndef HUTCH_OS_CAPS_H
#define HUTCH_OS_CAPS_H

#include <stdint.h>

#define CAPS_NONE 0ULL

/* Drops everything not in `keep` from the bounding set. Needs CAP_SETPCAP. */
int caps_bound(uint64_t keep);
/* Locks securebits: uid 0 means nothing (unless keep_root), no set-uid fix-up tricks, no ambient capabilities. */
int caps_lock_securebits(int keep_root);
/* Clears ambient and inheritable, sets permitted and effective to `keep`. */
int caps_set(uint64_t keep);
/* Makes everything that is permitted survive exec, for the red-team build's run without this layer. */
int caps_keep_all(void);
/* What uid 0 of a `computer` sandbox may hold. */
uint64_t caps_computer(void);

#endif
