/* proto.h - the protocol between front and a sandbox's init.
 *
 * SEQPACKET, or a byte stream of frames (rpc/frame.h): the type of init's listener decides. Every message is one struct
 * init_head and `length` bytes of body; a body that does not fit in a packet travels in a sealed memfd, the first
 * descriptor of the message, with INIT_F_MEMFD set and `length` its size. Bodies are made of the
 * elements of wire.h. Requests are answered by exactly one INIT_REPLY with the same request number, except INIT_ACK, which
 * is not answered, and INIT_DETACH and INIT_UNWATCH, which are answered by INIT_CLOSED: the last message with that number,
 * whatever was still on its way.
 *
 * The socket of INIT_CREATE takes the bytes of the file. Their end is SHUT_WR: then the file is put in its place. A socket
 * that is closed before leaves everything as it was. At the end, or when it cannot go on, the helper answers there as in
 * an INIT_REPLY (u32 code, str text) and closes; if it closes without, it was killed.
 *
 * A byte stream carries no descriptors. There a request of any length is one frame, INIT_ATTACH and INIT_SPAWN give no
 * rings, and INIT_OUTPUT has bytes: one such message of an attachment is on its way at a time, and INIT_EXITED comes after
 * the last. Where an answer would have a descriptor it has INIT_F_TICKET and ends with a struct init_ticket (an answer in
 * a memfd is nothing else). INIT_TAKE, the first message of another connection, exchanges the ticket: after the INIT_REPLY
 * that connection is the file, pipe or socket itself, as raw bytes. A ticket works once, within INIT_TICKET_MS, and only
 * while the connection that it came over stands.
 *
 * Requests about files may end with a root, which an init of an older version calls malformed: then all paths are below
 * that directory, no link leads out of it, a file is replaced by another one, what was written is on the disk when the
 * answer comes, and facts follow each info of the answer.
 *
 * Notation: u32 u64 fixed numbers; str length, bytes, NUL; strv count, strings; opt = u32 0, or u32 1 and the value;
 * who = u32 pid, str tag (pid 0: by tag); info = see init_put_info(); root = see init_put_root(); facts = see
 * init_put_facts(); rights = see init_put_rights().
 */
#ifndef HUTCH_INIT_PROTO_H
#define HUTCH_INIT_PROTO_H

#include <stdint.h>

enum {
    INIT_VERSION = 1,
    INIT_MSG_MAX = 64 * 1024,       /* head and body in one packet */
    INIT_BIG_MAX = 2 * 1024 * 1024, /* body of a request in a memfd */
    INIT_BIG_REPLY = 64 << 20,      /* body of an answer in a memfd */
    INIT_RING_DEFAULT = 512 * 1024, /* half of it is for what was acknowledged; see attach_limit() */
    INIT_RING_MIN = 4096,
    INIT_RING_MAX = 16 << 20,
    INIT_STREAMS = 4, /* index 1 stdout, 2 stderr, 3 terminal; 0 unused */
    INIT_ARGS_MAX = 1024,
    INIT_ENV_MAX = 1024,
    INIT_TAG_MAX = 128,
    INIT_USER_MAX = 64,
    INIT_PATH_MAX = 4096, /* with its NUL */
    INIT_TEXT_MAX = 256,
    INIT_INPUT_MAX = 32 * 1024,
    INIT_META_MAX = 32,
    INIT_META_BYTES = 4096,
    INIT_SOURCES_MAX = 256,
    INIT_LIST_MAX = 100000,
    INIT_DEPTH_MAX = 64,
    INIT_LISTED_PATH_MAX = INIT_PATH_MAX + INIT_DEPTH_MAX * 256,
    INIT_COMMANDS_MAX = 256, /* living */
    INIT_RECORDS_MAX = 256,  /* ended, kept */
    INIT_ATTACH_MAX = 512,   /* in one sandbox */
    INIT_WORKERS_MAX = 64,   /* file requests and dials at once */
    INIT_WATCHES_MAX = 32,
    INIT_RECEIVERS_MAX = 64, /* files that are being written from outside */
    INIT_TICKETS_MAX = 64,   /* that wait to be exchanged, in one sandbox */
    INIT_TICKET_MS = 10000,
    INIT_RELAYS_MAX = 256,       /* files and sockets that are passed on over streams at once */
    INIT_INLINE_MAX = 28 * 1024, /* bytes of output in one INIT_OUTPUT */
    INIT_RECORD_KEEP_MS = 30000,
    INIT_WRITE_MAX = 32,  /* directories and files that a command with fewer rights may change */
    INIT_HOLD_MS = 30000, /* a command whose reader's connection broke waits for it that long when its ring is full */
};

enum init_type {
    INIT_HELLO = 1, /* - -> u32 bound, u32 flags */
    INIT_BIND,      /* str hostname, strv env, str user, str workdir ("" = home) -> - */
    INIT_SPAWN,     /* str cmd, strv args, strv env, opt str cwd, str user ("" = default), str tag, u32 flags, u32 cols,
                          u32 rows, u64 timeout_ms (0: none) -> as INIT_ATTACH; the request number becomes the attachment */
    INIT_ATTACH, /* who, u64 from[1..3] -> u32 pid, u32 is_pty, str tag, u32 ring size, u64 start[1..3]; descriptors of
                          the rings: stdout and stderr, or the terminal */
    INIT_ACK,    /* u64 delivered[1..3]; request: the attachment. Also asks for the next INIT_OUTPUT */
    INIT_DETACH, /* u32 ended_seen; request: the attachment */
    INIT_SIGNAL, /* who, u32 signal -> - */
    INIT_RESIZE, /* who, u32 cols, u32 rows -> - */
    INIT_INPUT,  /* who, str bytes (may hold NUL) -> - once all of it was written */
    INIT_CLOSE_INPUT,  /* who -> - */
    INIT_LIST,         /* - -> u32 n, n * (u32 pid, u32 is_pty, str cmd, str cwd, str tag, strv args, strv env) */
    INIT_OPEN,         /* str user, str path -> info; descriptor: a regular file, or a pipe */
    INIT_CREATE,       /* str user, str path, u32 n, n * (str key, str value) -> info; descriptor: a stream socket */
    INIT_STAT,         /* str user, str path -> info */
    INIT_LIST_DIR,     /* str user, str path, u32 depth -> u32 n, n * info */
    INIT_MAKE_DIR,     /* str user, str path -> info */
    INIT_MOVE,         /* str user, str from, str to -> info */
    INIT_REMOVE,       /* str user, str path -> - */
    INIT_COMPOSE,      /* str user, strv from, str to -> info */
    INIT_WATCH,        /* str user, str path, u32 flags -> -; then INIT_WATCH_EVENT with this request number */
    INIT_UNWATCH,      /* request: the watch */
    INIT_DIAL,         /* u32 port -> -; descriptor: a connected TCP socket */
    INIT_SHUTDOWN,     /* - -> -; then everything inside is killed */
    INIT_SETTLE,       /* - -> -, after the events of all that had changed before in directories watched from here */
    INIT_SET,          /* str user, str path, root -> info, facts; changes the owner and the mode of an entry */
    INIT_TAKE,         /* the 16 bytes of a ticket -> -; request: that of the answer with the ticket. Streams only */
    INIT_SPAWN_RIGHTS, /* rights, then as INIT_SPAWN: a command with fewer rights than the sandbox */
    INIT_SPAWN_LIMITED, /* u64 number of a cgroup from keeper (INIT_SYNC_GROUP), then as INIT_SPAWN_RIGHTS: a command with a
                           limit on memory of its own */
    INIT_TYPE_MAX,
    INIT_REPLY = 100,   /* u32 code (enum init_code), str text; then, for INIT_OK, as above */
    INIT_OUTPUT,        /* u64 end[1..3]: offsets behind the last byte; over a stream u32 index, u64 offset, str bytes;
                           request: the attachment */
    INIT_EXITED,        /* u64 end[1..3], then the fields of init_put_end(); request: the attachment. Of a command of
                           INIT_SPAWN_RIGHTS or INIT_SPAWN_LIMITED: then u32 enum init_limit */
    INIT_WATCH_EVENT,   /* u32 type, str name, opt info */
    INIT_WATCH_FAILED,  /* u32 code, str text; the last message with that number */
    INIT_CLOSED,        /* - */
    INIT_WATCH_SETTLED, /* u64; from a helper to init only */
};

enum { INIT_F_MEMFD = 1, INIT_F_TICKET = 2 /* answers over a stream */ };
#define INIT_TIMEOUT_MAX_MS (UINT64_C(10) * 366 * 86400 * 1000)
enum { INIT_SPAWN_PTY = 1, INIT_SPAWN_STDIN = 2, INIT_SPAWN_KEEP = 4 };
/* Of a command with rights of its own. */
enum {
    INIT_RIGHTS_NO_NETWORK = 1,
    INIT_RIGHTS_WRITE = 2,    /* it writes to the named paths only */
    INIT_RIGHTS_OWN_USER = 4, /* its uid is no other command's */
};
enum init_limit {
    INIT_LIMIT_NONE,
    INIT_LIMIT_TIME,
    INIT_LIMIT_OUTPUT,
    INIT_LIMIT_MEMORY,
    INIT_LIMITS
}; /* what ended it */
enum { INIT_WATCH_RECURSIVE = 1, INIT_WATCH_INFO = 2, INIT_WATCH_NETWORK = 4 };
#define INIT_FROM_NOW UINT64_MAX
enum { INIT_ROOT_FORCE = 1 };     /* makes missing parents; what is there already is replaced, or is enough */
#define INIT_UNCHANGED UINT32_MAX /* an owner or mode */

struct init_head {
    uint16_t version, type;
    uint32_t flags;
    uint64_t request; /* chosen by front, unique among its pending ones on this connection; not 0 */
    uint32_t length;
    uint32_t zero;
};

enum { INIT_SECRET_BYTES = 16 };
enum init_ticket_kind { INIT_TICKET_FILE = 1, INIT_TICKET_PIPE, INIT_TICKET_SOCKET, INIT_TICKET_MEMORY };
struct init_ticket {
    unsigned char secret[INIT_SECRET_BYTES];
    uint32_t kind, zero;
    uint64_t size; /* of INIT_TICKET_MEMORY: bytes of the body that it stands for */
};

/* The same numbers as enum link_code. */
enum init_code {
    INIT_OK,
    INIT_GONE,
    INIT_NOT_FOUND,
    INIT_EXISTS,
    INIT_INVALID,
    INIT_DENIED,
    INIT_NO_USER,
    INIT_NOT_DIR,
    INIT_IS_DIR,
    INIT_NO_SPACE,
    INIT_LIMIT,
    INIT_TIMEOUT,
    INIT_STATE,
    INIT_IO,
    INIT_CODE_MAX, /* the peer may not say more */
};

enum init_file_type { INIT_FILE_OTHER, INIT_FILE_REGULAR, INIT_FILE_DIRECTORY, INIT_FILE_SYMLINK, INIT_FILE_TYPES };
enum init_event { INIT_EV_CREATED = 1, INIT_EV_WRITTEN, INIT_EV_REMOVED, INIT_EV_RENAMED, INIT_EV_CHMOD, INIT_EV_MAX };

#endif
