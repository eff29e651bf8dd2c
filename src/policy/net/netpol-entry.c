/* netpol-entry.c - matches one entry of `http` or `deny` against one request, in every interpretation that servers may
 * have. */
#include <string.h>

#include "base/cleanup.h"
#include "policy/net/netpol-int.h"

static bool is_override(const char *name)
{
    return name[0] == 'x' && (strcmp(name, "x-http-method-override") == 0 || strcmp(name, "x-http-method") == 0 ||
                              strcmp(name, "x-method-override") == 0);
}

static void add_override(struct netpol_reading *rd, const char *value)
{
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        n--;
    while (n > 0 && (*value == ' ' || *value == '\t')) {
        value++;
        n--;
    }
    size_t at = rd->nmethods - 1;
    if (n == 0)
        return;
    if (n >= NETPOL_METHOD_MAX || at == NETPOL_OVERRIDES_MAX) {
        rd->bad_override = true;
        return;
    }
    char *to = rd->db[at];
    for (size_t i = 0; i < n; i++) /* servers take "delete" for DELETE */
        to[i] = value[i] >= 'a' && value[i] <= 'z' ? (char)(value[i] - ('a' - 'A')) : value[i];
    to[n] = '\0';
    if (netpol_is_token(to, NETPOL_METHOD_MAX))
        rd->methods[rd->nmethods++] = to;
    else
        rd->bad_override = true;
}

void netpol_read_request(const struct netpol_request *q, struct netpol_reading *ret)
{
    const struct netpol_target *t = q->target;
    ret->q = q;
    ret->methods[0] = q->method;
    ret->nmethods = 1;
    ret->nforms = 0;
    ret->bad_override = false;
    for (size_t i = 0; i < q->nfields; i++)
        if (is_override(q->fields[i].name))
            add_override(ret, q->fields[i].value);
    if (t->judged)
        ret->forms[ret->nforms++] = (struct netpol_form){t->judged, strlen(t->judged)};
    else
        ret->forms[ret->nforms++] = (struct netpol_form){t->text, t->path_len};
    const char *more[] = {t->decoded, t->bare, t->both};
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        if (more[i])
            ret->forms[ret->nforms++] = (struct netpol_form){more[i], strlen(more[i])};
}

static bool globs_match(const struct netpol_glob *globs, size_t nglobs, const char *text, size_t n)
{
    for (size_t i = 0; i < nglobs; i++)
        if (netpol_glob_match(globs[i].text, strlen(globs[i].text), text, n))
            return true;
    return false;
}

/* The outcome of a condition over several values (headers of one name, repeated parameters). To allow, all must match;
 * to deny, one is enough: the server may pick any. */
struct tally {
    size_t seen, matched;
};

static bool tally_holds(const struct tally *t, bool deny)
{
    return deny ? t->matched > 0 : t->seen > 0 && t->matched == t->seen;
}

static bool headers_match(const struct netpol_entry *e, const struct netpol_request *q, bool deny)
{
    for (size_t i = 0; i < e->nheaders; i++) {
        const struct netpol_pair *pair = &e->headers[i];
        struct tally t = {0};
        for (size_t k = 0; k < q->nfields; k++) {
            if (strcmp(q->fields[k].name, pair->name) != 0)
                continue;
            t.seen++;
            t.matched += globs_match(pair->values, pair->nvalues, q->fields[k].value, strlen(q->fields[k].value));
        }
        if (!tally_holds(&t, deny))
            return false;
    }
    return true;
}

static bool types_match(const struct netpol_entry *e, const struct netpol_request *q, bool deny)
{
    struct tally t = {0};
    if (e->ntypes == 0)
        return true;
    for (size_t k = 0; k < q->nfields; k++) {
        char type[128];
        const char *v = q->fields[k].value;
        if (strcmp(q->fields[k].name, "content-type") != 0)
            continue;
        v += strspn(v, " \t");
        size_t n = strcspn(v, "; \t,");
        t.seen++;
        if (n >= sizeof type)
            continue;
        for (size_t i = 0; i < n; i++)
            type[i] = v[i] >= 'A' && v[i] <= 'Z' ? (char)(v[i] + ('a' - 'A')) : v[i];
        t.matched += globs_match(e->types, e->ntypes, type, n);
    }
    if (t.seen == 0 && q->length == 0)
        return !deny; /* no body, so no wrong type */
    return tally_holds(&t, deny);
}

static int entry_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1; /* canonical targets have no small ones */
}

/* Decodes a component of a canonical query. */
static size_t decode_component(const char *s, size_t n, char *to, size_t room)
{
    size_t out = 0;
    for (size_t i = 0; i < n && out < room; i++) {
        bool escape = s[i] == '%' && n - i > 2 && entry_hex_digit(s[i + 1]) >= 0 && entry_hex_digit(s[i + 2]) >= 0;
        to[out++] = escape        ? (char)(entry_hex_digit(s[i + 1]) * 16 + entry_hex_digit(s[i + 2]))
                    : s[i] == '+' ? ' '
                                  : s[i];
        i += escape ? 2 : 0;
    }
    return out;
}

static void tally_parameter(const char *s, size_t n, const struct netpol_pair *pair, struct tally *t)
{
    char room[NETPOL_TARGET_MAX]; /* a decoded component is no longer than the target was when it came */
    const char *equal = memchr(s, '=', n);
    size_t name = equal ? (size_t)(equal - s) : n, len = decode_component(s, name, room, sizeof room);
    if (len != strlen(pair->name) || memcmp(room, pair->name, len) != 0)
        return;
    len = equal ? decode_component(equal + 1, n - name - 1, room, sizeof room) : 0;
    t->seen++;
    t->matched += globs_match(pair->values, pair->nvalues, room, len);
}

static void tally_query(const char *query, const char *separators, const struct netpol_pair *pair, struct tally *t)
{
    for (const char *s = query; *s;) {
        size_t n = strcspn(s, separators);
        if (n > 0)
            tally_parameter(s, n, pair, t);
        s += n;
        s += *s != '\0';
    }
}

static bool query_match(const struct netpol_entry *e, const struct netpol_target *target, bool deny)
{
    const char *query = target->text[target->path_len] == '?' ? target->text + target->path_len + 1 : "";
    for (size_t i = 0; i < e->nquery; i++) {
        struct tally t = {0};
        tally_query(query, "&", &e->query[i], &t);
        if (strchr(query, ';')) /* some servers take it for a separator */
            tally_query(query, "&;", &e->query[i], &t);
        if (!tally_holds(&t, deny))
            return false;
    }
    return true;
}

static bool paths_match(const struct netpol_entry *e, const struct netpol_form *f)
{
    if (e->npaths == 0)
        return true;
    for (size_t i = 0; i < e->npaths; i++)
        if (netpol_path_match(&e->paths[i], f->path, f->n))
            return true;
    return false;
}

static bool methods_match(const struct netpol_entry *e, const char *method)
{
    if (e->nmethods == 0)
        return true;
    for (size_t i = 0; i < e->nmethods; i++)
        if (strcmp(e->methods[i], method) == 0)
            return true;
    return false;
}

static enum netpol_stage entry_stage(const struct netpol_entry *e, const struct netpol_reading *rd, const char *method,
                                     const struct netpol_form *form, bool deny)
{
    const struct netpol_request *q = rd->q;
    if (!paths_match(e, form) || !query_match(e, q->target, deny))
        return NETPOL_AT_PATH;
    if (!methods_match(e, method))
        return NETPOL_AT_METHOD;
    if (!headers_match(e, q, deny))
        return NETPOL_AT_HEADER;
    if (!types_match(e, q, deny))
        return NETPOL_AT_TYPE;
    if (e->max_request_bytes && q->length != UINT64_MAX && q->length > e->max_request_bytes)
        return NETPOL_AT_BODY;
    return NETPOL_AT_END;
}

/* Some reading of the request meets some entry: then it is denied. */
bool netpol_any_reading(const struct netpol_entry *entries, size_t n, const struct netpol_reading *rd)
{
    for (size_t i = 0; i < n; i++)
        for (size_t m = 0; m < rd->nmethods; m++)
            for (size_t f = 0; f < rd->nforms; f++)
                if (entry_stage(&entries[i], rd, rd->methods[m], &rd->forms[f], true) == NETPOL_AT_END)
                    return true;
    return false;
}

/* Every reading of the request meets some entry: then it is allowed. Otherwise how near the worst reading came. *max is the
 * smallest body limit of the entries that were met. */
enum netpol_stage netpol_every_reading(const struct netpol_entry *entries, size_t n, const struct netpol_reading *rd,
                                       uint64_t *max)
{
    if (rd->bad_override)
        return NETPOL_AT_METHOD;
    for (size_t m = 0; m < rd->nmethods; m++)
        for (size_t f = 0; f < rd->nforms; f++) {
            enum netpol_stage best = NETPOL_AT_PATH;
            for (size_t i = 0; i < n && best != NETPOL_AT_END; i++) {
                enum netpol_stage s = entry_stage(&entries[i], rd, rd->methods[m], &rd->forms[f], false);
                if (s > best)
                    best = s;
                if (s == NETPOL_AT_END && entries[i].max_request_bytes &&
                    (!*max || entries[i].max_request_bytes < *max))
                    *max = entries[i].max_request_bytes;
            }
            if (best != NETPOL_AT_END)
                return best;
        }
    return NETPOL_AT_END;
}
