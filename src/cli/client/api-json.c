/* api-json.c - JSON calls and Connect streams on top of api.c. */
#include <stdio.h>
#include <string.h>

#include "base/fields.h"
#include "base/text.h"
#include "cli/client/api.h"

int api_refused(struct blocking *s, struct err *err)
{
    _cleanup_buf_ struct buf body = {0}, safe = {0};
    struct err ignored;
    (void)api_read_all(s, &body, &ignored);
    _cleanup_json_ json_t *j = json_loadb(buf_str(&body), body.n, 0, NULL);
    const char *text = field_text(j, "message");
    text_add_safe(&safe, *text ? text : buf_str(&body), 400);
    unsigned status = s->answer.status;
    int code = status == 401 || status == 403 || (status >= 400 && status < 500) ? ERR_USAGE : ERR_HOST;
    if (status == 401)
        return err_set(err, code, 0, "the node refused the key: %s (set HUTCH_API_KEY, or use `hutch login`)",
                       buf_str(&safe));
    return err_set(err, code, 0, "%u: %s", status, buf_str(&safe));
}

int api_call(const struct api *a, const char *method, const char *path, const char *body, json_t **ret,
             unsigned *ret_status, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    struct blocking s;
    struct api_request q = {.method = method, .path = path, .body = body, .body_fd = -1, .keep = true};
    q.length = body ? strlen(body) : 0;
    q.type = body ? "application/json" : NULL;
    if (ret)
        *ret = NULL;
    if (api_send(a, &q, &s, err) < 0)
        return -1;
    if (ret_status)
        *ret_status = s.answer.status;
    int r = s.answer.status >= 400 ? api_refused(&s, err) : api_read_all(&s, &text, err);
    api_end(a, &s);
    if (r < 0 || text.n == 0 || !ret)
        return r;
    json_error_t why;
    *ret = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES, &why);
    return *ret ? 0 : err_set(err, ERR_HOST, 0, "the node's answer is not JSON: %s", why.text);
}

int api_sandbox(struct api *a, const char *id, struct err *err)
{
    char path[128];
    _cleanup_json_ json_t *j = NULL;
    if (!*id || strlen(id) >= sizeof a->sandbox || strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(id))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not a sandbox id; `hutch ls` lists them", id);
    (void)snprintf(path, sizeof path, "/sandboxes/%s", id);
    if (api_call(a, "GET", path, NULL, &j, NULL, err) < 0)
        return -1;
    (void)snprintf(a->sandbox, sizeof a->sandbox, "%s", id);
    a->memory_mb = (unsigned long)json_integer_value(json_object_get(j, "memoryMB"));
    (void)snprintf(a->token, sizeof a->token, "%s", field_text(j, "envdAccessToken"));
    return 0;
}

int api_user(struct api *a, const char *user, struct err *err)
{
    if (!*user || strlen(user) >= sizeof a->user || strpbrk(user, ":\r\n"))
        return err_set(err, ERR_USAGE, 0, "'%.80s' is not the name of a user", user);
    (void)snprintf(a->user, sizeof a->user, "%s", user);
    return 0;
}

static const char *const rpc_fields[] = {"connect-protocol-version: 1", NULL};

int api_rpc(const struct api *a, const char *method, const char *body, json_t **ret, struct err *err)
{
    char path[128];
    _cleanup_buf_ struct buf text = {0};
    struct blocking s;
    (void)snprintf(path, sizeof path, "/%s", method);
    struct api_request q = {.method = "POST",
                            .path = path,
                            .type = "application/json",
                            .extra = rpc_fields,
                            .body = body,
                            .length = strlen(body),
                            .body_fd = -1,
                            .keep = true};
    if (api_send(a, &q, &s, err) < 0)
        return -1;
    int r = s.answer.status >= 400 ? api_refused(&s, err) : api_read_all(&s, &text, err);
    api_end(a, &s);
    if (r == 0 && ret)
        *ret = json_loadb(buf_str(&text), text.n, 0, NULL);
    return r;
}

int api_rpc_stream(const struct api *a, const char *method, const char *body, struct blocking *ret, struct err *err)
{
    char path[128];
    _cleanup_buf_ struct buf b = {0};
    size_t n = strlen(body);
    (void)snprintf(path, sizeof path, "/%s", method);
    const char frame[5] = {0, (char)(n >> 24), (char)(n >> 16), (char)(n >> 8), (char)n};
    buf_add(&b, frame, sizeof frame);
    buf_add(&b, body, n);
    struct api_request q = {.method = "POST",
                            .path = path,
                            .type = "application/connect+json",
                            .extra = rpc_fields,
                            .body = b.p,
                            .length = b.n,
                            .body_fd = -1};
    if (api_send(a, &q, ret, err) < 0)
        return -1;
    if (ret->answer.status == 200)
        return 0;
    (void)api_refused(ret, err);
    blocking_close(ret);
    return -1;
}

int api_message(struct blocking *s, struct buf *pending, int wait_fd, bool *ret_woken, json_t **ret, struct err *err)
{
    char room[32 * 1024];
    for (;;) {
        const unsigned char *p = (const unsigned char *)pending->p;
        size_t len = pending->n >= 5 ? (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4] : 0;
        if (len > API_BODY_MAX)
            return err_set(err, ERR_HOST, 0, "the node's stream is damaged");
        if (pending->n >= 5 && pending->n - 5 >= len) {
            bool last = p[0] & 2;
            json_t *j = json_loadb(pending->p + 5, len, 0, NULL);
            memmove(pending->p, pending->p + 5 + len, pending->n - 5 - len);
            pending->n -= 5 + len;
            if (!j)
                return err_set(err, ERR_HOST, 0, "the node's stream is damaged");
            const json_t *bad = json_object_get(j, "error");
            if (bad)
                (void)err_set(err, ERR_USAGE, 0, "%s", field_text(bad, "message"));
            if (bad || last)
                json_decref(j);
            else
                *ret = j;
            return bad ? -1 : !last;
        }
        ssize_t n = api_read(s, room, sizeof room, wait_fd, ret_woken, err);
        if (n < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_HOST, 0, "the node's stream ended too early");
        buf_add(pending, room, (size_t)n);
    }
}
