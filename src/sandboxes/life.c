/* The table: one row per state. Macros name groups of cells that several states share. */
#include "sandboxes/life.h"

#define GO(to, what)                                \
    {                                               \
        .next = SANDBOX_##to, .action = LIFE_##what \
    }
#define NO(stay, code, words)                                                            \
    {                                                                                    \
        .next = SANDBOX_##stay, .action = LIFE_REFUSE, .status = (code), .text = (words) \
    }
#define EACH(first, last) [LIFE_##first... LIFE_##last]

#define ENDED_TEXT        "the sandbox has ended"
#define PAUSED_TEXT       "the sandbox is paused already"
#define RESUMING_TEXT     "the sandbox is just being resumed; try again"
#define UNLOAD_TEXT       "the sandbox is not paused in memory"
#define CHANGING_TEXT     "a pause or resume of the sandbox is under way; try again"

/* Not there for requests: being made, being killed, gone. */
#define REFUSES_ALL(s)                                                                                         \
    [LIFE_ASK_CREATE] = NO(s, 409, "the sandbox exists already"), [LIFE_ASK_FREEZE] = NO(s, 409, PAUSED_TEXT), \
    [LIFE_ASK_STORE] = NO(s, 409, PAUSED_TEXT), [LIFE_ASK_UNLOAD] = NO(s, 409, UNLOAD_TEXT),                   \
    [LIFE_ASK_RESUME] = NO(s, 404, ENDED_TEXT), [LIFE_ASK_CAPTURE] = NO(s, 503, CHANGING_TEXT)

#define PAUSING_REQUESTS(s)                                                                                    \
    [LIFE_ASK_CREATE] = NO(s, 409, "the sandbox exists already"), [LIFE_ASK_FREEZE] = NO(s, 409, PAUSED_TEXT), \
    [LIFE_ASK_STORE] = NO(s, 409, PAUSED_TEXT), [LIFE_ASK_UNLOAD] = NO(s, 409, UNLOAD_TEXT),                   \
    [LIFE_ASK_RESUME] = GO(s, QUEUE), [LIFE_ASK_CAPTURE] = NO(s, 503, CHANGING_TEXT),                          \
    [LIFE_ASK_KILL] = GO(KILLING, KILL)

#define RESUMING_REQUESTS(s)                                                                                     \
    [LIFE_ASK_CREATE] = NO(s, 409, "the sandbox exists already"), [LIFE_ASK_FREEZE] = NO(s, 503, RESUMING_TEXT), \
    [LIFE_ASK_STORE] = NO(s, 503, RESUMING_TEXT), [LIFE_ASK_UNLOAD] = NO(s, 409, UNLOAD_TEXT),                   \
    [LIFE_ASK_RESUME] = GO(s, JOIN), [LIFE_ASK_CAPTURE] = NO(s, 503, CHANGING_TEXT),                             \
    [LIFE_ASK_KILL] = GO(KILLING, KILL)

/* While a call to keeper is pending its answer decides, not the list: the call is sent again to a new keeper. */
#define PENDING(s) EACH(ON_LISTED_ALIVE, ON_LISTED_FROZEN) = GO(s, IGNORE)
/* Its death ends it. */
#define MORTAL(s) \
    [LIFE_ON_DIED] = GO(s, END), EACH(ON_LISTED_DEAD, ON_UNLISTED) = GO(s, END), [LIFE_ON_GONE] = GO(ENDED, IGNORE)
/* It is its files: what keeper says of its processes does not end it. */
#define AS_FILES(s)                 \
    [LIFE_ON_DIED] = GO(s, IGNORE), \
    EACH(ON_LISTED_DEAD, ON_UNLISTED) = GO(s, IGNORE), [LIFE_ON_GONE] = GO(ENDED, IGNORE)
/* Answers of an earlier change that come late, and rows, which are read once. */
#define NO_PROGRESS(s) EACH(ON_CLEARED, ON_UNDONE) = GO(s, IGNORE)
#define NO_ROW(s)      EACH(ROW_CREATING, ROW_STORED) = GO(s, IGNORE)

/* What the stages of a create share, and those of a restore. */
#define CREATE_COMMON(s)                                                                                            \
    REFUSES_ALL(s),                                                                                                 \
        [LIFE_ASK_KILL] = GO(KILLING, KILL), [LIFE_ON_CLEARED] = GO(s, IGNORE), [LIFE_ON_CAPTURED] = GO(s, IGNORE), \
        [LIFE_ON_FINISHED] = GO(s, IGNORE), [LIFE_ON_FAILED] = GO(s, END), [LIFE_ON_UNDONE] = GO(s, IGNORE),        \
        [LIFE_ON_DIED] = GO(LOST, CUT), [LIFE_ON_GONE] = GO(ENDED, IGNORE),                                         \
        PENDING(s), [LIFE_ON_LISTED_DEAD] = GO(LOST, IGNORE), [LIFE_ON_UNLISTED] = GO(s, IGNORE), NO_ROW(s)
#define RESTORE_COMMON(s)                                                                                   \
    RESUMING_REQUESTS(s), [LIFE_ON_CLEARED] = GO(s, IGNORE), [LIFE_ON_CAPTURED] = GO(s, IGNORE),            \
                          [LIFE_ON_FINISHED] = GO(s, IGNORE), [LIFE_ON_FAILED] = GO(RESTORE_UNDOING, KILL), \
                          [LIFE_ON_UNDONE] = GO(s, IGNORE), [LIFE_ON_GONE] = GO(ENDED, IGNORE),             \
                          PENDING(s), [LIFE_ON_UNLISTED] = GO(s, IGNORE), NO_ROW(s)

static const struct life_cell life_table[SANDBOX_STATES][LIFE_EVENTS] = {
    [SANDBOX_NEW] = {[LIFE_ASK_CREATE] = GO(CREATING, BEGIN),
                     EACH(ASK_FREEZE, ASK_KILL) = NO(NEW, 404, ENDED_TEXT),
                     NO_PROGRESS(NEW),
                     EACH(ON_DIED, ON_UNLISTED) = GO(NEW, IGNORE),
                     /* The client may have been answered: it counts as running until init has said that it is bound. */
                     [LIFE_ROW_CREATING] = GO(RUNNING, IGNORE),
                     [LIFE_ROW_RUNNING] = GO(RUNNING, IGNORE),
                     [LIFE_ROW_FROZEN] = GO(FROZEN, IGNORE),
                     [LIFE_ROW_STORED] = GO(STORED, IGNORE)},

    [SANDBOX_CREATING] =
        {CREATE_COMMON(CREATING), [LIFE_ON_PARKED] = GO(PARKED, BIND), [LIFE_ON_BOUND] = GO(BOUND, IGNORE),
         [LIFE_ON_READY] = GO(STARTING, START), /* after a kill that failed */
         [LIFE_ON_STARTED] = GO(CREATING, IGNORE)},
    [SANDBOX_PARKED] =
        {CREATE_COMMON(PARKED), [LIFE_ON_PARKED] = GO(PARKED, IGNORE), [LIFE_ON_BOUND] = GO(BOUND, IGNORE),
         [LIFE_ON_READY] = GO(PARKED, IGNORE), [LIFE_ON_STARTED] = GO(PARKED, IGNORE)},
    [SANDBOX_BOUND] = {CREATE_COMMON(BOUND), [LIFE_ON_PARKED] = GO(BOUND, IGNORE), [LIFE_ON_BOUND] = GO(BOUND, IGNORE),
                       [LIFE_ON_READY] = GO(STARTING, START), [LIFE_ON_STARTED] = GO(BOUND, IGNORE)},
    [SANDBOX_STARTING] = {CREATE_COMMON(STARTING),
                          EACH(ON_PARKED, ON_READY) = GO(STARTING, IGNORE), [LIFE_ON_STARTED] = GO(RUNNING, FINISH)},
    [SANDBOX_LOST] = {CREATE_COMMON(LOST), [LIFE_ON_PARKED] = GO(LOST, BIND), [LIFE_ON_BOUND] = GO(LOST, IGNORE),
                      EACH(ON_READY, ON_STARTED) = GO(LOST, FAIL)},

    [SANDBOX_RUNNING] = {[LIFE_ASK_CREATE] = NO(RUNNING, 409, "the sandbox exists already"),
                         [LIFE_ASK_FREEZE] = GO(FREEZING, BEGIN),
                         [LIFE_ASK_STORE] = GO(STORING, BEGIN),
                         [LIFE_ASK_UNLOAD] = NO(RUNNING, 409, UNLOAD_TEXT),
                         [LIFE_ASK_RESUME] = GO(RUNNING, AGREE),
                         [LIFE_ASK_CAPTURE] = GO(RUNNING, BEGIN),
                         [LIFE_ASK_KILL] = GO(KILLING, KILL),
                         NO_PROGRESS(RUNNING),
                         [LIFE_ON_LISTED_ALIVE] = GO(RUNNING, MEET),
                         [LIFE_ON_LISTED_FROZEN] = GO(RUNNING, THAW), /* by a pause that no client heard of */
                         MORTAL(RUNNING),
                         NO_ROW(RUNNING)},

    [SANDBOX_FREEZING] = {PAUSING_REQUESTS(FREEZING),
                          EACH(ON_CLEARED, ON_CAPTURED) = GO(FREEZING, IGNORE), [LIFE_ON_FINISHED] = GO(FROZEN, FINISH),
                          [LIFE_ON_FAILED] = GO(FREEZING, THAW), [LIFE_ON_UNDONE] = GO(RUNNING, FINISH),
                          PENDING(FREEZING), MORTAL(FREEZING), NO_ROW(FREEZING)},
    [SANDBOX_STORING] = {PAUSING_REQUESTS(STORING), EACH(ON_CLEARED, ON_STARTED) = GO(STORING, IGNORE),
                         [LIFE_ON_CAPTURED] = GO(STORE_ENDING, WRITE), [LIFE_ON_FINISHED] = GO(STORING, IGNORE),
                         [LIFE_ON_FAILED] = GO(STORING, THAW), [LIFE_ON_UNDONE] = GO(RUNNING, FINISH), PENDING(STORING),
                         MORTAL(STORING), NO_ROW(STORING)},
    [SANDBOX_STORE_ENDING] =
        {PAUSING_REQUESTS(STORE_ENDING),
         EACH(ON_CLEARED, ON_CAPTURED) = GO(STORE_ENDING, IGNORE), [LIFE_ON_FINISHED] = GO(STORED, FINISH),
         [LIFE_ON_FAILED] = GO(STORING, THAW), [LIFE_ON_UNDONE] = GO(STORE_ENDING, IGNORE), PENDING(STORE_ENDING),
         AS_FILES(STORE_ENDING), NO_ROW(STORE_ENDING)},
    [SANDBOX_UNLOADING] = {PAUSING_REQUESTS(UNLOADING), EACH(ON_CLEARED, ON_STARTED) = GO(UNLOADING, IGNORE),
                           [LIFE_ON_CAPTURED] = GO(UNLOAD_ENDING, WRITE), [LIFE_ON_FINISHED] = GO(UNLOADING, IGNORE),
                           [LIFE_ON_FAILED] = GO(FROZEN, FINISH), [LIFE_ON_UNDONE] = GO(UNLOADING, IGNORE),
                           PENDING(UNLOADING), MORTAL(UNLOADING), NO_ROW(UNLOADING)},
    [SANDBOX_UNLOAD_ENDING] =
        {PAUSING_REQUESTS(UNLOAD_ENDING),
         EACH(ON_CLEARED, ON_CAPTURED) = GO(UNLOAD_ENDING, IGNORE), [LIFE_ON_FINISHED] = GO(STORED, FINISH),
         [LIFE_ON_FAILED] = GO(FROZEN, FINISH), [LIFE_ON_UNDONE] = GO(UNLOAD_ENDING, IGNORE), PENDING(UNLOAD_ENDING),
         AS_FILES(UNLOAD_ENDING), NO_ROW(UNLOAD_ENDING)},

    [SANDBOX_FROZEN] = {[LIFE_ASK_CREATE] = NO(FROZEN, 409, "the sandbox exists already"),
                        EACH(ASK_FREEZE, ASK_STORE) = NO(FROZEN, 409, PAUSED_TEXT),
                        [LIFE_ASK_UNLOAD] = GO(UNLOADING, BEGIN),
                        [LIFE_ASK_RESUME] = GO(THAWING, BEGIN),
                        [LIFE_ASK_CAPTURE] = GO(FROZEN, BEGIN),
                        [LIFE_ASK_KILL] = GO(KILLING, KILL),
                        NO_PROGRESS(FROZEN),
                        [LIFE_ON_LISTED_ALIVE] = GO(FROZEN, FREEZE), /* the client was told that it is paused */
                        [LIFE_ON_LISTED_FROZEN] = GO(FROZEN, IGNORE),
                        MORTAL(FROZEN),
                        NO_ROW(FROZEN)},
    [SANDBOX_STORED] = {[LIFE_ASK_CREATE] = NO(STORED, 409, "the sandbox exists already"),
                        EACH(ASK_FREEZE, ASK_STORE) = NO(STORED, 409, PAUSED_TEXT),
                        [LIFE_ASK_UNLOAD] = GO(STORED, AGREE),
                        [LIFE_ASK_RESUME] = GO(RESTORE_CLEARING, BEGIN),
                        [LIFE_ASK_CAPTURE] = GO(STORED, BEGIN),
                        [LIFE_ASK_KILL] = GO(KILLING, KILL),
                        NO_PROGRESS(STORED),
                        EACH(ON_LISTED_ALIVE, ON_LISTED_FROZEN) = GO(STORED, KILL), /* left of its earlier life */
                        AS_FILES(STORED),
                        NO_ROW(STORED)},

    [SANDBOX_THAWING] = {RESUMING_REQUESTS(THAWING),
                         EACH(ON_CLEARED, ON_CAPTURED) = GO(THAWING, IGNORE), [LIFE_ON_FINISHED] = GO(RUNNING, FINISH),
                         [LIFE_ON_FAILED] = GO(THAWING, FREEZE), [LIFE_ON_UNDONE] = GO(FROZEN, FINISH),
                         PENDING(THAWING), MORTAL(THAWING), NO_ROW(THAWING)},
    [SANDBOX_RESTORE_CLEARING] =
        {RESUMING_REQUESTS(RESTORE_CLEARING), [LIFE_ON_CLEARED] = GO(RESTORING, MAKE),
         EACH(ON_PARKED, ON_FINISHED) = GO(RESTORE_CLEARING, IGNORE), [LIFE_ON_FAILED] = GO(RESTORE_UNDOING, KILL),
         [LIFE_ON_UNDONE] = GO(RESTORE_CLEARING, IGNORE), PENDING(RESTORE_CLEARING), AS_FILES(RESTORE_CLEARING),
         NO_ROW(RESTORE_CLEARING)},
    [SANDBOX_RESTORING] = {RESTORE_COMMON(RESTORING), [LIFE_ON_PARKED] = GO(RESTORE_PARKED, BIND),
                           EACH(ON_BOUND, ON_STARTED) = GO(RESTORING, IGNORE), [LIFE_ON_DIED] = GO(RESTORE_LOST, CUT),
                           [LIFE_ON_LISTED_DEAD] = GO(RESTORING, IGNORE)}, /* its earlier life */
    [SANDBOX_RESTORE_PARKED] =
        {RESTORE_COMMON(RESTORE_PARKED), [LIFE_ON_PARKED] = GO(RESTORE_PARKED, IGNORE),
         [LIFE_ON_BOUND] = GO(RESTORE_BOUND, IGNORE), EACH(ON_READY, ON_STARTED) = GO(RESTORE_PARKED, IGNORE),
         [LIFE_ON_DIED] = GO(RESTORE_LOST, CUT), [LIFE_ON_LISTED_DEAD] = GO(RESTORE_PARKED, IGNORE)},
    [SANDBOX_RESTORE_BOUND] =
        {RESTORE_COMMON(RESTORE_BOUND), EACH(ON_PARKED, ON_BOUND) = GO(RESTORE_BOUND, IGNORE),
         [LIFE_ON_READY] = GO(RESTORE_STARTING, START), [LIFE_ON_STARTED] = GO(RESTORE_BOUND, IGNORE),
         [LIFE_ON_DIED] = GO(RESTORE_LOST, CUT), [LIFE_ON_LISTED_DEAD] = GO(RESTORE_LOST, CUT)},
    [SANDBOX_RESTORE_STARTING] =
        {RESTORE_COMMON(RESTORE_STARTING),
         EACH(ON_PARKED, ON_READY) = GO(RESTORE_STARTING, IGNORE), [LIFE_ON_STARTED] = GO(RESTORE_WRITING, WRITE),
         [LIFE_ON_DIED] = GO(RESTORE_LOST, CUT), [LIFE_ON_LISTED_DEAD] = GO(RESTORE_LOST, CUT)},
    [SANDBOX_RESTORE_LOST] =
        {RESTORE_COMMON(RESTORE_LOST), [LIFE_ON_PARKED] = GO(RESTORE_LOST, BIND),
         [LIFE_ON_BOUND] = GO(RESTORE_LOST, IGNORE), EACH(ON_READY, ON_STARTED) = GO(RESTORE_LOST, FAIL),
         [LIFE_ON_DIED] = GO(RESTORE_LOST, IGNORE), [LIFE_ON_LISTED_DEAD] = GO(RESTORE_LOST, IGNORE)},
    [SANDBOX_RESTORE_WRITING] =
        {RESUMING_REQUESTS(RESTORE_WRITING),
         EACH(ON_CLEARED, ON_CAPTURED) = GO(RESTORE_WRITING, IGNORE), [LIFE_ON_FINISHED] = GO(RUNNING, FINISH),
         [LIFE_ON_FAILED] = GO(RESTORE_UNDOING, KILL), [LIFE_ON_UNDONE] = GO(RESTORE_WRITING, IGNORE),
         PENDING(RESTORE_WRITING), MORTAL(RESTORE_WRITING), NO_ROW(RESTORE_WRITING)},
    [SANDBOX_RESTORE_UNDOING] =
        {RESUMING_REQUESTS(RESTORE_UNDOING),
         EACH(ON_CLEARED, ON_FAILED) = GO(RESTORE_UNDOING, IGNORE), [LIFE_ON_UNDONE] = GO(STORED, FINISH),
         PENDING(RESTORE_UNDOING), AS_FILES(RESTORE_UNDOING), NO_ROW(RESTORE_UNDOING)},

    [SANDBOX_KILLING] = {REFUSES_ALL(KILLING), [LIFE_ASK_KILL] = GO(KILLING, JOIN),
                         EACH(ON_CLEARED, ON_CAPTURED) = GO(KILLING, IGNORE), [LIFE_ON_FINISHED] = GO(KILLING, IGNORE),
                         [LIFE_ON_FAILED] = GO(KILLING, END), /* of its create */
                         [LIFE_ON_UNDONE] = GO(KILLING, IGNORE), PENDING(KILLING), MORTAL(KILLING),
                         /* the kill failed; a creation goes on */
                         [LIFE_ROW_CREATING] = GO(CREATING, IGNORE), [LIFE_ROW_RUNNING] = GO(RUNNING, THAW),
                         [LIFE_ROW_FROZEN] = GO(FROZEN, IGNORE), [LIFE_ROW_STORED] = GO(STORED, IGNORE)},
    [SANDBOX_ENDED] = {EACH(ASK_CREATE, ASK_KILL) = NO(ENDED, 404, ENDED_TEXT),
                       EACH(ON_CLEARED, ROW_STORED) = GO(ENDED, IGNORE)},
};

const struct life_cell *life_step(enum sandbox_state state, enum life_event event) { return &life_table[state][event]; }
