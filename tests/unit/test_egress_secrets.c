#include <ctype.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "egress/secrets/lockmem.h"
#include "secrets-world.h"

/* AddressSanitizer makes mlock() do nothing. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

#define BIND "'bind':[{'hosts':['api.llm.example']}]"

static json_t *spec_of(const char *text)
{
    _cleanup_free_ char *copy = xstrdup(text);
    json_error_t why;
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *j = json_loads(copy, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!j)
        fail_msg("%s: %s", text, why.text);
    return j;
}

static int check(const char *text, struct err *err)
{
    json_t *j = spec_of(text);
    int r = secret_spec_check(j, err);
    json_decref(j);
    return r;
}

static void every_kind_of_spec_is_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        "{'redact_response':false,'on_violation':'log'}",
        "{" BIND "}",
        "{" BIND ",'inject':{'type':'replace'},'env':'LLM_API_KEY','placeholder':'sk-sbx-{rand:40}'}",
        "{" BIND ",'inject':{'type':'replace','in':['header','basic','query','body','ws_text']}}",
        "{" BIND ",'inject':{'type':'set','header':'X-Api-Key'}}",
        "{" BIND ",'inject':{'type':'set','header':'x-api-key','format':'Token token={value}, x'}}",
        "{" BIND ",'inject':{'type':'header','header':'x-api-key'}}",
        "{" BIND ",'inject':{'type':'bearer'},'allow_plaintext':true}",
        "{" BIND ",'inject':{'type':'basic','user':'x-access-token'}}",
        "{" BIND ",'inject':{'type':'query','param':'key'}}",
        "{" BIND
        ",'inject':{'type':'headers','headers':{'X-A':'a ${e2b.secrets.one} ${e2b.secrets.TWO}','x-b':'$ {plain}'}}}",
        "{" BIND ",'inject':{'type':'sigv4','region':'eu-central-1','service':'s3','access_key_id':'AKIDEXAMPLE','"
        "session_token':'tok'}}",
        "{'bind':[{'hosts':['a.example','*.b.example'],'ports':[443,8443],'methods':['GET'],'paths':['/v1/**']}]}",
        "{'bind':[{'hosts':['a.example']},{'hosts':['.c.example']}]}",
    };
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (check(good[i], &err) < 0)
            fail_msg("%s: %s", good[i], err.msg);
}

static void what_is_wrong_with_a_spec_is_named_with_its_path(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *says;
    } bad[] = {
        {"[]", "spec: expected an object"},
        {"{'binds':[]}", "binds: unknown key (did you mean 'bind'?); known: bind, inject, env"},
        {"{'inject':{'type':'bearer'}}", "bind: missing"},
        {"{'bind':[]}", "bind: expected a list of 1 to 32"},
        {"{'bind':{}}", "bind: expected a list of 1 to 32"},
        {"{'bind':[{}]}", "bind[0].hosts: missing"},
        {"{'bind':[{'hosts':[]}]}", "bind[0].hosts: expected a list of 1 to 64"},
        {"{'bind':[{'hosts':['a.example'],'host':['x']}]}", "bind[0].host: unknown key (did you mean 'hosts'?)"},
        {"{'bind':[{'hosts':['a.example',7.5]}]}", "bind[0].hosts[1]: expected a text"},
        {"{'bind':[{'hosts':['a.example']},{'hosts':['a..b']}]}", "bind[1].hosts[0]: "},
        {"{'bind':[{'hosts':['*']}]}", "bind[0].hosts[0]: \"*\": \"*\" stands for every name"},
        {"{'bind':[{'hosts':['*.com']}]}",
         "bind[0].hosts[0]: \"*.com\": anyone can register a name below this suffix; name the hosts"},
        {"{'bind':[{'hosts':['10.0.0.1']}]}", "bind[0].hosts[0]: "},
        {"{'bind':[{'hosts':['a.example'],'ports':[70000]}]}", "bind[0].ports[0]: "},
        {"{'bind':[{'hosts':['a.example'],'paths':['x']}]}", "bind[0].paths[0]: "},
        {"{'bind':[{'hosts':['a.example'],'methods':['G T']}]}", "bind[0].methods[0]: "},
        {"{" BIND ",'inject':[]}", "inject: expected an object"},
        {"{" BIND ",'inject':{}}", "inject.type: expected replace, set,"},
        {"{" BIND ",'inject':{'type':'bear'}}", "inject.type: expected replace, set,"},
        {"{" BIND ",'inject':{'type':'bearer','header':'x'}}", "inject.header: unknown key; known: type"},
        {"{" BIND ",'inject':{'type':'replace','in':[]}}", "inject.in: expected a list"},
        {"{" BIND ",'inject':{'type':'replace','in':['header','cookie']}}", "inject.in[1]: expected header, basic"},
        {"{" BIND ",'inject':{'type':'set'}}", "inject.header: missing"},
        {"{" BIND ",'inject':{'type':'set','header':5}}", "inject.header: expected a text"},
        {"{" BIND ",'inject':{'type':'set','header':'a b'}}", "inject.header: not a header name"},
        {"{" BIND ",'inject':{'type':'set','header':'x','format':'Bearer'}}",
         "inject.format: has to hold {value}, once"},
        {"{" BIND ",'inject':{'type':'set','header':'x','format':'{value}{value}'}}",
         "inject.format: has to hold {value}, once"},
        {"{" BIND ",'inject':{'type':'set','header':'x','format':'a\\r\\nb: {value}'}}",
         "inject.format: holds a control character"},
        {"{" BIND ",'inject':{'type':'set','header':'x','format':'\\u0000{value}'}}",
         "inject.format: holds a control character"},
        {"{" BIND ",'inject':{'type':'basic'}}", "inject.user: missing"},
        {"{" BIND ",'inject':{'type':'basic','user':'a:b'}}", "inject.user: a user of Basic"},
        {"{" BIND ",'inject':{'type':'query','param':''}}", "inject.param: empty"},
        {"{" BIND ",'inject':{'type':'headers','headers':{}}}", "inject.headers: expected an object with 1 to 20"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'Host':'x'}}}",
         "inject.headers.Host: 'host' belongs to the connection"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'a':'1','A':'2'}}}", "inject.headers.A: named twice"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'a':'${e2b.secrets.x'}}}",
         "inject.headers.a: a reference has to be"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'a':'${e2b.secrets.}'}}}",
         "inject.headers.a: a reference has to be"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'a':'${e2b.identity.tokens.x}'}}}",
         "inject.headers.a: a reference has to be"},
        {"{" BIND ",'inject':{'type':'headers','headers':{'a':'${e2b.secrets.x} ${e2b.y}'}}}",
         "inject.headers.a: a reference has to be"},
        {"{" BIND ",'inject':{'type':'sigv4','region':'r','service':'s3'}}", "inject.access_key_id: missing"},
        {"{" BIND ",'inject':{'type':'sigv4','region':'r/x','service':'s3','access_key_id':'A'}}",
         "inject.region: letters, digits"},
        {"{" BIND
         ",'inject':{'type':'sigv4','region':'r','service':'s3','access_key_id':'A','session_token':'FwoG/x=='}}",
         "inject.session_token: expected the name of the secret"},
        {"{" BIND ",'env':'1X'}", "env: not the name"},
        {"{" BIND ",'env':''}", "env: not the name"},
        {"{" BIND ",'env':'A=B'}", "env: not the name"},
        {"{'env':'A'}", "env: a secret without bind"},
        {"{" BIND ",'placeholder':'sk'}", "placeholder: expected letters"},
        {"{" BIND ",'placeholder':'sk-{rand:21}'}", "placeholder: expected letters"},
        {"{" BIND ",'placeholder':'sk-{rand:129}'}", "placeholder: expected letters"},
        {"{" BIND ",'placeholder':'s k-{rand:40}'}", "placeholder: expected letters"},
        {"{" BIND ",'placeholder':'{rand:40}{rand:40}'}", "placeholder: expected letters"},
        {"{" BIND ",'on_violation':'ignore'}", "on_violation: expected block or log"},
        {"{" BIND ",'redact_response':'yes'}", "redact_response: expected true or false"},
        {"{" BIND ",'allow_plaintext':1}", "allow_plaintext: expected true or false"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = {0};
        if (check(bad[i].spec, &err) != -1)
            fail_msg("accepted %s", bad[i].spec);
        if (strncmp(err.msg, bad[i].says, strlen(bad[i].says)) != 0)
            fail_msg("%s: '%s', not '%s'", bad[i].spec, err.msg, bad[i].says);
        assert_null(strstr(err.msg, "broad"));
    }
}

static void headers_of_the_connection_cannot_be_set(void **state)
{
    (void)state;
    static const char *const reserved[] = {"Host",
                                           "content-length",
                                           "Transfer-Encoding",
                                           "connection",
                                           "upgrade",
                                           "te",
                                           "Trailer",
                                           "proxy-authorization",
                                           "Proxy-X",
                                           "forwarded",
                                           "x-forwarded-for",
                                           "X-Forwarded-Host",
                                           "keep-alive",
                                           "expect",
                                           "accept-encoding",
                                           "sec-websocket-key"};
    for (size_t i = 0; i < ARRAY_LEN(reserved); i++) {
        char spec[200];
        struct err err = {0};
        (void)snprintf(spec, sizeof spec, "{" BIND ",'inject':{'type':'header','header':'%s'}}", reserved[i]);
        assert_int_equal(check(spec, &err), -1);
        assert_non_null(strstr(err.msg, "belongs to the connection"));
    }
}

static void names_are_plain(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",    "-a",  ".a",       "a/b",
        "a b", "a\n", "\xc3\xa4", "a123456789012345678901234567890123456789012345678901234567890123"};
    assert_true(secret_name_valid("llm-key"));
    assert_true(secret_name_valid("A_b.c-1"));
    assert_true(secret_name_valid("a12345678901234567890123456789012345678901234567890123456789012"));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(secret_name_valid(bad[i]));
}

static void values_that_cannot_stand_in_a_header_are_refused_early(void **state)
{
    (void)state;
    json_t *bearer = spec_of("{" BIND ",'inject':{'type':'bearer'}}"), *replace = spec_of("{" BIND "}"),
           *none = spec_of("{}"), *headers = spec_of("{" BIND ",'inject':{'type':'headers','headers':{'a':'b'}}}");
    struct err err;
    assert_int_equal(secret_value_check(bearer, "sk-1", 4, &err), 0);
    assert_int_equal(secret_value_check(bearer, "sk-1\n", 5, &err), -1);
    assert_non_null(strstr(err.msg, "value: ends with a newline"));
    assert_null(strstr(err.msg, "sk-1"));
    assert_int_equal(secret_value_check(none, "sk\r1", 4, &err), -1);
    assert_int_equal(secret_value_check(bearer, "sk\0\1", 4, &err), -1);
    assert_int_equal(secret_value_check(replace, "-----BEGIN\nx\n", 13, &err), 0);
    assert_int_equal(secret_value_check(replace, "", 0, &err), -1);
    assert_int_equal(secret_value_check(headers, "", 0, &err), 0);
    assert_int_equal(secret_value_check(headers, "x", 1, &err), -1);
    char *large = xmalloc(SECRET_VALUE_MAX + 1);
    memset(large, 'x', SECRET_VALUE_MAX + 1);
    assert_int_equal(secret_value_check(replace, large, SECRET_VALUE_MAX, &err), 0);
    assert_int_equal(secret_value_check(replace, large, SECRET_VALUE_MAX + 1, &err), -1);
    free(large);
    json_decref(bearer);
    json_decref(replace);
    json_decref(none);
    json_decref(headers);
}

static void placeholders_have_the_shape_that_was_asked_for(void **state)
{
    (void)state;
    char a[SECRET_PLACEHOLDER_MAX], b[SECRET_PLACEHOLDER_MAX];
    unsigned seen[256] = {0};
    secret_placeholder("sk-sbx-{rand:40}-end", a, sizeof a);
    secret_placeholder("sk-sbx-{rand:40}-end", b, sizeof b);
    assert_int_equal(strlen(a), 7 + 40 + 4);
    assert_memory_equal(a, "sk-sbx-", 7);
    assert_string_equal(a + 47, "-end");
    assert_string_not_equal(a, b);
    for (unsigned i = 0; i < 200; i++) {
        secret_placeholder("{rand:128}", a, sizeof a);
        assert_int_equal(strlen(a), 128);
        for (const char *p = a; *p; p++) {
            assert_true(isalnum((unsigned char)*p));
            seen[(unsigned char)*p]++;
        }
    }
    /* 25600 letters of 62: none is missing, none is twice as likely as it should be. */
    for (unsigned c = 0; c < 128; c++)
        if (isalnum((int)c))
            assert_in_range(seen[c], 206, 825);
}

static void a_shape_that_is_none_gives_the_usual_placeholder(void **state)
{
    (void)state;
    static const char *const shapes[] = {NULL,           "",           "plain",      "{rand:5}", "{rand:40",
                                         "a b{rand:40}", "{rand:-40}", "{rand:0x40}"};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        char a[SECRET_PLACEHOLDER_MAX];
        secret_placeholder(shapes[i], a, sizeof a);
        assert_memory_equal(a, "sbx-", 4);
        assert_int_equal(strlen(a), 36);
    }
}

/* ---- the vault ---- */

static void a_newer_revision_replaces_and_an_older_one_does_not(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "k", 5, "value-five", "{}"), 0);
    assert_int_equal(world_put(&w, "acme", "k", 4, "value-four", "{}"), 0);
    assert_memory_equal(secrets_find(w.vault, "acme", "k")->value, "value-five", 10);
    assert_int_equal(world_put(&w, "acme", "k", 5, "value-5555", "{}"), 0);
    assert_memory_equal(secrets_find(w.vault, "acme", "k")->value, "value-5555", 10);
    assert_int_equal(world_put(&w, "acme", "k", 6, "value-six!", "{" BIND "}"), 0);
    assert_memory_equal(secrets_find(w.vault, "acme", "k")->value, "value-six!", 10);
    assert_int_equal(secrets_find(w.vault, "acme", "k")->spec.type, SECRET_REPLACE);
    assert_int_equal(secrets_count(w.vault), 1);
    world_end(&w);
}

static void tenants_do_not_share_names(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "k", 1, "of acme", "{}"), 0);
    assert_int_equal(world_put(&w, "other", "k", 1, "of other", "{}"), 0);
    assert_memory_equal(secrets_find(w.vault, "acme", "k")->value, "of acme", 7);
    assert_memory_equal(secrets_find(w.vault, "other", "k")->value, "of other", 8);
    secrets_remove(w.vault, "acme", "k");
    secrets_remove(w.vault, "acme", "k");
    assert_null(secrets_find(w.vault, "acme", "k"));
    assert_non_null(secrets_find(w.vault, "other", "k"));
    world_end(&w);
}

static void a_sealed_value_moved_to_another_name_is_refused(void **state)
{
    (void)state;
    static const char *const to[][2] = {{"acme", "other"}, {"acme2", "key"}, {"acm", "ekey"}};
    struct world w;
    world_start(&w);
    _cleanup_free_ char *context = secret_context("acme", "key");
    _cleanup_buf_ struct buf sealed = {0}, text = {0};
    assert_int_equal(seal_bytes(w.public_key, context, "the value", 9, &sealed, &w.err), 0);
    base64_encode(&text, sealed.p, sealed.n);
    for (size_t i = 0; i < ARRAY_LEN(to); i++) {
        json_t *m = json_pack("{ss ss si ss s{}}", "tenant", to[i][0], "name", to[i][1], "revision", 1, "sealed",
                              text.p, "spec");
        assert_int_equal(secrets_put(w.vault, m, &w.err), -1);
        assert_non_null(strstr(w.err.msg, "does not open"));
        json_decref(m);
    }
    assert_int_equal(secrets_count(w.vault), 0);
    world_end(&w);
}

static void a_bad_message_leaves_what_was_there(void **state)
{
    (void)state;
    static const struct {
        const char *message, *says;
    } bad[] = {
        {"{}", "tenant: missing"},
        {"{'tenant':'acme'}", "name: missing"},
        {"{'tenant':'acme','name':'a/b'}", "name: missing, or not"},
        {"{'tenant':'acme','name':'k'}", "secret 'k': revision: expected a number"},
        {"{'tenant':'acme','name':'k','revision':-1}", "secret 'k': revision: expected a number"},
        {"{'tenant':'acme','name':'k','revision':2}", "secret 'k': spec: expected an object"},
        {"{'tenant':'acme','name':'k','revision':2,'spec':{}}", "secret 'k': sealed: expected a text"},
        {"{'tenant':'acme','name':'k','revision':2,'spec':{},'sealed':'***'}", "secret 'k': sealed: not base64"},
        {"{'tenant':'acme','name':'k','revision':2,'spec':{},'sealed':''}", "secret 'k': a sealed value of 0 bytes"},
        {"{'tenant':'acme','name':'k','revision':2,'spec':{'x':1},'sealed':''}", "secret 'k': x: unknown key"},
    };
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "k", 1, "the value", "{}"), 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_t *m = spec_of(bad[i].message);
        assert_int_equal(secrets_put(w.vault, m, &w.err), -1);
        if (strncmp(w.err.msg, bad[i].says, strlen(bad[i].says)) != 0)
            fail_msg("%s: '%s'", bad[i].message, w.err.msg);
        json_decref(m);
    }
    assert_memory_equal(secrets_find(w.vault, "acme", "k")->value, "the value", 9);
    assert_int_equal(world_put(&w, "acme", "empty", 1, "", "{}"), -1);
    world_end(&w);
}

static void what_front_does_not_name_again_is_gone(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    for (unsigned i = 0; i < 200; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "k%u", i);
        assert_int_equal(world_put(&w, "acme", name, 3, "some value", "{}"), 0);
    }
    secrets_hello(w.vault);
    assert_int_equal(world_put(&w, "acme", "k7", 3, "some value", "{}"), 0);
    assert_int_equal(world_put(&w, "acme", "k8", 2, "old value", "{}"), 0); /* an older revision names it too */
    assert_int_equal(world_put(&w, "acme", "new", 1, "new value", "{}"), 0);
    secrets_synced(w.vault);
    assert_int_equal(secrets_count(w.vault), 3);
    assert_non_null(secrets_find(w.vault, "acme", "k7"));
    assert_memory_equal(secrets_find(w.vault, "acme", "k8")->value, "some value", 10);
    world_end(&w);
}

static void the_vault_has_an_end(void **state)
{
    (void)state;
    struct world w;
    json_error_t why;
    world_start(&w);
    json_t *m = json_pack_ex(&why, 0, "{ss ss si s{s[{s[s]}] s{ss s{ss}}}}", "tenant", "acme", "name", "x", "revision",
                             1, "spec", "bind", "hosts", "a.example", "inject", "type", "headers", "headers", "a", "b");
    assert_non_null(m);
    for (unsigned i = 0; i < SECRETS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "k%u", i);
        (void)json_object_set_new(m, "name", json_string(name));
        assert_int_equal(secrets_put(w.vault, m, &w.err), 0);
    }
    assert_int_equal(secrets_put(w.vault, m, &w.err), 0); /* replacing needs no room */
    (void)json_object_set_new(m, "name", json_string("one-more"));
    assert_int_equal(secrets_put(w.vault, m, &w.err), -1);
    assert_non_null(strstr(w.err.msg, "10000 secrets are there already"));
    json_decref(m);
    world_end(&w);
}

/* ---- memory ---- */

/* A value that stands nowhere in the program: computed letter by letter. */
static char needle_at(size_t i) { return (char)('a' + (i * i * 7 + i * 3 + 11) % 25); }

static void make_needle(char ret[33])
{
    for (size_t i = 0; i < 32; i++)
        ret[i] = needle_at(i);
    ret[32] = '\0';
}

static bool is_needle(const char *p)
{
    size_t i = 0;
    while (i < 32 && p[i] == needle_at(i))
        i++;
    return i == 32;
}

/* How often it stands in what begins before `end`. The library finds the first letter: a sanitizer has a gigabyte to search. */
static size_t needles(const char *p, const char *end)
{
    size_t hits = 0;
    for (; p < end && (p = memchr(p, needle_at(0), (size_t)(end - p))); p++)
        hits += is_needle(p);
    return hits;
}

/* How often it stands in memory that would be part of a core file. */
static size_t in_core(void)
{
    static char piece[1 << 16];
    FILE *maps = fopen("/proc/self/smaps", "re");
    int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    char line[512];
    unsigned long from = 0, to = 0, rss = 0;
    bool readable = false;
    size_t hits = 0;
    assert_true(maps && mem >= 0);
    while (fgets(line, sizeof line, maps)) {
        unsigned long a, b;
        char perms[8];
        if (sscanf(line, "%lx-%lx %7s", &a, &b, perms) == 3) {
            from = a;
            to = b;
            rss = 0;
            readable = perms[0] == 'r' && perms[1] == 'w';
        } else if (strncmp(line, "Rss:", 4) == 0) {
            (void)sscanf(line, "Rss: %lu", &rss);
        } else if (strncmp(line, "VmFlags:", 8) == 0 && readable && rss > 0 && !strstr(line, " dd") &&
                   to - from < 1UL << 32) {
            /* Pieces overlap, so that what crosses a border is found. */
            for (unsigned long at = from; at < to; at += sizeof piece - 64) {
                size_t want = to - at < sizeof piece ? to - at : sizeof piece;
                ssize_t got =
                    (unsigned long)(uintptr_t)piece < at + want && at < (unsigned long)(uintptr_t)piece + sizeof piece
                        ? 0
                        : pread(mem, piece, want, (off_t)at);
                hits += got < 32 ? 0 : needles(piece, piece + got - 31);
                memset(piece, 0, sizeof piece);
            }
        }
    }
    (void)fclose(maps);
    (void)close(mem);
    return hits;
}

static void a_value_is_in_no_core_file_neither_before_nor_after_it_was_used(void **state)
{
    (void)state;
    struct world w;
    char needle[33];
    world_start(&w);
    make_needle(needle);
    assert_int_equal(in_core(), 1); /* the search works */
    world_secret(&w, "k", needle, "{" BIND ",'inject':{'type':'bearer'}}");
    world_secret(&w, "b", needle, "{" BIND ",'inject':{'type':'set','header':'x-b'}}");
    world_secret(&w, "q", needle, "{" BIND ",'inject':{'type':'query','param':'key'}}");
    world_secret(&w, "r", needle, "{" BIND ",'inject':{'type':'replace','in':['header','basic','query','body']}}");
    world_placeholder(&w, "sbx-PLACEHOLDER-0123456789", "r");
    explicit_bzero(needle, sizeof needle);
    assert_int_equal(in_core(), 0);
    world_request(&w, "POST", "api.llm.example", "/v1?t=sbx-PLACEHOLDER-0123456789");
    world_field(&w, "x-key", "Token sbx-PLACEHOLDER-0123456789");
    world_field(&w, "content-type", "application/json");
    buf_adds(&w.body, "{\"k\":\"sbx-PLACEHOLDER-0123456789\"}");
    w.q.body = &w.body;
    world_inject(&w);
    assert_string_equal(w.ret.text, "");
    assert_int_equal(w.ret.nused, 6);
    assert_true(in_core() >= 4); /* the request itself */
    inject_forget(&w.q);
    assert_int_equal(in_core(), 0);
    world_end(&w);
    assert_int_equal(in_core(), 0);
}

static void an_answer_that_was_redacted_leaves_no_copy(void **state)
{
    (void)state;
    struct world w;
    char needle[33];
    _cleanup_buf_ struct buf out = {0};
    world_start(&w);
    make_needle(needle);
    world_secret(&w, "k", needle, "{" BIND ",'inject':{'type':'bearer'}}");
    world_request(&w, "GET", "api.llm.example", "/");
    world_inject(&w);
    assert_non_null(w.ret.redact);
    for (unsigned i = 0; i < 100; i++) {
        redact_feed(w.ret.redact, "echo: ", 6, &out);
        for (size_t k = 0; k < 32; k++)
            redact_feed(w.ret.redact, needle + k, 1, &out);
    }
    redact_end(w.ret.redact, &out);
    explicit_bzero(needle, sizeof needle);
    assert_int_equal(redact_count(w.ret.redact), 100);
    inject_forget(&w.q);
    assert_int_equal(in_core(), 0);
    world_end(&w);
}

static void values_are_kept_out_of_dumps_and_children(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    assert_int_equal(world_put(&w, "acme", "k", 1, "the value", "{}"), 0);
    const char *value = secrets_find(w.vault, "acme", "k")->value;
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[512];
    bool inside = false, found = false;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long a, b;
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2)
            inside = a <= (unsigned long)(uintptr_t)value && (unsigned long)(uintptr_t)value < b;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            found = true;
            assert_non_null(strstr(line, " dd")); /* not dumped */
            assert_non_null(strstr(line, " wf")); /* wiped on fork */
            if (!lockmem_unlocked() && !SANITIZED)
                assert_non_null(strstr(line, " lo")); /* locked */
        }
    }
    (void)fclose(maps);
    assert_true(found);
    pid_t child = fork();
    if (child == 0)
        _exit(value[0] == 0 && value[8] == 0 ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_memory_equal(value, "the value", 9);
    world_end(&w);
}

static void memory_is_wiped_and_used_again(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 31, 32, 33, 100, 4096, 32 * 1024, 32 * 1024 + 1, 300000};
    size_t before = lockmem_used();
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char *p = lockmem_new(sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(p[k], 0);
        memset(p, 'x', sizes[i]);
        assert_true(lockmem_used() >= before + sizes[i]);
        lockmem_free(p, sizes[i]);
        assert_int_equal(lockmem_used(), before);
        char *again = lockmem_new(sizes[i]);
        if (sizes[i] <= LOCKMEM_LARGE)
            assert_ptr_equal(again, p);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(again[k], 0);
        lockmem_free(again, sizes[i]);
    }
    lockmem_free(NULL, 5);
}

static void a_vault_gives_back_all_it_took(void **state)
{
    (void)state;
    size_t before = lockmem_used();
    struct world w;
    world_start(&w);
    for (unsigned i = 0; i < 100; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "k%u", i % 10);
        assert_int_equal(world_put(&w, "acme", name, i, "some value of some length", "{" BIND "}"), 0);
    }
    world_end(&w);
    assert_int_equal(lockmem_used(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_spec_is_accepted),
        cmocka_unit_test(what_is_wrong_with_a_spec_is_named_with_its_path),
        cmocka_unit_test(headers_of_the_connection_cannot_be_set),
        cmocka_unit_test(names_are_plain),
        cmocka_unit_test(values_that_cannot_stand_in_a_header_are_refused_early),
        cmocka_unit_test(placeholders_have_the_shape_that_was_asked_for),
        cmocka_unit_test(a_shape_that_is_none_gives_the_usual_placeholder),
        cmocka_unit_test(a_newer_revision_replaces_and_an_older_one_does_not),
        cmocka_unit_test(tenants_do_not_share_names),
        cmocka_unit_test(a_sealed_value_moved_to_another_name_is_refused),
        cmocka_unit_test(a_bad_message_leaves_what_was_there),
        cmocka_unit_test(what_front_does_not_name_again_is_gone),
        cmocka_unit_test(the_vault_has_an_end),
        cmocka_unit_test(a_value_is_in_no_core_file_neither_before_nor_after_it_was_used),
        cmocka_unit_test(an_answer_that_was_redacted_leaves_no_copy),
        cmocka_unit_test(values_are_kept_out_of_dumps_and_children),
        cmocka_unit_test(memory_is_wiped_and_used_again),
        cmocka_unit_test(a_vault_gives_back_all_it_took),
    };
    return cmocka_run_group_tests_name("egress/secrets", tests, NULL, NULL);
}
