/* probe-catalog.c - the ids that this program does not try itself: those run.py does from outside, and those that do not
 * apply to a sandbox without a daemon, each with its reason. Nothing is left out silently: see docs/redteam.md. */
#include "probe.h"

#define HOST(id, what, want)                                       \
    {                                                              \
        id, what, NULL, NULL, 0, want, NULL, "", CTL_HOST, 0, NULL \
    }
#define HOST_ROOTFS(id, what, want)                                       \
    {                                                                     \
        id, what, NULL, NULL, 0, want, NULL, "", CTL_HOST, A_ROOTFS, NULL \
    }
#define NA(id, what, why)                                            \
    {                                                                \
        id, what, NULL, NULL, 0, NULL, NULL, "", CTL_NONE, A_NA, why \
    }

static const struct attempt rows[] = {
    HOST("F-13", "exchange a writable directory with a link to a host directory while sandboxes start", "untouched"),
    HOST_ROOTFS("F-14", "a root whose /dev is a symlink to a host directory", "untouched"),
    HOST_ROOTFS("F-15", "a root whose /dev/null is a symlink to /proc/sysrq-trigger", "untouched"),
    HOST_ROOTFS("F-16a", "a root whose /proc, /sys, /etc/resolv.conf are symlinks, FIFOs, sockets", "untouched"),
    HOST("F-16b", "a workspace whose protected names are a FIFO, a socket, a link loop", "ends"),
    HOST("F-25", "a workspace nested 5000 deep", "ends"),
    HOST("F-26", "a workspace of 20000 entries", "ends"),
    HOST("F-34b", "a repository born inside is listed in the record", "listed"),
    HOST("F-38l", "an .envrc in a nested repository is refused or listed in the record", "listed"),
    HOST("F-38m", "an .envrc at depth 5 is refused or listed in the record", "listed"),
    HOST("F-41z", "no set-id or file-capability inode in the workspace afterwards", "none"),
    HOST("F-42", "what the command writes belongs to the caller", "caller"),
    HOST("F-43", "protected names intact and stubs gone afterwards", "intact"),
    HOST("P-05z", "the caller's terminal received nothing", "nothing"),
    HOST("P-07z", "a process outside survives kill(-1)", "alive"),
    HOST("P-09b", "start in /proc/self/fd/7", "refused"),
    HOST("P-11", "a daemon that ignores SIGTERM is gone after the run", "gone"),
    HOST("P-12", "a stopped process is gone after the deadline", "gone"),
    HOST("P-13z", "no raw control character in the messages", "clean"),
    HOST("N-17", "host uid of every process of the sandbox, seen from outside", "never-0"),
    HOST("S-01a", "verdicts of calls 0-600, native, zero arguments", "as-recorded"),
    HOST("S-01b", "verdicts of calls 0-600 through int 0x80", "all-SIGSYS"),
    HOST("S-01c", "verdicts of calls 0-600 with the x32 bit", "all-SIGSYS"),
    HOST("S-02", "verdicts of calls 0-600, native, all-ones arguments", "as-recorded"),
    HOST("S-03", "random calls with random arguments, time-boxed", "survived"),
    HOST("S-25", "a flood of refused calls", "ends"),
    HOST("S-27", "kill -9 of hutch itself: everything inside dies, nothing is left", "gone"),
    HOST("R-31", "a spinning process on half a CPU", "held"),
    HOST("R-37", "output without end against an output limit", "ended"),
    HOST("R-38", "one line of 64 MiB", "passed"),
    HOST("R-39", "binary and ANSI bytes on stdout arrive unchanged", "unchanged"),
    HOST("R-40", "many short runs, time-boxed: nothing is left", "no-residue"),
    HOST("R-42", "kill -9 at random moments of the start: nothing is left", "no-residue"),
    HOST("L-01", "leak accounting: mounts, namespaces, cgroups, processes, temporary files", "no-residue"),
    HOST("L-02", "hashes of the host canaries, of /etc/passwd and of the hutch binary", "unchanged"),
    HOST("L-03", "listeners and sockets of the host received nothing", "nothing"),
    HOST("L-04", "kernel log: no WARN, BUG or Oops during the run", "clean"),

    NA("F-27", "a file with holes of 1 EiB read by the API", "no API reads files here; R-08 tries the file itself"),
    NA("F-28", "endless and blocking files read by the API", "no API reads files here"),
    NA("F-29", "writes during a download or snapshot", "no API reads files here"),
    NA("S-11", "an io_uring descriptor passed in by a client",
       "no client passes descriptors in; P-08a shows that none is inherited"),
    NA("S-26", "a notified process killed while its memory is read",
       "the supervisor never reads a process's memory to decide; S-28 shows that a wrong reading changes nothing"),
    NA("K-12", "mount over /proc/self/attr during the start",
       "no code of the sandbox runs before the set-up is complete"),
    NA("W-07", "another sandbox's address", "no bridge and no address exist; W-06c shows that there is only lo"),
    NA("W-11", "DNS for names that are not allowed",
       "no resolver is offered until the proxy exists; W-04a shows that none is reached"),
    NA("W-13", "connection floods on the proxy's socket", "the proxy belongs to a later part"),
    NA("W-14", "descriptors sent to the proxy", "the proxy belongs to a later part"),
    NA("R-23", "keyring quota", "all three key calls are refused: S-15a to S-15d"),
    NA("R-24", "user namespace quota", "no user namespace can be made: N-01 to N-04"),
    NA("R-32", "memory bandwidth and cache", "a measurement without a right answer on shared hardware"),
    NA("R-36", "swap thrash", "memory.swap.max needs cgroup v2 memory; doctor reports it"),
    NA("R-41", "10000 creates and destroys", "the full count is for the soak run; R-40 is the time-boxed form"),
    NA("C-02", "the daemon's configuration", "there is no daemon"),
    NA("C-04", "make the proxy send a secret elsewhere", "the proxy belongs to a later part"),
    NA("C-05", "a reflected secret in a response", "the proxy belongs to a later part"),
    NA("C-06", "downgrade to plain HTTP", "the proxy belongs to a later part"),
    NA("C-07", "bad upstream certificates", "the proxy belongs to a later part"),
    NA("C-08", "a pinned certificate", "the proxy belongs to a later part"),
    NA("C-09", "a guessed marker", "the proxy belongs to a later part"),
    NA("C-10", "a marker in odd places", "the proxy belongs to a later part"),
    NA("C-11", "secrets in proxy logs", "the proxy belongs to a later part"),
    NA("C-12", "a revoked secret", "the proxy belongs to a later part"),
    NA("C-13", "secrets in a snapshot", "there are no snapshots of a single run"),
    NA("C-14", "request signing", "the proxy belongs to a later part"),
    NA("C-15", "timing of token comparison", "no token is compared here"),
};

const struct attempt_table probe_catalog = {"from outside", rows, ROWS(rows)};
