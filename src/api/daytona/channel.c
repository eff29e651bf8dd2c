/* channel.c - the event channel of Daytona's clients: socket.io 4 over Engine.IO 4, by WebSocket only. Each client hears of the
 * sandboxes of its tenant, as far as its key allows. A client that has no channel asks once in a second.
 *
 * The key comes in the first message and is checked again before every event and at every heartbeat, so that one which was
 * removed hears nothing more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/daytona/daytona.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/random.h"
#include "http/ws-serve.h"

enum {
    CHANNELS_MAX = 1000,
    CONNECTING_MAX = 100, /* clients that have not shown a key: another one takes the place of the oldest */
    TENANT_CHANNELS_MAX = 100,
    MESSAGE_MAX = 16 * 1024,
    QUEUE_MAX = 1 << 20, /* bytes that wait for one client */
    CONNECT_MS = 10 * 1000,
    PING_MS = 25 * 1000,
    PONG_MS = 20 * 1000,
    KEY_MAX = 128,
};

struct channel {
    struct channel *prev, *next;
    struct api_call *call; /* its `who` is that of the last check */
    struct ws *ws;
    struct loop *loop;
    char key[KEY_MAX]; /* "": none came yet */
    char tenant[40];   /* "": not connected yet */
    bool answered;     /* our last ping */
    loop_id timer;
};

static struct channel *channels; /* the newest first */
static size_t nchannels, nconnected;

static void channel_free(struct channel *ch)
{
    if (ch->prev)
        ch->prev->next = ch->next;
    else
        channels = ch->next;
    if (ch->next)
        ch->next->prev = ch->prev;
    nchannels--;
    nconnected -= ch->tenant[0] != 0;
    loop_timer_del(ch->loop, ch->timer);
    explicit_bzero(ch->key, sizeof ch->key);
    free(ch);
}

static void channel_on_closed(void *arg) { channel_free(arg); }

static void channel_send(struct channel *ch, const char *text) { (void)ws_send(ch->ws, true, text, strlen(text)); }

static void channel_hang_up(struct channel *ch, const char *why)
{
    ws_hang_up(ch->ws, WS_POLICY, why);
    channel_free(ch);
}

/* Whether the key still holds; sets the call's `who`. */
static bool channel_is_allowed(struct channel *ch)
{
    struct api_call *c = ch->call;
    return c->api->domain->tenants.authenticate_key(c->api->tenants, ch->key, &c->who) &&
           !api_scope_lacking(c->who.scopes, c->route->scope, 0);
}

/* --- heartbeat ------------------------------------------------------------------------------------------------------ */

static void channel_on_timer(void *arg)
{
    struct channel *ch = arg;
    ch->timer = 0;
    if (!ch->key[0])
        channel_hang_up(ch, "no CONNECT came");
    else if (!ch->answered)
        channel_hang_up(ch, "a ping was not answered");
    else if (!channel_is_allowed(ch))
        channel_hang_up(ch, "the key does not hold any more");
    else {
        ch->answered = false;
        channel_send(ch, "2");
        ch->timer = loop_timer(ch->loop, PING_MS, channel_on_timer, ch);
    }
}

/* --- messages of the client ----------------------------------------------------------------------------------------- */

static void channel_refuse(struct channel *ch, const char *why)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    buf_adds(&out, "44");
    json_start(&j, &out);
    json_obj(&j, NULL);
    json_str(&j, "message", why);
    json_end_obj(&j);
    channel_send(ch, buf_str(&out));
    channel_hang_up(ch, why);
}

static size_t channel_count(const char *tenant)
{
    size_t n = 0;
    for (const struct channel *ch = channels; ch; ch = ch->next)
        n += strcmp(ch->tenant, tenant) == 0;
    return n;
}

/* CONNECT to the namespace "/", with {"token": KEY}. */
static void channel_connect(struct channel *ch, const char *text, size_t n)
{
    json_t *j = json_loadb(text, n, 0, NULL);
    const char *key = json_string_value(json_object_get(j, "token"));
    char id[21], answer[64];
    if (ch->key[0] || !key || !*key || strlen(key) >= sizeof ch->key) {
        json_decref(j);
        channel_refuse(ch, ch->key[0] ? "the channel is connected already"
                                      : "no valid API key: CONNECT must carry {\"token\": KEY}, a key of this node");
        return;
    }
    (void)snprintf(ch->key, sizeof ch->key, "%s", key);
    json_decref(j);
    if (!channel_is_allowed(ch)) {
        channel_refuse(ch, "no valid API key with the scope sandboxes");
        return;
    }
    if (nconnected >= CHANNELS_MAX) {
        channel_refuse(ch, "the node has as many event channels as are allowed");
        return;
    }
    if (channel_count(ch->call->who.tenant->id) >= TENANT_CHANNELS_MAX) {
        channel_refuse(ch, "this tenant has as many event channels as are allowed");
        return;
    }
    (void)snprintf(ch->tenant, sizeof ch->tenant, "%s", ch->call->who.tenant->id);
    nconnected++;
    (void)snprintf(ch->call->tenant, sizeof ch->call->tenant, "%s", ch->tenant);
    random_hex(id, 10);
    (void)snprintf(answer, sizeof answer, "40{\"sid\":\"%s\"}", id);
    channel_send(ch, answer);
    loop_timer_del(ch->loop, ch->timer);
    ch->timer = loop_timer(ch->loop, PING_MS, channel_on_timer, ch);
}

static void channel_on_message(void *arg, bool text, const void *p, size_t n)
{
    struct channel *ch = arg;
    const char *s = p;
    if (!text || n == 0)
        channel_hang_up(ch, "the channel takes texts of Engine.IO 4");
    else if (n >= 3 && memcmp(s, "40/", 3) == 0)
        channel_refuse(ch, "Invalid namespace");
    else if (n >= 2 && memcmp(s, "40", 2) == 0)
        channel_connect(ch, s + 2, n - 2);
    else if (s[0] == '3')
        ch->answered = true;
    else if (s[0] == '1' || (n >= 2 && memcmp(s, "41", 2) == 0)) {
        ws_hang_up(ch->ws, WS_NORMAL, NULL);
        channel_free(ch);
    } else if (s[0] == '2') { /* a client of Engine.IO 4 only probes with it */
        _cleanup_buf_ struct buf pong = {0};
        buf_addc(&pong, '3');
        buf_add(&pong, s + 1, n - 1);
        (void)ws_send(ch->ws, true, pong.p, pong.n);
    } /* events of clients have no meaning here */
}

/* --- what it tells -------------------------------------------------------------------------------------------------- */

static bool channel_was_there(enum sandbox_state s)
{
    const struct sandbox b = {.state = s};
    return sandbox_is_there(&b);
}

static void channel_tell(struct channel *ch, const struct sandbox *b, enum sandbox_state was)
{
    _cleanup_buf_ struct buf out = {0};
    struct json j;
    bool created = channel_was_there(b->state) && !channel_was_there(was);
    buf_adds(&out, "42");
    json_start(&j, &out);
    json_arr(&j, NULL);
    json_str(&j, NULL, created ? "sandbox.created" : "sandbox.state.updated");
    json_obj(&j, NULL);
    daytona_add_sandbox_as(&j, "sandbox", ch->call, b, NULL);
    if (!created) {
        json_str(&j, "oldState", daytona_state_word(was));
        json_str(&j, "newState", daytona_state_word(b->state));
    }
    json_end_obj(&j);
    json_end_arr(&j);
    (void)ws_send(ch->ws, true, out.p, out.n);
}

void daytona_channel_sandbox_changed(struct api *api, const struct sandbox *b, enum sandbox_state was)
{
    bool shown = channel_was_there(b->state) || channel_was_there(was) || was == SANDBOX_KILLING;
    if (b->desc.hidden || !shown || strcmp(daytona_state_word(was), daytona_state_word(b->state)) == 0)
        return;
    for (struct channel *ch = channels, *next; ch; ch = next) {
        next = ch->next;
        if (ch->call->api != api || strcmp(ch->tenant, b->tenant->id) != 0)
            continue;
        if (ws_queued(ch->ws) > QUEUE_MAX)
            channel_hang_up(ch, "the client does not read its events");
        else if (!channel_is_allowed(ch))
            channel_hang_up(ch, "the key does not hold any more");
        else
            channel_tell(ch, b, was);
    }
}

/* --- the handshake -------------------------------------------------------------------------------------------------- */

static bool channel_is_asked_rightly(struct api_call *c)
{
    _cleanup_buf_ struct buf version = {0}, transport = {0};
    if (!daytona_query(c, "EIO", false, &version) || !daytona_query(c, "transport", false, &transport))
        return false;
    if (strcmp(buf_str(&version), "4") != 0)
        daytona_error(c->req, 400, NULL, "query parameter 'EIO' must be 4: the channel is socket.io 3 or 4");
    else if (strcmp(buf_str(&transport), "websocket") != 0)
        daytona_error(c->req, 400, NULL, "query parameter 'transport' must be websocket: there is no long polling");
    else
        return true;
    return false;
}

/* Without it, clients without a key could keep all others away. */
static void channel_make_room(void)
{
    struct channel *oldest = NULL;
    if (nchannels - nconnected < CONNECTING_MAX)
        return;
    for (struct channel *ch = channels; ch; ch = ch->next)
        oldest = ch->tenant[0] ? oldest : ch;
    channel_hang_up(oldest, "too many clients connect at once");
}

void daytona_channel(struct api_call *c)
{
    static const struct ws_events events = {.on_message = channel_on_message, .on_closed = channel_on_closed};
    const char *why;
    char open[160], id[21];
    if (!channel_is_asked_rightly(c))
        return;
    struct channel *ch = xcalloc(1, sizeof *ch);
    ch->ws = ws_serve(c->req, NULL, MESSAGE_MAX, &events, ch, &why);
    if (!ch->ws) {
        free(ch);
        daytona_error(c->req, 400, NULL, "%s", why);
        return;
    }
    api_rewrap(c->req);
    channel_make_room();
    *ch = (struct channel){.next = channels, .call = c, .ws = ch->ws, .loop = c->api->loop, .answered = true};
    if (channels)
        channels->prev = ch;
    channels = ch;
    nchannels++;
    ch->timer = loop_timer(ch->loop, CONNECT_MS, channel_on_timer, ch);
    random_hex(id, 10);
    (void)snprintf(open, sizeof open,
                   "0{\"sid\":\"%s\",\"upgrades\":[],\"pingInterval\":%d,\"pingTimeout\":%d,\"maxPayload\":%d}", id,
                   PING_MS, PONG_MS, MESSAGE_MAX);
    channel_send(ch, open);
}
