/* tx-meta.c - tx.json of a kept transaction: what was where on the host when the command had ended.
 *
 * Paths are percent-encoded, because names are bytes and JSON's strings are not; numbers of inodes are strings, because
 * they may be too large for a JSON integer. Version 1 encoded neither. The first line is an object, each line
 * behind it one entry: there may be millions, and no parser has to hold them all. Up to version 2 they were in the object.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/run/tx.h"
#include "http/url.h"

enum { VERSION = 3, VERSION_ONE_LINE = 2, VERSION_PLAIN = 1 };

static void put_json(json_t **j)
{
    if (*j)
        json_decref(*j);
}
#define _cleanup_json_ _cleanup_(put_json)

void tx_entries_done(struct tx_entries *e)
{
    for (size_t i = 0; i < e->n; i++) {
        free(e->v[i].path);
        free(e->v[i].attrs);
    }
    free(e->v);
    *e = (struct tx_entries){0};
}

/* --- written ------------------------------------------------------------------------------------------------------ */

static void meta_put_path(struct json *j, const char *path)
{
    _cleanup_buf_ struct buf text = {0};
    url_encode(&text, path, strlen(path), "/ @+,=:()[]");
    json_str(j, NULL, buf_str(&text));
}

static void put_entry(struct buf *out, const char *kind, unsigned place, const char *path, const struct tx_seen *s,
                      const char *attrs)
{
    struct json j;
    char ino[24];
    (void)snprintf(ino, sizeof ino, "%" PRIu64, (uint64_t)s->ino);
    json_start(&j, out);
    json_arr(&j, NULL);
    json_str(&j, NULL, kind);
    json_u64(&j, NULL, place);
    meta_put_path(&j, path);
    json_bool(&j, NULL, s->there);
    json_u64(&j, NULL, s->mode);
    json_str(&j, NULL, ino);
    json_i64(&j, NULL, s->size);
    json_i64(&j, NULL, s->ctime.tv_sec);
    json_i64(&j, NULL, s->ctime.tv_nsec);
    if (attrs)
        json_str(&j, NULL, attrs);
    json_end_arr(&j);
    buf_addc(out, '\n');
}

void tx_meta_put(struct buf *out, const char *kind, const struct tx_entry *e)
{
    put_entry(out, kind, e->place, e->path, &e->seen, e->attrs);
}

static void put_entries(struct buf *out, const char *kind, const struct tx_entries *e)
{
    for (size_t i = 0; i < e->n; i++)
        tx_meta_put(out, kind, &e->v[i]);
}

void tx_meta_write(const struct tx *tx, struct buf *out)
{
    struct json j;
    json_start(&j, out);
    json_obj(&j, NULL);
    json_u64(&j, "version", VERSION);
    json_i64(&j, "started_ns", tx->started_ns);
    json_bool(&j, "root", tx->root);
    json_str(&j, "command", tx->command ? tx->command : "");
    json_arr(&j, "places");
    for (size_t i = 0; i < tx->nplaces; i++)
        meta_put_path(&j, tx->place[i].src);
    json_end_arr(&j);
    json_bool(&j, "below_cut", tx->below_cut);
    json_bool(&j, "unseen", tx->unseen);
    json_u64(&j, "entries", tx->n + tx->below.n + tx->modes.n + tx->apart.n);
    json_end_obj(&j);
    buf_addc(out, '\n');
    for (size_t i = 0; i < tx->n; i++)
        put_entry(out, "seen", tx->changes[i].place, tx->changes[i].path, &tx->changes[i].seen, tx->changes[i].attrs);
    put_entries(out, "below", &tx->below);
    put_entries(out, "modes", &tx->modes);
    put_entries(out, "apart", &tx->apart);
}

/* --- read --------------------------------------------------------------------------------------------------------- */

/* NULL: malformed. */
static char *take_path(const json_t *v, bool plain)
{
    struct err ignored = {0};
    struct buf path = {0};
    if (!json_is_string(v))
        return NULL;
    if (plain)
        return xstrdup(json_string_value(v));
    if (url_decode(json_string_value(v), json_string_length(v), URL_PLUS_LITERAL, &path, &ignored) < 0) {
        buf_done(&path);
        return NULL;
    }
    return path.p ? path.p : xstrdup("");
}

/* From element `at` on. */
static bool take_entry(const json_t *v, size_t at, bool plain, struct tx_entry *ret)
{
    const json_t *ino = json_array_get(v, at + 4);
    json_int_t place = json_integer_value(json_array_get(v, at));
    uint64_t number = (uint64_t)json_integer_value(ino);
    if (place < 0 || place >= TX_PLACES_MAX ||
        (!plain && !num_u64(json_is_string(ino) ? json_string_value(ino) : "", &number)))
        return false;
    *ret = (struct tx_entry){.place = (unsigned)place,
                             .path = take_path(json_array_get(v, at + 1), plain),
                             .seen = {.there = json_is_true(json_array_get(v, at + 2)),
                                      .mode = (mode_t)json_integer_value(json_array_get(v, at + 3)),
                                      .ino = (ino_t)number,
                                      .size = (off_t)json_integer_value(json_array_get(v, at + 5)),
                                      .ctime = {.tv_sec = (time_t)json_integer_value(json_array_get(v, at + 6)),
                                                .tv_nsec = (long)json_integer_value(json_array_get(v, at + 7))}}};
    const char *attrs = ret->path ? json_string_value(json_array_get(v, at + 8)) : NULL;
    ret->attrs = attrs ? xstrdup(attrs) : NULL;
    return ret->path != NULL;
}

static bool take_entries(const json_t *doc, const char *key, bool plain, struct tx_entries *ret)
{
    const json_t *all = json_object_get(doc, key);
    size_t i;
    json_t *v;
    json_array_foreach(all, i, v)
    {
        MEM_GROW(ret->v, ret->n, ret->cap);
        if (!take_entry(v, 0, plain, &ret->v[ret->n]))
            return false;
        ret->n++;
    }
    return json_is_array(all);
}

static bool take_places(const json_t *doc, bool plain, struct strv *ret)
{
    const json_t *all = json_object_get(doc, "places");
    size_t i;
    json_t *v;
    json_array_foreach(all, i, v)
    {
        char *path = take_path(v, plain);
        if (!path)
            return false;
        strv_take(ret, path);
    }
    return json_is_array(all) && ret->n <= TX_PLACES_MAX;
}

/* The list for entries of this kind ("seen" ...); NULL: unknown kind. */
static struct tx_entries *meta_list_of_kind(const char *kind, struct tx *tx, struct tx_entries *seen)
{
    return !kind                         ? NULL
           : strcmp(kind, "seen") == 0   ? seen
           : strcmp(kind, "below") == 0  ? &tx->below
           : strcmp(kind, "modes") == 0  ? &tx->modes
           : strcmp(kind, "apart") == 0  ? &tx->apart
           : strcmp(kind, "opened") == 0 ? &tx->opened
                                         : NULL;
}

static bool take_lines(const char *text, const char *end, json_int_t want, struct tx *tx, struct tx_entries *seen)
{
    for (const char *eol; text < end; text = eol + 1, want--) {
        eol = memchr(text, '\n', (size_t)(end - text));
        if (!eol)
            return false;
        _cleanup_json_ json_t *line = json_loadb(text, (size_t)(eol - text), 0, NULL);
        struct tx_entries *to = meta_list_of_kind(json_string_value(json_array_get(line, 0)), tx, seen);
        if (!to)
            return false;
        MEM_GROW(to->v, to->n, to->cap);
        if (!take_entry(line, 1, false, &to->v[to->n]))
            return false;
        to->n++;
    }
    return want == 0;
}

void tx_meta_take(const char *text, size_t n, struct tx *tx)
{
    struct tx_entries none = {0};
    (void)take_lines(text, text + n, 0, tx, &none);
    tx_entries_done(&none);
}

bool tx_meta_read(const char *text, size_t n, struct tx *tx, struct strv *places, struct tx_entries *seen)
{
    const char *eol = n ? memchr(text, '\n', n) : NULL, *end = text + n;
    _cleanup_json_ json_t *doc = json_loadb(text, eol ? (size_t)(eol - text) : n, 0, NULL);
    json_int_t version = json_integer_value(json_object_get(doc, "version"));
    bool plain = version == VERSION_PLAIN;
    const char *command = json_string_value(json_object_get(doc, "command"));
    if (version < VERSION_PLAIN || version > VERSION)
        return false;
    tx->root = json_is_true(json_object_get(doc, "root"));
    tx->started_ns = json_integer_value(json_object_get(doc, "started_ns"));
    tx->command = xstrdup(command ? command : "");
    tx->unseen = json_is_true(json_object_get(doc, "unseen"));
    if (!take_places(doc, plain, places))
        return false;
    if (version > VERSION_ONE_LINE) {
        const json_t *entries = json_object_get(doc, "entries");
        tx->below_cut = json_is_true(json_object_get(doc, "below_cut"));
        return eol && json_is_integer(entries) && take_lines(eol + 1, end, json_integer_value(entries), tx, seen);
    }
    if (!take_entries(doc, "seen", plain, seen))
        return false;
    bool none = !json_object_get(doc, "below"); /* in version 1 */
    tx->below_cut = none || json_is_true(json_object_get(doc, "below_cut"));
    if (json_object_get(doc, "modes") && !take_entries(doc, "modes", plain, &tx->modes))
        return false;
    return none || take_entries(doc, "below", plain, &tx->below);
}

void tx_index(const struct tx_entries *e, struct map index[TX_PLACES_MAX])
{
    for (size_t i = 0; i < e->n; i++)
        (void)map_put(&index[e->v[i].place], e->v[i].path, &e->v[i]);
}

void tx_index_done(struct map index[TX_PLACES_MAX])
{
    for (size_t i = 0; i < TX_PLACES_MAX; i++)
        map_done(&index[i]);
}
