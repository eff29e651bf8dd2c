/* init-int.h - the state of init, for the files of init/ only. One instance in memory that init maps itself; the tables
 * have a fixed size, and untouched entries cost nothing. */
#ifndef HUTCH_INIT_INIT_INT_H
#define HUTCH_INIT_INIT_INT_H

#include <sys/resource.h>
#include <sys/types.h>

#include "init/init.h"
#include "init/request.h"
#include "init/users.h"
#include "os/notified.h"
#include "rpc/channel.h"

enum {
    CONNS_MAX = 8,  /* that ask */
    FRESH_MAX = 64, /* of a stream, besides: whose first message is not there yet */
    CONNS_TABLE = CONNS_MAX + FRESH_MAX,
    COMMANDS_TABLE = INIT_COMMANDS_MAX + INIT_RECORDS_MAX,
    INPUTS_MAX = 64,
    RECORD_BYTES_MAX = 8 << 20, /* output of ended commands that is still kept, together */
    MSG_FDS_MAX = 3,
    SPAWN_DEADLINE_MS = 10000,
    KILL_WAIT_STEPS = 250, /* of 0.2 ms: how long an answer waits for a killed process to be gone */
    DRAIN_MAX = 1 << 20,
    WORKERS_TABLE = INIT_WORKERS_MAX + INIT_WATCHES_MAX + INIT_RECEIVERS_MAX,
    GROUPS_MAX = 16,  /* cgroups whose command has not come yet */
    SETTLES_MAX = 64, /* requests that wait for watches */
};

enum kind {
    KIND_LISTENER,
    KIND_SYNC,
    KIND_SIGNAL,
    KIND_CONN,
    KIND_STREAM,
    KIND_REPORT,
    KIND_INPUT,
    KIND_WORKER,
    KIND_NOTIFY
};

enum { CONN_IN = sizeof(struct init_head) + INIT_BIG_MAX + FRAME_HEAD };
enum { CONN_ROOM = INIT_MSG_MAX + CHANNEL_QUEUE_EXTRA + MSG_FDS_MAX * sizeof(int) };
struct conn {
    struct channel channel; /* fd -1: free */
    uint32_t gen;
    bool asks;         /* counts for CONNS_MAX: over packets from the start, over a stream from its first message on */
    uint64_t drop_ms;  /* when it is closed if nothing has come until then; 0: never */
    unsigned char *in; /* of a stream: a mapping of CONN_IN bytes */
};
/* The request to answer; its connection may be closed by then. */
struct asker {
    uint32_t conn, gen;
    uint64_t request;
};

struct ring {
    int fd;             /* -1: none */
    unsigned char *map; /* shared mapping; NULL: at rest */
    uint32_t size;
    uint64_t head, tail; /* behind the last byte; the oldest that is still there */
    uint64_t seen;       /* highest offset that any reader acknowledged */
    uint64_t omitted;
};
struct stream {
    int fd; /* read end, non-blocking; -1: at its end */
    bool watched;
    uint64_t drained;
    struct ring ring;
};

/* A cgroup for one command (group.c). */
struct command_group {
    uint64_t number, serial, memory; /* number 0: free */
    int enter, events, peak;         /* -1: none */
};
enum command_state { COMMAND_FREE, COMMAND_STARTING, COMMAND_RUNNING, COMMAND_ENDED };
struct command {
    enum command_state state;
    uint32_t gen;
    uint64_t serial, end_serial; /* order of starts, of ends */
    pid_t pid;
    bool reaped, killed, failed;
    bool pty, keep;
    bool has_rights;
    uid_t own_uid;               /* of a command that asked for one of its own, else 0 */
    struct command_group cgroup; /* the cgroup in which its memory is limited */
    bool group;                  /* it cannot leave its process group, which ends with it */
    enum init_limit limit;
    uint64_t output_max; /* 0: no end */
    unsigned char *body; /* the request, mapped; for lists */
    size_t nbody;
    struct init_head head;
    char tag[INIT_TAG_MAX + 1];
    int report; /* read end; -1 once started */
    int input;  /* write end of stdin, or the terminal; -1: none */
    bool input_watched;
    struct stream stream[INIT_STREAMS];
    int status;
    struct rusage usage;
    uint64_t began_ms, ended_ms, seen_ms; /* seen: the end was acknowledged; 0: not yet */
    struct init_denied denied[INIT_DENIED_MAX];
    uint32_t ndenied;
    uint64_t limit_ms;           /* when the time of its rights is over; 0: never */
    uint64_t kill_ms;            /* when its own timeout ends it; 0: never */
    uint64_t hold_ms;            /* until when output waits for readers whose connection broke; 0: none did */
    uint64_t held[INIT_STREAMS]; /* what the slowest of them had acknowledged */
    uint64_t oom_before;
    bool oom;
};

/* What the child writes when the command could not be started. */
struct spawn_report {
    uint32_t code;
    char text[INIT_TEXT_MAX];
};

struct attachment {
    bool used, reply_due, waits /* for INIT_ACK */, exit_told;
    struct asker who;
    uint32_t command;
    uint32_t turn; /* over a byte stream: the index that was last sent */
    uint64_t acked[INIT_STREAMS], told[INIT_STREAMS];
    struct spawn_report failure; /* of a spawn; code INIT_OK: none */
};

struct input {
    bool used, done;
    uint32_t command;
    uint64_t serial;
    struct asker who;
    size_t n, at;
    enum init_code code;
    unsigned char bytes[INIT_INPUT_MAX];
};

struct worker {
    pid_t pid; /* 0: free */
    uint32_t gen, type;
    int sock;
    bool watched, dead, replied, timed_out;
    bool closed; /* the watch has no listener any more */
    struct asker who;
    uint64_t deadline_ms;           /* 0: none */
    uint64_t asked_turn, told_turn; /* of a watch: see settle.c */
};

/* A descriptor that waits for INIT_TAKE. */
struct ticket {
    bool used;
    int fd;
    uint32_t kind;
    uint64_t until_ms;
    struct asker who;
    unsigned char secret[INIT_SECRET_BYTES];
};

struct settle {
    bool used;
    struct asker who;
    uint64_t turn;
};

struct init {
    const struct init_args *args;
    bool bound, committed, stop;
    bool listens;         /* to keeper, at INIT_FD_SYNC */
    uint64_t group_kills; /* in cgroups of commands that have ended */
    struct command_group group[GROUPS_MAX];
    int epoll, signals;
    int notify; /* the listener of the filter of commands; -1: none (yet) */
    uint32_t key[2];
    struct notified notified;
    uint64_t now_ms, serial;
    uid_t own_uid;   /* the last that a command got (rights_new_uid); 0: none yet */
    uint64_t end_ms; /* life.c: CLOCK_BOOTTIME, as it was when last looked at; UINT64_MAX: never */
    uint32_t ring_size;
    char score[16]; /* init's own, as it was given */
    size_t nscore;
    /* from bind; texts lie in `bound_body` */
    unsigned char *bound_body;
    const char *user, *workdir;
    size_t nenv;
    const char *env[INIT_ENV_MAX + 1];
    struct conn conn[CONNS_TABLE];
    unsigned char conn_room[CONNS_TABLE][CONN_ROOM]; /* of each, for one message that waits for room in the socket */
    uint32_t ncommands, nattachments;                /* places in use lie below */
    struct command command[COMMANDS_TABLE];
    struct attachment attachment[INIT_ATTACH_MAX];
    struct worker worker[WORKERS_TABLE];
    struct ticket ticket[INIT_TICKETS_MAX];
    pid_t relay[INIT_RELAYS_MAX]; /* 0: free */
    uint64_t settle_turn;
    struct settle settle[SETTLES_MAX];
    struct init_request request;
    unsigned char out[INIT_MSG_MAX];
    struct input input[INPUTS_MAX];
};

/* main.c */
uint64_t init_clock_ms(void);
int init_watch(struct init *g, int fd, uint32_t events, enum kind kind, uint32_t index, uint32_t gen);
void init_unwatch(struct init *g, int fd);
/* Forks with an OOM score: the kernel kills the child with the highest score first, and init last. */
#define COMMAND_SCORE  "300"
#define RECEIVER_SCORE "1000"
pid_t init_fork(struct init *g, const char *score);
/* life.c */
void life_begin(struct init *g);
/* Called when the sync socket is readable: the commit, later a new listener. */
void life_sync_event(struct init *g);
void life_tick(struct init *g);
/* How long the loop may sleep. */
uint64_t life_wait_ms(const struct init *g);
/* group.c */
/* Kills for the sandbox's limit on memory, without those for limits of single commands. */
uint64_t init_oom_kills(const struct init *g);
uint64_t group_kills(int fd);
/* The descriptors are init's from here on. */
void group_take(struct init *g, const struct init_group *m, const int fds[INIT_GROUP_FDS]);
/* Gives the command the cgroup of that number. False: keeper sent none, or too long ago. */
bool group_give(struct init *g, uint64_t number, struct command *c);
/* In the child. -1 with errno. */
int group_enter(const struct command *c);
/* Notes whether the limit ended it. */
void group_ended(struct init *g, struct command *c);
void group_close(struct command_group *p);
/* denied.c: answers a call that waits for its refusal. */
void denied_event(struct init *g);
/* Records every child that has ended. */
void init_reap(struct init *g);

/* conn.c */
void conn_accept(struct init *g);
void conn_event(struct init *g, uint32_t index, uint32_t gen, uint32_t events);
void conn_begin(struct init *g);
/* Handles messages that were read from a stream already, and closes connections that say nothing. */
void conn_tick(struct init *g);
uint64_t conn_deadline(const struct init *g);
bool conn_is_stream(const struct conn *c);
void conn_close(struct init *g, struct conn *c);
/* A message waits: nothing is read from the connection meanwhile, and nothing else can be sent. */
static inline bool conn_is_blocked(const struct conn *c) { return channel_waits(&c->channel); }
struct conn *conn_of(struct init *g, const struct asker *who);
/* Sends a message, or keeps it until there is room. False: not now, one is kept already. The descriptors stay the caller's. */
bool conn_send_message(struct init *g, struct conn *c, const void *msg, size_t n, const int *fds, size_t nfds);
/* Sends a reply; true if it was sent or kept, or if its connection is gone. */
bool conn_reply(struct init *g, const struct asker *who, enum init_code code, const char *text);
void conn_closed(struct init *g, const struct asker *who);
/* Begins a message in g->out behind its head; msg_send() puts the head and sends. */
struct wire_out msg_begin(struct init *g);
bool msg_send(struct init *g, struct conn *c, uint16_t type, uint64_t request, const struct wire_out *o, const int *fds,
              size_t nfds);
/* Sends the message of n bytes in g->out, an answer, with one descriptor, or with a ticket for it over a stream. */
bool conn_send_answer(struct init *g, struct conn *c, const struct asker *who, size_t n, int fd);
/* A reply whose body may not fit in a packet. `fill` is called with a counting writer first. */
bool conn_reply_big(struct init *g, const struct asker *who, void (*fill)(struct init *g, struct wire_out *o));

/* dispatch in conn.c calls these. Each answers by itself. */
void command_spawn(struct init *g, const struct asker *who, const struct init_request *r, const struct init_head *h,
                   const void *body);
void command_attach(struct init *g, const struct asker *who, const struct init_request *r);
void command_ack(struct init *g, const struct asker *who, const struct init_request *r);
void command_detach(struct init *g, const struct asker *who, bool seen);
void command_signal(struct init *g, const struct asker *who, const struct init_request *r);
void command_resize(struct init *g, const struct asker *who, const struct init_request *r);
void command_input(struct init *g, const struct asker *who, const struct init_request *r);
void command_close_input(struct init *g, const struct asker *who, const struct init_request *r);
void command_list(struct init *g, const struct asker *who);

/* command.c */
void command_reaped(struct init *g, pid_t pid, int status, const struct rusage *usage);
void command_stream_event(struct init *g, uint32_t index, uint32_t gen);
void command_report_event(struct init *g, uint32_t index, uint32_t gen);
void command_tick(struct init *g);
uint64_t command_deadline(const struct init *g);
struct command *command_find(struct init *g, uint32_t pid, const char *tag);
void command_pump(struct init *g, struct command *c, int s);
void command_resume(struct init *g, struct command *c);
void command_free(struct init *g, struct command *c);
/* attach.c */
struct attachment *attach_new(struct init *g, const struct asker *who, const struct command *c);
void attach_flush(struct init *g);
void attach_drop_conn(struct init *g, uint32_t conn, uint32_t gen);
void attach_drop_command(struct init *g, const struct command *c);
void attach_started(struct init *g, const struct command *c, const struct spawn_report *failure);
/* Offset up to which the stream may be written. UINT64_MAX: the oldest bytes give way. */
uint64_t attach_limit(const struct init *g, const struct command *c, int s);
/* input.c */
void input_event(struct init *g, uint32_t index, uint32_t gen);
void input_fail_all(struct init *g, const struct command *c);
void input_flush(struct init *g);
/* ring.c */
int ring_open(struct ring *r, uint32_t size);
void ring_close(struct ring *r);
/* Unmaps the finished ring in init, whose mappings every fork copies; readers keep the memory. */
void ring_rest(struct ring *r);
/* Drops the bytes and their memory; offsets go on. */
void ring_forget(struct ring *r);
/* Reads from fd at most `room` bytes. As read(2). */
ssize_t ring_fill(struct ring *r, int fd, size_t room);
/* worker.c */
void worker_start(struct init *g, const struct asker *who, const struct init_request *r);
void worker_unwatch(struct init *g, const struct asker *who);
void worker_event(struct init *g, uint32_t index, uint32_t gen);
void worker_reaped(struct init *g, pid_t pid);
void worker_flush(struct init *g);
void worker_drop_conn(struct init *g, uint32_t conn, uint32_t gen);
void worker_tick(struct init *g);
uint64_t worker_deadline(const struct init *g);
/* relay.c: what stands for descriptors on a byte stream. */
/* The descriptor is borrowed. False: too many wait. */
bool ticket_new(struct init *g, const struct asker *who, int fd, bool memory, struct init_ticket *ret);
void ticket_drop_conn(struct init *g, uint32_t conn, uint32_t gen);
/* Makes the connection a relay, or answers why not; it is closed here either way. */
void relay_take(struct init *g, struct conn *c, const struct init_head *h, const unsigned char *body);
void relay_reaped(struct init *g, pid_t pid);
void relay_tick(struct init *g);
uint64_t relay_deadline(const struct init *g);
/* settle.c */
void settle_start(struct init *g, const struct asker *who);
void settle_flush(struct init *g);

/* lock.c: irreversible steps. */
void lock_begin(void);
/* Turns a parked init into a bound one. 0, or -1 with text. */
int lock_bound(struct init *g, char *text, size_t size);
/* In a child: becomes the user, for good. -1 with errno and the step that failed. */
int lock_become(const struct init *g, const struct user *u, const char **step);
/* In a child of a strict sandbox: no_new_privs and Landlock, for the places opened before by lock_open_places(). */
int lock_open_places(const struct init *g);
int lock_strict(const struct init *g, const char **step);

/* rights.c: in the child of a command with fewer rights. */
/* In init: a uid for a command that asks for one of its own. None that lives has it, and the next that gets it is 4096 such
 * commands later; the first is taken at random. */
uid_t rights_new_uid(struct init *g);
/* The first path to write that begins at the working directory; NULL: none does. */
const char *rights_relative_path(const struct init_rights *r);
bool rights_need_group(const struct init_rights *r);
/* Puts them in force, as the user and in the command's working directory, for good: no_new_privs, Landlock, a filter. -1
 * with the answer's code and text. tty: the command's own terminal, or -1. */
int rights_apply(const struct init_rights *r, const char *home, int tty, struct spawn_report *ret);
/* The same as if the kernel had this (lower) ABI of Landlock; the tests force every fallback with it. */
int rights_apply_abi(const struct init_rights *r, const char *home, int tty, int abi, struct spawn_report *ret);

/* child.c: the command, between fork and exec. */
struct child_fds {
    int in, out, err; /* in -1: /dev/null */
    int tty;          /* slave; -1: none */
    int report;
};
void child_run(struct init *g, const struct command *c, const struct init_request *r, const struct child_fds *f)
    __attribute__((noreturn));

/* paths.c: pure. */
/* Absolute and clean; "" if it does not fit in INIT_PATH_MAX. base is absolute. */
void paths_clean(char *ret, const char *base, const char *path);
/* The rules of files.h: "" workdir or home, "~", absolute, relative to home. */
void paths_resolve(char *ret, const char *home, const char *workdir, const char *path);

#endif
