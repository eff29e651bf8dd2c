/* find-id.c - sandboxes by name or by the beginning of their id: what people type. A whole id costs no request. */
#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/ids.h"
#include "cli/client/node.h"

enum { WORD_MAX = 63 };

static bool find_id_is_whole(const char *word)
{
    return strlen(word) == ID_TEXT && strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789") == ID_TEXT;
}

/* How many sandboxes of the list the word means, by name (or by the beginning of the id); the last one is in *ret. */
static size_t find_id_count(const json_t *list, const char *word, bool by_name, const json_t **ret)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        const char *id = field_text(s, "sandboxID"), *name = field_text(json_object_get(s, "metadata"), "name");
        if (by_name ? strcmp(name, word) == 0 : strncmp(id, word, strlen(word)) == 0) {
            *ret = s;
            n++;
        }
    }
    return n;
}

int api_find_id(const struct api *a, const char *word, char ret[64], struct err *err)
{
    _cleanup_json_ json_t *list = NULL;
    const json_t *found = NULL;
    size_t n = strlen(word);
    if (n == 0 || n > WORD_MAX ||
        strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") != n)
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not the id or name of a sandbox; `hutch ls` lists them", word);
    if (find_id_is_whole(word)) {
        (void)snprintf(ret, 64, "%s", word);
        return 0;
    }
    if (node_pages(a, "/v2/sandboxes?limit=100", &list, err) < 0)
        return -1;
    size_t many = find_id_count(list, word, true, &found);
    if (many == 0)
        many = find_id_count(list, word, false, &found);
    if (many == 0)
        return err_set(err, ERR_USAGE, 0, "no sandbox is called '%s', and no id begins so; `hutch ls` lists them",
                       word);
    if (many > 1)
        return err_set(err, ERR_USAGE, 0, "'%s' can mean %zu sandboxes; give more of the id (`hutch ls`)", word, many);
    (void)snprintf(ret, 64, "%s", field_text(found, "sandboxID"));
    return 0;
}

int node_take_id(struct node_call *call, int i, struct err *err)
{
    static struct strv kept; /* until the program ends: args are borrowed everywhere */
    char id[64];
    if (api_find_id(&call->api, call->args[i], id, err) < 0)
        return -1;
    strv_add(&kept, id);
    call->args[i] = kept.v[kept.n - 1];
    return 0;
}
