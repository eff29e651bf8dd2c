/* snapshots-int.h - shared by the files of this room: their peers, and the state of generations and transactions. */
#ifndef HUTCH_SNAPSHOTS_SNAPSHOTS_INT_H
#define HUTCH_SNAPSHOTS_SNAPSHOTS_INT_H

#include "config/names.h"
#include "db/db.h"
#include "snapshots/generations.h"
#include "snapshots/snapshots.h"
#include "snapshots/transactions.h"

struct snapshots {
    struct loop *loop; /* these, up to ids, are borrowed */
    struct db *db;
    const struct peers *peers;
    struct stacks *stacks;
    struct templates *templates;
    struct sandboxes *sandboxes;
    struct events *events;
    struct idseal *ids;
    struct generations *generations;   /* generations.c; NULL until they are loaded */
    struct transactions *transactions; /* transactions.c, likewise */
};

#endif
