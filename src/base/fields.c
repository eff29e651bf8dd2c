#include "base/fields.h"

#include <string.h>

const char *field_type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static int field_err_type(const char *name, const char *expected, const json_t *v, struct err *err)
{
    return err_set(err, ERR_USAGE, 0, "field '%s' must be %s, not %s", name, expected, field_type_name(v));
}

int field_str(json_t *o, const char *name, const char **ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return field_err_type(name, "a string", v, err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return err_set(err, ERR_USAGE, 0, "field '%s' must not contain NUL", name);
    *ret = json_string_value(v);
    return 1;
}

int field_bool(json_t *o, const char *name, bool *ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return field_err_type(name, "a boolean", v, err);
    *ret = json_is_true(v);
    return 1;
}

int field_int(json_t *o, const char *name, int64_t min, int64_t max, int64_t *ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v))
        return field_err_type(name, "a whole number", v, err);
    int64_t n = json_integer_value(v);
    if (n < min || n > max)
        return err_set(err, ERR_USAGE, 0, "field '%s' must be from %lld to %lld, not %lld", name, (long long)min,
                       (long long)max, (long long)n);
    *ret = n;
    return 1;
}

int field_obj(json_t *o, const char *name, json_t **ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return field_err_type(name, "an object", v, err);
    *ret = v;
    return 1;
}

int field_arr(json_t *o, const char *name, json_t **ret, struct err *err)
{
    json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return field_err_type(name, "an array", v, err);
    *ret = v;
    return 1;
}

const char *field_text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

int64_t field_number(const json_t *o, const char *name) { return json_integer_value(json_object_get(o, name)); }

int fields_check_known(json_t *o, const char *where, const char *const *known, struct err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach(o, name, v)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], name) != 0)
            i++;
        if (!known[i])
            return err_set(err, ERR_USAGE, 0, "%s knows no field '%.64s'", where, name);
    }
    return 0;
}

bool fields_text_is_small(const char *p, size_t n, size_t values, size_t levels)
{
    size_t seen = 0, depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (quoted && p[i] == '\\') {
            i++;
        } else if (p[i] == '"') {
            quoted = !quoted;
        } else if (!quoted && (p[i] == '{' || p[i] == '[' || p[i] == ',')) {
            depth += p[i] != ',';
            if (++seen > values || depth > levels)
                return false;
        } else if (!quoted && (p[i] == '}' || p[i] == ']') && depth > 0) {
            depth--;
        }
    }
    return true;
}

json_t *fields_root(json_t *root, json_t **tmp, struct err *err)
{
    *tmp = NULL;
    if (!root)
        return *tmp = json_object();
    if (json_is_object(root))
        return root;
    (void)err_set(err, ERR_USAGE, 0, "the body must be an object, not %s", field_type_name(root));
    return NULL;
}
