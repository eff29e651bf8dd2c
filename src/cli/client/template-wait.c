/* template-wait.c - hutch template wait: how far the node is with a template of its own, until it is there. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fields.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/client/template.h"

enum { WAIT_POLL_MS = 300, BAR_WIDTH = 30 };

/* "37 % installing packages": a bar on a terminal, else one line for each step. */
static void wait_show(const char *name, const char *text, char last[160])
{
    unsigned percent = 0;
    const char *rest = text + strspn(text, "0123456789 %");
    (void)sscanf(text, "%3u", &percent);
    int full = percent > 100 ? BAR_WIDTH : (int)(percent * BAR_WIDTH / 100);
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\r%s [%.*s%.*s] %3u %% %.40s\033[K", name, full, "##############################",
                      BAR_WIDTH - full, "                              ", percent, rest);
    else if (strncmp(last, rest, 159) != 0)
        (void)fprintf(stderr, "%s: %u %% %s\n", name, percent, rest);
    (void)snprintf(last, 160, "%s", rest);
}

int template_wait(const struct node_call *call, struct err *err)
{
    const char *name = call->args[0];
    char last[160] = "";
    for (;;) {
        _cleanup_json_ json_t *j = NULL;
        const json_t *at = NULL;
        if (api_call(&call->api, "GET", "/v1/templates", NULL, &j, NULL, err) < 0)
            return -1;
        const json_t *all = json_object_get(j, "templates");
        for (size_t i = 0; i < json_array_size(all); i++)
            if (strcmp(field_text(json_array_get(all, i), "name"), name) == 0)
                at = json_array_get(all, i);
        const char *state = at ? field_text(at, "state") : "";
        if (strcmp(state, "building") != 0 && *last && isatty(STDERR_FILENO))
            (void)fputs("\r\033[K", stderr);
        if (!at)
            return err_set(err, ERR_USAGE, 0, "template wait: there is no template '%.80s'; see hutch template ls",
                           name);
        if (!*state || strcmp(state, "ready") == 0)
            return 0;
        if (strcmp(state, "building") != 0)
            return err_set(err, ERR_SETUP, 0, "template %.80s: %s", name, field_text(at, "text"));
        wait_show(name, field_text(at, "text"), last);
        (void)nanosleep(&(struct timespec){.tv_nsec = WAIT_POLL_MS * 1000000L}, NULL);
    }
}
