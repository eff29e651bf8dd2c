#include "api/exec-json.h"

#include <stdio.h>

#include "sandboxes/session.h"

const char *const api_exec_streams[] = {[EXEC_STDOUT] = "stdout", [EXEC_STDERR] = "stderr", [EXEC_PTY] = "pty"};

static uint64_t exec_json_ms(const struct timeval *t)
{
    return (uint64_t)t->tv_sec * 1000 + (uint64_t)t->tv_usec / 1000;
}

void api_add_exec_end(struct json *j, const struct exec_end *end)
{
    static const char *const causes[] = {
        [EXEC_LIMIT_TIME] = "time_limit", [EXEC_LIMIT_OUTPUT] = "output_limit", [EXEC_LIMIT_MEMORY] = "memory_limit"};
    json_obj(j, "usage");
    json_u64(j, "wallMs", end->wall_ms);
    json_u64(j, "userMs", exec_json_ms(&end->usage.ru_utime));
    json_u64(j, "systemMs", exec_json_ms(&end->usage.ru_stime));
    json_u64(j, "maxRssKb", (uint64_t)end->usage.ru_maxrss);
    for (enum exec_stream s = EXEC_STDOUT; s <= EXEC_PTY; s++)
        if (end->omitted[s]) {
            char name[24];
            (void)snprintf(name, sizeof name, "%sOmitted", api_exec_streams[s]);
            json_u64(j, name, end->omitted[s]);
        }
    json_end_obj(j);
    if (!session_was_killed(end) && !end->limit)
        return;
    json_obj(j, "death");
    json_str(j, "cause", causes[end->limit] ? causes[end->limit] : end->oom ? "oom" : "signal");
    if (!end->exited)
        json_i64(j, "signal", end->code);
    json_bool(j, "core", end->core);
    json_end_obj(j);
}
