/* egress-http-app.h - what the servers of egress-http-world.h answer: the path of a request says what. */
#ifndef HUTCH_TESTS_UNIT_EGRESS_HTTP_APP_H
#define HUTCH_TESTS_UNIT_EGRESS_HTTP_APP_H

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/cleanup.h"
#include "http/http.h"

static struct http_req *app_stream; /* the request that a test answers by hand */
static struct buf app_seen;         /* bytes of bodies */
static unsigned app_requests, app_connections;
static bool app_stopped; /* bodies are not read */
static size_t app_bulk;  /* bytes of /bulk that are still to be sent */

static struct buf app_trailers;
static void app_trailer(struct http_req *r, const char *name, const char *value)
{
    (void)r;
    buf_addf(&app_trailers, "%s: %s\n", name, value);
}

static void app_data(struct http_req *r, const void *p, size_t n)
{
    buf_add(&app_seen, p, n < 4096 ? n : 4096);
    r->user = (void *)((uintptr_t)r->user + n);
}
static void app_echo(struct http_req *r, const void *p, size_t n)
{
    if (!http_write(r, p, n))
        http_pause(r);
}
static void app_again(struct http_req *r) { http_resume(r); }
static void app_echo_end(struct http_req *r) { http_end(r); }
static void app_stream_closed(struct http_req *r)
{
    (void)r;
    app_stream = NULL;
}
static void app_count_end(struct http_req *r)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%zu", (size_t)(uintptr_t)r->user);
    http_reply(r, 200, "text/plain", text, strlen(text));
}
static void app_grpc_end(struct http_req *r)
{
    http_set(r, "content-type", "application/grpc");
    http_head(r, 200, HTTP_UNKNOWN);
    (void)http_write(r, "\0\0\0\0\3abc", 8);
    http_trailer(r, "grpc-status", "0");
    http_trailer(r, "grpc-message", "fine");
    http_end(r);
}

/* Fields behind the body, some of which have no business there; and what it was told about that. */
static void app_trailing(struct http_req *r)
{
    static const char *const wrong[] = {"set-cookie",
                                        "location",
                                        "content-type",
                                        "www-authenticate",
                                        "proxy-authorization",
                                        "host",
                                        "alt-svc",
                                        "cache-control",
                                        "access-control-allow-origin",
                                        "authentication-info"};
    const char *te = http_field(&r->fields, "te"), *hop = http_field(&r->fields, "connection");
    const char *key = http_field(&r->fields, "authorization");
    http_head(r, 200, HTTP_UNKNOWN);
    (void)http_write(r, "body", 4);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        http_trailer(r, wrong[i], "no");
    http_trailer(r, "x-checksum", "abc");
    http_trailer(r, "x-te", te ? te : "none");
    http_trailer(r, "x-hop", hop ? hop : "none");
    if (key)
        http_trailer(r, "x-echo", key);
    if (r->query) { /* as long as it says */
        _cleanup_buf_ struct buf b = {0};
        for (long n = strtol(r->query, NULL, 10); n > 0; n--)
            buf_addc(&b, 'x');
        http_trailer(r, "x-long", buf_str(&b));
    }
    http_end(r);
}

/* The request as the server saw it. */
static void app_show(struct http_req *r)
{
    _cleanup_buf_ struct buf b = {0};
    buf_addf(&b, "%s %s%s%s HTTP/%u\nauthority: %s\n", r->method, r->path, r->query ? "?" : "",
             r->query ? r->query : "", r->version, r->authority);
    for (size_t i = 0; i < r->fields.n; i++)
        buf_addf(&b, "%s: %s\n", r->fields.v[i].name, r->fields.v[i].value);
    r->bare = true;
    http_set(r, "alt-svc", "h3=\":443\"");
    http_set(r, "x-request-id", "of-the-server");
    http_reply(r, 200, "text/plain", b.p, b.n);
}

/* A server that reads frames (masked, shorter than 64 KiB) and says each message again. */
static struct buf app_frames;
static void app_say(struct http_req *r, const void *p, size_t n)
{
    size_t at = 0;
    buf_add(&app_frames, p, n);
    const unsigned char *f = (const unsigned char *)app_frames.p;
    while (app_frames.n - at >= 8) {
        size_t wide = (f[at + 1] & 0x7f) == 126 ? 2 : 0, head = 6 + wide;
        size_t size = wide ? (size_t)f[at + 2] << 8 | f[at + 3] : f[at + 1] & 0x7fu;
        unsigned char back[4] = {f[at], (unsigned char)(wide ? 126 : size), (unsigned char)(size >> 8),
                                 (unsigned char)size};
        if (app_frames.n - at < head + size)
            break;
        _cleanup_buf_ struct buf text = {0};
        for (size_t i = 0; i < size; i++)
            buf_addc(&text, (char)(f[at + head + i] ^ f[at + head - 4 + (i & 3)]));
        buf_add(&app_seen, text.p, text.n);
        buf_addc(&app_seen, '\n');
        (void)http_write(r, back, 2 + wide);
        (void)http_write(r, text.p, text.n);
        at += head + size;
    }
    memmove(app_frames.p, app_frames.p + at, app_frames.n - at);
    app_frames.n -= at;
}

static void app_websocket(struct http_req *r)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    _cleanup_buf_ struct buf b = {0};
    _cleanup_buf_ struct buf accept = {0};
    const char *key = http_field(&r->fields, "sec-websocket-key");
    buf_addf(&b, "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key ? key : "");
    (void)EVP_Digest(b.p, b.n, digest, &n, EVP_sha1(), NULL);
    base64_encode(&accept, digest, n);
    http_set(r, "sec-websocket-accept", strcmp(r->path, "/ws-wrong") == 0 ? "no" : buf_str(&accept));
    if (strcmp(r->path, "/ws-extended") == 0)
        http_set(r, "sec-websocket-extensions", "permessage-deflate");
    r->on_data = strcmp(r->path, "/ws-say") == 0 ? app_say : app_echo;
    r->on_writable = app_again;
    if (!http_upgrade(r)) {
        http_reply(r, 400, NULL, NULL, 0);
        return;
    }
    r->on_end = app_echo_end;
}
static void app_websocket_end(struct http_req *r) { app_websocket(r); }

/* As much as is taken, as often as there is room. */
static void app_bulk_more(struct http_req *r)
{
    static const char block[65536];
    while (app_bulk > 0) {
        size_t n = app_bulk < sizeof block ? app_bulk : sizeof block;
        app_bulk -= n;
        if (!http_write(r, block, n))
            return;
    }
    http_end(r);
}

/* What a server may say of a body with the credential in it. */
static void app_leak(struct http_req *r, const char *coding)
{
    const char *value = http_field(&r->fields, "authorization");
    _cleanup_buf_ struct buf b = {0};
    buf_add(&b, "\0\1\2", 3);
    buf_adds(&b, value ? value : "none");
    if (coding)
        http_set(r, "content-encoding", coding);
    http_reply(r, 200, "application/octet-stream", b.p, b.n);
}

static void app(void *ctx, struct http_req *r)
{
    (void)ctx;
    app_requests++;
    r->on_trailer = app_trailer;
    if (strcmp(r->path, "/echo") == 0) {
        r->on_data = app_echo;
        r->on_writable = app_again;
        r->on_end = app_echo_end;
        http_head(r, 200, HTTP_UNKNOWN);
    } else if (strcmp(r->path, "/count") == 0) {
        r->on_data = app_data;
        r->on_end = app_count_end;
        if (app_stopped)
            http_pause(r);
        app_stream = r;
    } else if (strcmp(r->path, "/stream") == 0) {
        app_stream = r;
        r->on_closed = app_stream_closed;
        http_set(r, "content-type", "text/event-stream");
        http_head(r, 200, HTTP_UNKNOWN);
    } else if (strcmp(r->path, "/trailers") == 0) {
        app_trailing(r);
    } else if (strcmp(r->path, "/grpc") == 0) {
        r->on_data = app_data;
        r->on_end = app_grpc_end;
    } else if (strncmp(r->path, "/ws", 3) == 0) {
        r->on_end = app_websocket_end;
    } else if (strcmp(r->path, "/hold") == 0) {
        http_head(r, 200, HTTP_UNKNOWN); /* for as long as the client likes */
    } else if (strcmp(r->path, "/bulk") == 0) {
        r->on_writable = app_bulk_more;
        http_head(r, 200, HTTP_UNKNOWN);
        app_bulk_more(r);
    } else if (strcmp(r->path, "/binary") == 0 || strcmp(r->path, "/coded") == 0) {
        app_leak(r, strcmp(r->path, "/coded") == 0 ? "gzip" : NULL);
    } else if (strcmp(r->path, "/cut") == 0) {
        http_abort(r);
    } else {
        app_show(r);
    }
}

#endif
