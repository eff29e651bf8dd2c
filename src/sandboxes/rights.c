#include "sandboxes/rights.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/fields.h"

enum { RIGHTS_MEMORY_MB_MIN = 8, RIGHTS_MEMORY_MB_MAX = 1 << 30 }; /* as keeper has it */
#define RIGHTS_SECONDS_MAX (INT64_C(10) * 366 * 86400)

static int rights_read_word(json_t *o, const char *name, const char *less, const char *same, bool *ret, struct err *err)
{
    const char *word = NULL;
    if (field_str(o, name, &word, err) < 0)
        return -1;
    if (word && strcmp(word, less) != 0 && strcmp(word, same) != 0)
        return err_set(err, ERR_USAGE, 0, "field '%s' must be \"%s\" or \"%s\", not \"%.40s\"", name, less, same, word);
    *ret = word && strcmp(word, less) == 0;
    return 0;
}

static int rights_read_paths(json_t *paths, struct rights *r, struct err *err)
{
    json_t *one;
    size_t i;
    if (json_array_size(paths) > EXEC_WRITE_MAX)
        return err_set(err, ERR_USAGE, 0, "field 'write' has at most %d paths, not %zu", EXEC_WRITE_MAX,
                       json_array_size(paths));
    json_array_foreach(paths, i, one)
    {
        const char *path = json_string_value(one);
        size_t n = json_string_length(one);
        if (!path || n == 0 || n > 4095 || strlen(path) != n)
            return err_set(err, ERR_USAGE, 0, "field 'write' must hold paths of 1 to 4095 bytes without NUL");
        r->write[i] = path;
    }
    return 0;
}

static int rights_read_write(json_t *o, struct rights *r, struct err *err)
{
    json_t *v = json_object_get(o, "write");
    const char *word = json_string_value(v);
    if (!v || json_is_null(v) || (word && strcmp(word, "all") == 0))
        return 0;
    if (!json_is_array(v) && !(word && strcmp(word, "none") == 0))
        return err_set(err, ERR_USAGE, 0, "field 'write' must be \"none\", \"all\" or an array of paths, not %s",
                       word ? "another word" : field_type_name(v));
    r->exec.limit_write = true;
    return json_is_array(v) ? rights_read_paths(v, r, err) : 0;
}

static int rights_read_fields(json_t *o, struct rights *r, struct err *err)
{
    int64_t seconds = 0, bytes = 0, mb = 0;
    if (rights_read_word(o, "network", "off", "on", &r->exec.no_network, err) < 0 ||
        rights_read_word(o, "user", "own", "same", &r->exec.own_user, err) < 0 || rights_read_write(o, r, err) < 0 ||
        field_int(o, "timeoutSeconds", 1, RIGHTS_SECONDS_MAX, &seconds, err) < 0 ||
        field_int(o, "outputBytes", 1, INT64_MAX, &bytes, err) < 0 ||
        field_int(o, "memoryMB", RIGHTS_MEMORY_MB_MIN, RIGHTS_MEMORY_MB_MAX, &mb, err) < 0)
        return -1;
    r->exec.time_ms = (uint64_t)seconds * 1000;
    r->exec.output_max = (uint64_t)bytes;
    r->exec.memory = (uint64_t)mb << 20;
    return 0;
}

int rights_read(json_t *o, struct rights *ret, struct err *err)
{
    static const char *const known[] = {"network", "write", "user", "timeoutSeconds", "outputBytes", "memoryMB", NULL};
    *ret = (struct rights){0};
    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return err_set(err, ERR_USAGE, 0, "rights must be an object like {\"network\": \"off\"}, not %s",
                       field_type_name(o));
    if (fields_check_known(o, "rights", known, err) < 0)
        return -1;
    if (rights_read_fields(o, ret, err) < 0)
        return err_wrap(err, "rights");
    const struct exec_rights *x = &ret->exec;
    ret->given = x->no_network || x->limit_write || x->own_user || x->time_ms || x->output_max || x->memory;
    ret->own = json_incref(o);
    return 0;
}

int rights_read_text(const char *where, const char *text, struct rights *ret, struct err *err)
{
    json_error_t why;
    size_t n = strlen(text);
    *ret = (struct rights){0};
    if (n > RIGHTS_TEXT_MAX)
        return err_set(err, ERR_USAGE, 0, "%s: longer than %d bytes", where, RIGHTS_TEXT_MAX);
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!o)
        return err_set(err, ERR_USAGE, 0, "%s must be JSON like {\"network\": \"off\", \"write\": \"none\"}: %.100s",
                       where, why.text);
    int r = rights_read(o, ret, err);
    json_decref(o);
    return r < 0 ? err_wrap(err, "%s", where) : 0;
}

void rights_done(struct rights *r)
{
    json_decref(r->own);
    r->own = NULL;
}

struct rights rights_take(struct rights *r)
{
    struct rights taken = *r;
    *r = (struct rights){0};
    return taken;
}

const struct exec_rights *rights_of(struct rights *r)
{
    r->exec.write = r->write;
    return r->given ? &r->exec : NULL;
}
