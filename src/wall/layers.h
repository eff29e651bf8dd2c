/* layers.h - the names of the single layers, and the switch that removes one at a time.
 *
 * Only the test program hutch-without reads HUTCH_WITHOUT; the red-team suite uses it to show which layer stops what. Files
 * that ask LAYER_OFF() or HUTCH_LAYER_REMOVAL are in the list switch_src of their folder's meson.build: they are compiled
 * a second time for that program. In what ships LAYER_OFF() is the constant false and the code below it is compiled out.
 */
#ifndef HUTCH_WALL_LAYERS_H
#define HUTCH_WALL_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* clang-format off */
#define LAYER_LIST(X) \
    X(USERNS, "userns") /* of a root caller; takes userns-range along */ \
    X(USERNS_RANGE, "userns-range") \
    X(MOUNTS, "mounts") \
    X(MASKS, "masks") \
    X(PROC, "proc") \
    X(DEV, "dev") \
    X(SYS, "sys") \
    X(RUN, "run") \
    X(TMP, "tmp") \
    X(PINS, "pins") \
    X(STUBS, "stubs") \
    X(PROTECT, "protect") \
    X(NOSUID, "nosuid") \
    X(PIDNS, "pidns") \
    X(NETNS, "netns") \
    X(IPCNS, "ipcns") \
    X(UTSNS, "utsns") \
    X(CGROUPNS, "cgroupns") \
    X(CAPS, "caps") \
    X(NNP, "nnp") \
    X(SECUREBITS, "securebits") \
    X(LANDLOCK, "landlock") \
    X(SECCOMP, "seccomp") \
    X(RLIMITS, "rlimits") \
    X(CGROUP, "cgroup") \
    X(WATCH, "watch") /* of memory, by the caller, where there is no cgroup */ \
    X(DUMPABLE, "dumpable") \
    X(FORGET, "forget") \
    X(FDS, "fds") \
    X(ENV, "env") \
    X(SESSION, "session") \
    X(KEYRING, "keyring") \
    X(USERNS_LIMIT, "userns-limit") \
    X(TMPFS_INODES, "tmpfs-inodes") \
    X(DISK, "disk")
/* clang-format on */

enum layer {
#define LAYER_ENUM(id, name) LAYER_##id,
    LAYER_LIST(LAYER_ENUM)
#undef LAYER_ENUM
        LAYER_MAX
};

typedef uint64_t layer_set;

#ifdef HUTCH_LAYER_REMOVAL
#define LAYER_OFF(set, id) (((set) >> LAYER_##id) & 1U)
#else
#define LAYER_OFF(set, id) ((void)(set), false)
#endif

/* Reads HUTCH_WITHOUT ("seccomp,landlock"). An unknown name is ERR_USAGE. Always empty in ordinary builds, where a set
 * variable is ERR_USAGE too: a test must not believe that a layer was removed when it was not. */
int layers_removed(layer_set *ret, struct err *err);

#endif
