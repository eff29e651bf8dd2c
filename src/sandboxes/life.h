/* life.h - the life of a sandbox as a table of states and events: what each event means in each state.
 *
 * life_step() is pure. A caller steps a sandbox with sandbox_step() (sandboxes-int.h), which sets its state, and then
 * performs the action; what needs quotas, options or other facts is checked before the step. A request that a state
 * does not allow is refused with the cell's status and text. docs/internals/life.md shows the table.
 */
#ifndef HUTCH_SANDBOXES_LIFE_H
#define HUTCH_SANDBOXES_LIFE_H

#include <stdbool.h>

/* Parked and bound are init's: it was made and waits for its binding; it has taken it. The order matters to the
 * predicates of sandboxes.h. */
enum sandbox_state {
    SANDBOX_NEW, /* neither requested nor loaded yet */
    /* being made: there for no client */
    SANDBOX_CREATING, /* keeper was asked */
    SANDBOX_PARKED,
    SANDBOX_BOUND,
    SANDBOX_STARTING, /* row and network are there too; its start command runs, if it has one */
    SANDBOX_LOST,     /* it died; the create fails as soon as its calls are back */
    SANDBOX_RUNNING,
    /* being paused */
    SANDBOX_FREEZING,      /* in memory */
    SANDBOX_STORING,       /* as files: frozen, then captured */
    SANDBOX_STORE_ENDING,  /* captured: the row is written, then its processes are ended */
    SANDBOX_UNLOADING,     /* from memory to files: captured */
    SANDBOX_UNLOAD_ENDING, /* as STORE_ENDING */
    /* paused */
    SANDBOX_FROZEN, /* in memory: keeper holds it */
    SANDBOX_STORED, /* as files, without processes */
    /* being resumed */
    SANDBOX_THAWING,          /* from memory */
    SANDBOX_RESTORE_CLEARING, /* from files: what is left of its earlier life is killed first, if there is anything */
    SANDBOX_RESTORING,        /* keeper was asked */
    SANDBOX_RESTORE_PARKED,   /* as in a create, from here on */
    SANDBOX_RESTORE_BOUND,
    SANDBOX_RESTORE_STARTING,
    SANDBOX_RESTORE_LOST,
    SANDBOX_RESTORE_WRITING, /* it runs; the row that says so is written */
    SANDBOX_RESTORE_UNDOING, /* the resume failed: what was made is killed, the files stay */
    SANDBOX_KILLING,
    SANDBOX_ENDED, /* freed in the next round of the loop */
    SANDBOX_STATES
};

enum life_event {
    /* requests */
    LIFE_ASK_CREATE,
    LIFE_ASK_FREEZE,
    LIFE_ASK_STORE,
    LIFE_ASK_UNLOAD,
    LIFE_ASK_RESUME,
    LIFE_ASK_CAPTURE, /* a copy of all files, or their replacement: snapshot, fork, generation, transaction */
    LIFE_ASK_KILL,
    /* progress of a create, pause or resume */
    LIFE_ON_CLEARED, /* nothing is left of its earlier life */
    LIFE_ON_PARKED,
    LIFE_ON_BOUND,
    LIFE_ON_READY, /* bound, and all other answers are there */
    LIFE_ON_STARTED,
    LIFE_ON_CAPTURED,
    LIFE_ON_FINISHED,
    LIFE_ON_FAILED, /* what was done so far must be undone */
    LIFE_ON_UNDONE, /* it is */
    /* of keeper */
    LIFE_ON_DIED,
    LIFE_ON_GONE,         /* it was killed, discarded, or its death ended it */
    LIFE_ON_LISTED_ALIVE, /* keeper's list, after it was connected again, says that it runs, */
    LIFE_ON_LISTED_FROZEN,
    LIFE_ON_LISTED_DEAD,
    LIFE_ON_UNLISTED, /* or does not name it */
    /* of the row, at a start of front and after a kill that failed: it decides what the sandbox is */
    LIFE_ROW_CREATING,
    LIFE_ROW_RUNNING,
    LIFE_ROW_FROZEN,
    LIFE_ROW_STORED,
    LIFE_EVENTS
};

enum life_action {
    LIFE_EMPTY, /* no cell has it */
    LIFE_IGNORE,
    LIFE_REFUSE, /* a request: with the cell's status and text */
    LIFE_AGREE,  /* a request: it is as asked already */
    LIFE_JOIN,   /* a request: wait for the change that is under way */
    LIFE_QUEUE,  /* a request: wait for the change that is under way, then ask again */
    LIFE_BEGIN,  /* a request: begin it */
    LIFE_MAKE,   /* ask keeper for it */
    LIFE_BIND,
    LIFE_START,  /* run the start command, if there is one */
    LIFE_FINISH, /* tell all who wait */
    LIFE_WRITE,  /* the row that says what it is now */
    LIFE_FAIL,   /* fail the create or resume */
    LIFE_CUT,    /* close the connection to init, so that calls under way fail */
    LIFE_THAW,   /* let it go on */
    LIFE_FREEZE, /* let it stand still again */
    LIFE_KILL,   /* end what keeper has of it */
    LIFE_END,    /* the sandbox is gone */
    LIFE_MEET,   /* it lives as it should: take over keeper's deadline */
    LIFE_ACTIONS
};

struct life_cell {
    enum sandbox_state next;
    enum life_action action;
    unsigned short status; /* LIFE_REFUSE: HTTP */
    const char *text;      /* LIFE_REFUSE */
};

const struct life_cell *life_step(enum sandbox_state state, enum life_event event);

#endif
