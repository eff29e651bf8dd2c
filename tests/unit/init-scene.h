/* init-scene.h - one world (init-world.h) for each test of a file, and how it begins and ends. */
#ifndef HUTCH_TESTS_UNIT_INIT_SCENE_H
#define HUTCH_TESTS_UNIT_INIT_SCENE_H

#include "init-world.h"

static struct world w;

static int up(void **state)
{
    (void)state;
    return world_up(&w, false);
}
static int up_strict(void **state)
{
    (void)state;
    return world_up(&w, true);
}
static int down(void **state)
{
    (void)state;
    world_stop(&w);
    return 0;
}

#endif
