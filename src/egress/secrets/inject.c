/* inject.c - puts secrets into a request.
 *
 * First every placeholder of the sandbox in the request is judged: its secret must be bound to this host and request
 * and named by the rule, and the request must go over TLS; otherwise it is refused. Then the rule's secrets that are
 * bound to the request are put in, the signature last, because it covers the rest. A redactor removes every value that
 * went out from the answer.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "egress/secrets/secrets-int.h"

struct work {
    struct secrets *v;
    struct inject_request *q;
    struct inject_result *ret;
    struct netpol_target target;
    struct buf text;                               /* where placeholders are looked for */
    const char *where;                             /* what that is; NULL: a request with its places */
    const struct secret *plan[NETPOL_SECRETS_MAX]; /* to be put in */
    size_t nplan;
    const struct secret *shown[REDACT_VALUES_MAX]; /* whose values are in the request now */
    size_t nshown;
};

static const char *inject_host(const struct work *w) { return w->q->flow->host ? w->q->flow->host : "an address"; }

static const struct secret *inject_find(const struct work *w, const char *name)
{
    return secrets_find(w->v, w->q->sandbox->tenant, name);
}

static bool inject_rule_lists(const struct netpol_rule *rule, const char *name)
{
    for (size_t i = 0; rule && i < rule->nsecrets; i++)
        if (strcmp(rule->secrets[i], name) == 0)
            return true;
    return false;
}

static bool inject_is_safe(const struct work *w, const struct secret *s)
{
    return w->q->verified_tls || s->spec.plaintext;
}

/* The next placeholder of a secret in this sandbox, usually the only one; NULL: none left. *at starts at 0. */
static const char *inject_next_placeholder(const struct esb *s, const char *name, size_t *at)
{
    while (*at < s->placeholders.cap) {
        const struct map_slot *slot = &s->placeholders.slots[(*at)++];
        if (slot->key && strcmp(slot->value, name) == 0)
            return slot->key;
    }
    return NULL;
}

static const char *inject_placeholder(const struct esb *s, const char *name)
{
    size_t at = 0;
    return inject_next_placeholder(s, name, &at);
}

/* ---- placeholders that were found ---- */

/* Why the value may not go there; NONE if it may. */
static enum netpol_reason inject_judge(const struct work *w, const struct secret *s, const char *where)
{
    struct inject_result *ret = w->ret;
    const struct netpol_rule *rule = w->q->rule;
    switch (secret_spec_bound(&s->spec, w->q, &w->target)) {
    case SECRET_OTHER_HOST:
        ret->violation = true;
        (void)place_refuse(
            ret, NETPOL_R_SECRET_VIOLATION,
            "the placeholder of secret '%s' stands in %s of a request to %s, to which this secret is not bound",
            s->name, where, inject_host(w));
        break;
    case SECRET_OTHER_REQUEST:
        if (inject_is_safe(w, s))
            (void)place_refuse(ret, NETPOL_R_SECRET_UNBOUND,
                               "secret '%s' (in %s) is bound to %s, but not to this port, method or path", s->name,
                               where, inject_host(w));
        else
            (void)place_refuse(ret, NETPOL_R_CLEARTEXT, "secret '%s' (in %s) is sent over verified TLS only", s->name,
                               where);
        break;
    case SECRET_BOUND:
        if (!inject_is_safe(w, s))
            (void)place_refuse(ret, NETPOL_R_CLEARTEXT, "secret '%s' (in %s) is sent over verified TLS only", s->name,
                               where);
        else if (!inject_rule_lists(rule, s->name))
            (void)place_refuse(ret, NETPOL_R_SECRET_UNBOUND, "secret '%s' (in %s) is not among the secrets of %s%s",
                               s->name, where, rule ? "rule " : "a rule: the request was allowed by default",
                               rule ? rule->id : "");
        break;
    }
    return ret->reason;
}

static bool inject_occurs(const struct work *w, const char *placeholder)
{
    return memmem(buf_str(&w->text), w->text.n, placeholder, strlen(placeholder)) != NULL;
}

/* How often it occurs in w->text; placeholders cannot overlap. */
static size_t inject_count(const struct work *w, const char *placeholder)
{
    size_t count = 0, n = strlen(placeholder);
    const char *p = buf_str(&w->text), *end = p + w->text.n;
    for (; (p = memmem(p, (size_t)(end - p), placeholder, n)); p += n)
        count++;
    return count;
}

/* Limits growth: many short placeholders for a long value would let a few sent bytes take a lot of memory. */
static bool inject_fits(const struct work *w, const struct secret *s, const char *placeholder)
{
    size_t count = inject_count(w, placeholder);
    return count * s->n <= SECRET_GROWTH_MAX ||
           place_refuse(w->ret, NETPOL_R_BODY, "secret '%s' would stand there %zu times; all together may have 1 MiB",
                        s->name, count);
}

static void inject_log_violation(const struct work *w)
{
    struct log_line l;
    if (!log_start(&l, LOG_LEVEL_WARN, "placeholder of a secret sent to a wrong place"))
        return;
    log_str(&l, "sandbox", w->q->sandbox->id);
    log_str(&l, "what", w->ret->text);
    log_end(&l);
}

/* Judges all placeholders of the sandbox that occur in the request. false: refused. */
static bool inject_check_placeholders(struct work *w)
{
    const struct esb *sb = w->q->sandbox;
    for (size_t i = 0; i < sb->placeholders.cap; i++) {
        const struct map_slot *slot = &sb->placeholders.slots[i];
        if (!slot->key || !inject_occurs(w, slot->key))
            continue;
        const struct secret *s = inject_find(w, slot->value);
        char where[100];
        if (w->where)
            (void)snprintf(where, sizeof where, "%s", w->where);
        else
            places_where(w->q, slot->key, where, sizeof where);
        if (!s)
            return place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND,
                                "the placeholder in %s belongs to secret '%.*s', which does not exist any more", where,
                                SECRET_NAME_MAX, (const char *)slot->value);
        if (inject_judge(w, s, where) == NETPOL_R_NONE)
            continue;
        w->q->sandbox->counts.violations += w->ret->reason == NETPOL_R_SECRET_VIOLATION;
        if (!s->spec.log_only)
            return false;
        w->ret->reason = NETPOL_R_NONE; /* only logged: the placeholder itself goes out */
        inject_log_violation(w);
    }
    return true;
}

/* ---- the rule's secrets ---- */

static bool inject_make_plan(struct work *w)
{
    const struct netpol_rule *rule = w->q->rule;
    for (size_t i = 0; rule && i < rule->nsecrets && w->nplan < NETPOL_SECRETS_MAX; i++) {
        const struct secret *s = inject_find(w, rule->secrets[i]);
        if (!s)
            return place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND, "rule %s wants secret '%.*s', which does not exist",
                                rule->id, SECRET_NAME_MAX, rule->secrets[i]);
        if (inject_is_safe(w, s) && secret_spec_bound(&s->spec, w->q, &w->target) == SECRET_BOUND)
            w->plan[w->nplan++] = s;
    }
    return true;
}

static bool inject_wants_body(const struct work *w)
{
    for (size_t i = 0; i < w->nplan; i++) {
        const struct secret *s = w->plan[i];
        if ((s->spec.type == SECRET_REPLACE && (s->spec.in & SECRET_IN_BODY) &&
             inject_placeholder(w->q->sandbox, s->name)) ||
            (s->spec.type == SECRET_SIGV4 && sign_needs_body(w->q, s)))
            return true;
    }
    return false;
}

static bool inject_note_shown(struct work *w, const struct secret *s)
{
    for (size_t i = 0; i < w->nshown; i++)
        if (w->shown[i] == s)
            return true;
    if (w->nshown == REDACT_VALUES_MAX)
        return place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND, "more than %d secrets in one request", REDACT_VALUES_MAX);
    w->shown[w->nshown++] = s;
    return true;
}

static bool inject_put_replace(struct work *w, const struct secret *s)
{
    size_t before = w->ret->nused, at = 0;
    const char *placeholder = NULL;
    if (!inject_placeholder(w->q->sandbox, s->name))
        return true;
    if (s->spec.in & SECRET_IN_WS_TEXT)
        w->ret->ws_text = true;
    while ((placeholder = inject_next_placeholder(w->q->sandbox, s->name, &at)))
        if (inject_occurs(w, placeholder) &&
            (!inject_fits(w, s, placeholder) || !place_replace(w->q, w->ret, s, placeholder)))
            return false;
    bool later = (s->spec.in & SECRET_IN_WS_TEXT) && http_field(w->q->fields, "sec-websocket-key");
    return (w->ret->nused == before && !later) || !s->spec.redact || inject_note_shown(w, s);
}

static bool inject_put_set(struct work *w, const struct secret *s)
{
    _cleanup_buf_wipe_ struct buf text = {0};
    (void)place_substitute(&text, s->spec.format, strlen(s->spec.format), "{value}", s->value, s->n);
    return place_set(w->q, w->ret, s, s->spec.header, &text, "header") && (!s->spec.redact || inject_note_shown(w, s));
}

static bool inject_put_basic(struct work *w, const struct secret *s)
{
    _cleanup_buf_wipe_ struct buf both = {0}, text = {0};
    buf_room(&both, strlen(s->spec.user) + 1 + s->n);
    buf_addf(&both, "%s:", s->spec.user);
    buf_add(&both, s->value, s->n);
    buf_room(&text, 6 + both.n / 3 * 4 + 8);
    buf_adds(&text, "Basic ");
    base64_encode(&text, both.p, both.n);
    return place_set(w->q, w->ret, s, "authorization", &text, "basic") && (!s->spec.redact || inject_note_shown(w, s));
}

/* Finds a secret that another one refers to. If it has bindings of its own, it must be bound to this request too. */
static const struct secret *inject_referred(struct work *w, const struct secret *by, const char *name)
{
    const struct secret *s = inject_find(w, name);
    char lower[SECRET_NAME_MAX];
    if (!s) {
        size_t i = 0;
        for (; name[i] && i < sizeof lower - 1; i++)
            lower[i] = (char)tolower((unsigned char)name[i]);
        lower[i] = '\0';
        s = inject_find(w, lower);
    }
    if (!s || !s->value)
        (void)place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND, "'%s' refers to secret '%s', which does not exist",
                           by->name, name);
    else if (s->spec.type != SECRET_REFERRED &&
             (secret_spec_bound(&s->spec, w->q, &w->target) != SECRET_BOUND || !inject_is_safe(w, s)))
        (void)place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND,
                           "'%s' refers to secret '%s', which is not bound to this request to %s", by->name, name,
                           inject_host(w));
    else
        return s;
    return NULL;
}

static bool inject_put_template(struct work *w, const struct secret *s, const char *header, const char *text)
{
    _cleanup_buf_wipe_ struct buf out = {0};
    char name[SECRET_NAME_MAX];
    size_t from, to;
    bool any = false;
    buf_room(&out, HTTP_HEAD_MAX);
    while (secret_reference(text, &from, &to, name)) {
        const struct secret *other = inject_referred(w, s, name);
        if (!other || (s->spec.redact && !inject_note_shown(w, other)))
            return false;
        if (out.n + strlen(text) + other->n > HTTP_HEAD_MAX)
            return place_refuse(w->ret, NETPOL_R_HEADER, "header '%s' of '%s' would have more than %d bytes", header,
                                s->name, HTTP_HEAD_MAX);
        buf_add(&out, text, from);
        buf_add(&out, other->value, other->n);
        text += to;
        if (!secret_fits_header(other->value, other->n))
            return place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND,
                                "secret '%s' holds a control character, which cannot stand in a header", other->name);
        if (!place_used(w->ret, other, "header", header))
            return false;
        any = true;
    }
    buf_adds(&out, text);
    return any ? place_field(w->q, w->ret, header, buf_str(&out)) : place_set(w->q, w->ret, s, header, &out, "header");
}

static bool inject_put_headers(struct work *w, const struct secret *s)
{
    for (size_t i = 0; i < s->spec.names.n; i++)
        if (!inject_put_template(w, s, s->spec.names.v[i], s->spec.values.v[i]))
            return false;
    return true;
}

/* Sends only the signature, never the key itself; a session token is sent and so must be redacted. */
static bool inject_put_signature(struct work *w, const struct secret *s)
{
    const struct secret *token = NULL;
    if (s->spec.session_token) {
        token = inject_referred(w, s, s->spec.session_token);
        if (!token || (s->spec.redact && !inject_note_shown(w, token)))
            return false;
    }
    return sign_request(w->q, w->ret, s, token);
}

static bool inject_put(struct work *w, const struct secret *s)
{
    switch (s->spec.type) {
    case SECRET_REPLACE:
        return inject_put_replace(w, s);
    case SECRET_SET:
        return inject_put_set(w, s);
    case SECRET_BASIC:
        return inject_put_basic(w, s);
    case SECRET_QUERY:
        return place_param(w->q, w->ret, s) && (!s->spec.redact || inject_note_shown(w, s));
    case SECRET_HEADERS:
        return inject_put_headers(w, s);
    case SECRET_SIGV4:
    case SECRET_REFERRED:
        break;
    }
    return true;
}

static bool inject_put_all(struct work *w)
{
    for (size_t i = 0; i < w->nplan; i++)
        if (!inject_put(w, w->plan[i]))
            return false;
    for (size_t i = 0; i < w->nplan; i++)
        if (w->plan[i]->spec.type == SECRET_SIGV4 && !inject_put_signature(w, w->plan[i]))
            return false;
    return true;
}

/* ---- the answer ---- */

static bool inject_make_redactor(struct work *w)
{
    char names[REDACT_VALUES_MAX][SECRET_NAME_MAX + 16];
    const char *with[REDACT_VALUES_MAX];
    if (w->nshown == 0)
        return true;
    struct redact_set *set = secrets_redact_set(w->v, w->shown, w->nshown);
    if (!set)
        return place_refuse(w->ret, NETPOL_R_SECRET_UNBOUND,
                            "the secrets of this request are too large to be hidden in its answer");
    for (size_t i = 0; i < w->nshown; i++) {
        with[i] = inject_placeholder(w->q->sandbox, w->shown[i]->name);
        if (with[i])
            continue;
        (void)snprintf(names[i], sizeof names[i], "[redacted:%s]", w->shown[i]->name);
        with[i] = names[i];
    }
    if (!redact_set_empty(set))
        w->ret->redact = redactor_new(set, with, w->nshown);
    redact_set_unref(set);
    return !w->ret->redact || place_field(w->q, w->ret, "accept-encoding", "identity");
}

/* ---- the whole ---- */

static bool inject_parse_target(struct work *w)
{
    const char *target = buf_str(w->q->target), *mark = strchr(target, '?'), *why = NULL;
    _cleanup_free_ char *path = xstrndup(target, mark ? (size_t)(mark - target) : strlen(target));
    if (!netpol_target(path, mark ? mark + 1 : NULL, &w->target, &why))
        return place_refuse(w->ret, NETPOL_R_MALFORMED, "%s", why ? why : "the target is malformed");
    return true;
}

void inject_secrets(struct secrets *v, struct inject_request *q, struct inject_result *ret)
{
    struct work w = {.v = v, .q = q, .ret = ret};
    *ret = (struct inject_result){0};
    if ((q->sandbox->placeholders.n == 0 && (!q->rule || q->rule->nsecrets == 0)) || !inject_parse_target(&w))
        return;
    if (q->sandbox->placeholders.n > 0)
        places_text(q, &w.text);
    uint64_t violations = q->sandbox->counts.violations;
    if (inject_check_placeholders(&w) && inject_make_plan(&w)) {
        ret->need_body = !q->body && inject_wants_body(&w);
        if (ret->need_body) /* the next call counts the violations again */
            q->sandbox->counts.violations = violations;
        if (!ret->need_body && inject_put_all(&w) && inject_make_redactor(&w))
            q->sandbox->counts.injections += ret->nused;
    }
    buf_done(&w.text);
    netpol_target_done(&w.target);
}

/* One secret in one message. */
static bool inject_write_message(struct work *w, const struct secret *s)
{
    struct buf *text = &w->text;
    bool json = text->n > 0 && (text->p[0] == '{' || text->p[0] == '[');
    const char *placeholder;
    size_t at = 0;
    _cleanup_buf_wipe_ struct buf value = {0};
    if (s->spec.type != SECRET_REPLACE || !(s->spec.in & SECRET_IN_WS_TEXT))
        return true;
    buf_room(&value, 6 * s->n);
    if (json)
        json_escape(&value, s->value, s->n, false);
    else
        buf_add(&value, s->value, s->n);
    while ((placeholder = inject_next_placeholder(w->q->sandbox, s->name, &at))) {
        _cleanup_buf_wipe_ struct buf new = {0};
        if (!inject_fits(w, s, placeholder))
            return false;
        if (place_substitute(&new, buf_str(text), text->n, placeholder, buf_str(&value), value.n) == 0)
            continue;
        buf_wipe(text);
        *text = new;
        new = (struct buf){0};
        if (!place_used(w->ret, s, "ws_text", NULL))
            return false;
    }
    return true;
}

void inject_message(struct secrets *v, struct inject_request *q, const char *p, size_t n, struct buf *out,
                    struct inject_result *ret)
{
    struct work w = {.v = v, .q = q, .ret = ret, .where = "a WebSocket message"};
    *ret = (struct inject_result){0};
    if (!inject_parse_target(&w))
        return;
    buf_add(&w.text, p, n);
    if (inject_check_placeholders(&w) && inject_make_plan(&w))
        for (size_t i = 0; i < w.nplan; i++)
            if (!inject_write_message(&w, w.plan[i]))
                break;
    if (ret->reason == NETPOL_R_NONE) {
        buf_add(out, buf_str(&w.text), w.text.n);
        q->sandbox->counts.injections += ret->nused;
    }
    buf_wipe(&w.text);
    netpol_target_done(&w.target);
}

void inject_forget(struct inject_request *q)
{
    for (size_t i = 0; i < q->keep->n; i++)
        explicit_bzero(q->keep->v[i], strlen(q->keep->v[i]));
    strv_done(q->keep);
    buf_wipe(q->target);
    if (q->body)
        buf_wipe(q->body);
}
