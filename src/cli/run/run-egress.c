#include "cli/run/run-egress.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/fields.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"
#include "egress/core/proto.h"
#include "os/netns.h"
#include "policy/net/netpol.h"

#define SANDBOX "run"
#define TENANT  "local"
#ifndef SO_NETNS_COOKIE /* Linux 5.14; musl does not name it yet */
#define SO_NETNS_COOKIE 71
#endif

enum {
    START_MS = 10000,
    STATS_MS = 1000,
    END_MS = 2000,
    BUNDLE_MAX = 8 << 20,
    NOBODY = 65534,
};

static const char *const bundles[] = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
};
#define BUNDLE_INSIDE "/run/hutch/ca-bundle.pem"
#define CA_INSIDE     "/run/hutch/ca.pem"
#define JAVA_INSIDE   "/run/hutch/cacerts" /* for a Java that is not found below */
static const char resolv_conf[] = "nameserver " NETNS_GATE4 "\noptions ndots:1 timeout:2 attempts:2\n";

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000U + (uint64_t)t.tv_nsec / 1000000U;
}

/* --- the process -------------------------------------------------------------------------------------------------- */

static int egress_config_file(bool audit, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    struct json j;
    json_start(&j, &text);
    json_obj(&j, NULL);
    json_bool(&j, "run", true);
    json_bool(&j, "audit_file", audit);
#ifdef HUTCH_LAYER_REMOVAL /* servers of the tests stand on the loopback */
    const char *servers = getenv("HUTCH_TEST_RESOLVERS"), *loopback = getenv("HUTCH_TEST_LOOPBACK");
    if (servers)
        json_str(&j, "servers", servers);
    if (loopback) {
        json_arr(&j, "loopback_ok");
        json_str(&j, NULL, loopback);
        json_end_arr(&j);
    }
#endif
    json_end_obj(&j);
    int fd = memfd_create("hutch-egress", MFD_CLOEXEC);
    if (fd < 0 || fd_write_all(fd, text.p, text.n) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        return err_set(err, ERR_SETUP, errno, "write the proxy's configuration");
    return fd;
}

static int open_trust(void)
{
    const char *given = getenv("SSL_CERT_FILE");
    int fd = given ? open(given, O_RDONLY | O_CLOEXEC) : -1;
    for (size_t i = 0; fd < 0 && i < ARRAY_LEN(bundles); i++)
        fd = open(bundles[i], O_RDONLY | O_CLOEXEC);
    return fd;
}

struct handed {
    int program, fds[EGRESS_FD_END]; /* index: number in the child; -1: closed there */
};

/* In the child: keeps only the descriptors handed over, and drops all other rights. */
static void become_egress(const struct handed *h, char *const *envp) __attribute__((noreturn));
static void become_egress(const struct handed *h, char *const *envp)
{
    char name[] = "hutch-node", role[] = "egress";
    char *argv[] = {name, role, NULL};
    int high[EGRESS_FD_END];
    sigset_t none;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setsid(); /* Ctrl-C is for the command */
    for (int i = 3; i < EGRESS_FD_END; i++)
        high[i] = h->fds[i] >= 0 ? fcntl(h->fds[i], F_DUPFD, 100) : -1;
    int program = fcntl(h->program, F_DUPFD_CLOEXEC, 100);
    for (int i = 0; i <= 2; i++) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (null >= 0 && !(i == 2 && getenv("HUTCH_DEBUG")))
            (void)dup2(null, i);
        if (null > i)
            (void)close(null);
        else if (null == i)
            (void)fcntl(i, F_SETFD, 0);
    }
    for (int i = 3; i < EGRESS_FD_END; i++) {
        (void)close(i);
        if (high[i] >= 0)
            (void)dup2(high[i], i);
    }
    (void)fd_close_range(EGRESS_FD_END, (unsigned)program - 1U, 0);
    (void)fd_close_range((unsigned)program + 1U, ~0U, 0);
    if (geteuid() == 0) {
        if (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
            _exit(ERR_SETUP);
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* again: changing ids cleared it */
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)syscall(SYS_execveat, program, "", argv, envp, AT_EMPTY_PATH);
    _exit(127);
}

static int start_process(struct run_egress *r, int audit, struct err *err)
{
    int attach[2] = {-1, -1}, control[2] = {-1, -1};
    static char *const no_env[] = {NULL};
    struct handed h;
    memset(&h, 0xff, sizeof h);
    _cleanup_free_ char *path = NULL;
    if (cli_find_program("hutch-node", &path, err) < 0)
        return err_wrap(err, "network rules need the program that enforces them");
    _cleanup_close_ int program = open(path, O_PATH | O_CLOEXEC);
    _cleanup_close_ int config = egress_config_file(audit >= 0, err);
    _cleanup_close_ int trust = open_trust();
    if (program < 0)
        return err_set(err, ERR_SETUP, errno, "open %s", path);
    if (config < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, attach) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) < 0)
        return err_set(err, ERR_SETUP, errno, "make sockets for the proxy");
    r->attach = attach[0];
    r->control = control[0];
    (void)fcntl(attach[1], F_SETFL, O_NONBLOCK);
    (void)fcntl(control[1], F_SETFL, O_NONBLOCK);
    h.program = program;
    h.fds[EGRESS_FD_CONFIG] = config;
    h.fds[EGRESS_FD_KEEPER] = attach[1];
    h.fds[EGRESS_FD_FRONT] = control[1];
    h.fds[EGRESS_FD_TRUST] = trust;
    h.fds[EGRESS_FD_AUDIT] = audit;
    r->pid = fork();
    if (r->pid == 0)
        become_egress(&h, no_env);
    (void)close(attach[1]);
    (void)close(control[1]);
    if (r->pid < 0) {
        r->pid = 0;
        return err_set(err, ERR_SETUP, errno, "start the proxy");
    }
    (void)fcntl(r->control, F_SETFL, O_NONBLOCK);
    return 0;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static int tell(struct run_egress *r, const struct buf *text, struct err *err)
{
    uint32_t n = (uint32_t)text->n;
    unsigned char head[4] = {(unsigned char)n, (unsigned char)(n >> 8), (unsigned char)(n >> 16),
                             (unsigned char)(n >> 24)};
    struct iovec v[2] = {{head, sizeof head}, {text->p, text->n}};
    size_t left = sizeof head + text->n;
    for (int i = 0; left > 0;) {
        ssize_t w = writev(r->control, v + i, 2 - i);
        if (w < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = r->control, .events = POLLOUT};
            if (poll(&p, 1, START_MS) > 0)
                continue;
        }
        if (w <= 0)
            return err_set(err, ERR_SETUP, errno, "speak to the proxy");
        left -= (size_t)w;
        while (w > 0 && i < 2) {
            size_t take = (size_t)w < v[i].iov_len ? (size_t)w : v[i].iov_len;
            v[i].iov_base = (char *)v[i].iov_base + take;
            v[i].iov_len -= take;
            w -= (ssize_t)take;
            i += v[i].iov_len == 0;
        }
    }
    return 0;
}

static int say(struct run_egress *r, const char *text, struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    buf_adds(&b, text);
    return tell(r, &b, err);
}

static int say_secrets(struct run_egress *r, const struct run_secrets *secrets, struct err *err)
{
    for (size_t i = 0; i < secrets->n; i++) {
        _cleanup_buf_ struct buf b = {0};
        run_secrets_message(&secrets->v[i], TENANT, &b);
        int rc = tell(r, &b, err);
        explicit_bzero(b.p, b.cap);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int say_policy(struct run_egress *r, const struct policy *policy, const struct run_secrets *secrets,
                      struct err *err)
{
    _cleanup_buf_ struct buf b = {0};
    buf_adds(&b, "{\"type\":\"policy\",\"sandbox\":\"" SANDBOX "\",\"tenant\":\"" TENANT "\",\"epoch\":1,\"policy\":");
    netpol_show(policy->netpol, &b);
    buf_adds(&b, ",\"placeholders\":{");
    for (size_t i = 0; i < secrets->n; i++)
        buf_addf(&b, "%s\"%s\":\"%s\"", i ? "," : "", secrets->v[i].name, secrets->v[i].placeholder);
    buf_adds(&b, "}}");
    return tell(r, &b, err);
}

static const char *word(const json_t *m, const char *key)
{
    const char *s = json_string_value(json_object_get(m, key));
    return s ? s : "";
}

/* The host that a rule would have to name. Not an address: only a user may grant one. */
static void want(struct run_egress *r, const char *host, unsigned port, bool refused)
{
    char name[NETPOL_NAME_MAX];
    if (!netpol_name(host, strlen(host), name))
        return;
    _cleanup_free_ char *text = port == 80 || port == 443 || port == 0 ? xstrdup(name) : xasprintf("%s:%u", name, port);
    if (r->wanted.n < RUN_EGRESS_WANTED && !strv_has(&r->wanted, text))
        strv_add(&r->wanted, text);
    if (refused && r->missing.n < RUN_EGRESS_WANTED && !strv_has(&r->missing, text))
        strv_add(&r->missing, text);
}

static void take_denied(struct run_egress *r, const json_t *m)
{
    struct denials_net n = {
        .host = field_text(m, "host"),
        .method = field_text(m, "method"),
        .path = field_text(m, "path"),
        .reason = field_text(m, "reason"),
        .rule = field_text(m, "rule"),
        .text = field_text(m, "text"),
        .port = (unsigned)json_integer_value(json_object_get(m, "port")),
    };
    json_int_t count = json_integer_value(json_object_get(m, "count"));
    if (strcmp(n.reason, "host_not_allowed") == 0 || strcmp(n.reason, "port_not_allowed") == 0)
        want(r, n.host, n.port, true);
    if (r->denials)
        denials_network(r->denials, &n, count > 0 ? (uint64_t)count : 1);
}

/* Skips refusals, which the record lists under "denials". */
static void take_record(struct run_egress *r, json_t *record)
{
    if (!json_is_object(record) || strcmp(field_text(record, "verdict"), "deny") == 0)
        return;
    want(r, field_text(record, "host"), (unsigned)json_integer_value(json_object_get(record, "port")), false);
    if (!r->log)
        r->log = json_array();
    if (json_array_size(r->log) < RUN_EGRESS_REQUESTS)
        (void)json_array_append(r->log, record);
    else
        r->left_out++;
}

static void take(struct run_egress *r, const json_t *m)
{
    const char *type = field_text(m, "type");
    const json_t *error = json_object_get(m, "error");
    if (strcmp(type, "hello") == 0) {
        buf_adds(&r->ca, field_text(m, "ca"));
    } else if (strcmp(type, "applied") == 0) {
        r->applied = true;
        if (json_is_object(error))
            (void)snprintf(r->error, sizeof r->error, "%s: %s", field_text(error, "path"), field_text(error, "text"));
    } else if (strcmp(type, "error") == 0) {
        (void)snprintf(r->error, sizeof r->error, "%s", word(m, "text"));
    } else if (strcmp(type, "denied") == 0 && strcmp(word(m, "layer"), "dns") != 0) {
        take_denied(r, m); /* a looked-up name is reported when the command connects to it */
    } else if (strcmp(type, "record") == 0) {
        take_record(r, json_object_get(m, "record"));
    } else if (strcmp(type, "stats") == 0) {
        json_decref(r->stats);
        r->stats = json_deep_copy(m);
        r->answered = true;
    }
}

static bool take_messages(struct run_egress *r)
{
    size_t at = 0;
    while (r->in.n - at >= 4) {
        const unsigned char *p = (const unsigned char *)r->in.p + at;
        uint32_t n = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (n > EGRESS_JSON_MAX)
            return false;
        if (r->in.n - at - 4 < n)
            break;
        json_t *m = json_loadb(r->in.p + at + 4, n, 0, NULL);
        if (m)
            take(r, m);
        json_decref(m);
        at += 4 + n;
    }
    if (at > 0) {
        memmove(r->in.p, r->in.p + at, r->in.n - at);
        r->in.n -= at;
    }
    return true;
}

bool run_egress_event(struct run_egress *r)
{
    char chunk[16384];
    while (r->control >= 0) {
        ssize_t n = read(r->control, chunk, sizeof chunk);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n > 0)
            buf_add(&r->in, chunk, (size_t)n);
        if (n > 0 && take_messages(r))
            continue;
        (void)close(TAKE_FD(r->control));
    }
    return false;
}

/* Waits until the flag is set, the process is gone, or the time is over. */
static bool wait_for(struct run_egress *r, const bool *flag, int ms)
{
    uint64_t end = now_ms() + (uint64_t)ms;
    for (uint64_t now = now_ms(); !*flag && now < end; now = now_ms()) {
        struct pollfd p = {.fd = r->control, .events = POLLIN};
        if (poll(&p, 1, (int)(end - now)) > 0 && !run_egress_event(r))
            return *flag;
    }
    return *flag;
}

/* --- what the sandbox finds --------------------------------------------------------------------------------------- */

static void add_file(struct run_egress *r, const char *path, const struct buf *text, bool make)
{
    if (r->nfiles < RUN_EGRESS_FILES)
        r->files[r->nfiles++] = (struct wall_file){.path = path, .bytes = text->p, .n = text->n, .make = make};
}

static void read_bundle(struct buf *ret)
{
    _cleanup_close_ int fd = open_trust();
    char chunk[65536];
    for (ssize_t n; fd >= 0 && ret->n < BUNDLE_MAX && (n = read(fd, chunk, sizeof chunk)) > 0;)
        buf_add(ret, chunk, (size_t)n);
    if (ret->n && ret->p[ret->n - 1] != '\n')
        buf_addc(ret, '\n');
}

static void make_files(struct run_egress *r)
{
    static struct buf resolver;
    buf_adds(&resolver, resolv_conf);
    read_bundle(&r->bundle);
    buf_add(&r->bundle, r->ca.p, r->ca.n);
    add_file(r, "/etc/resolv.conf", &resolver, true);
    for (size_t i = 0; i < ARRAY_LEN(bundles); i++)
        if (access(bundles[i], F_OK) == 0)
            add_file(r, bundles[i], &r->bundle, false);
    add_file(r, BUNDLE_INSIDE, &r->bundle, true);
    add_file(r, CA_INSIDE, &r->ca, true);
    if (!r->ca.n)
        return;
    run_java_make(&r->java, &r->bundle, &r->ca);
    for (size_t i = 0; i < r->java.n; i++)
        add_file(r, r->java.paths[i], &r->java.stores[i], false);
    if (r->java.n)
        add_file(r, JAVA_INSIDE, &r->java.stores[0], true);
}

static void add_variable(struct strv *env, const char *name, const char *value)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], name, n) == 0 && env->v[i][n] == '=')
            return;
    strv_take(env, xasprintf("%s=%s", name, value));
}

static void add_variables(struct strv *env)
{
    static const char *const whole[] = {"SSL_CERT_FILE",     "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
                                        "GIT_SSL_CAINFO",    "PIP_CERT",           "AWS_CA_BUNDLE",
                                        "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE",  "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
                                        "BUNDLE_SSL_CA_CERT"};
    static const char *const own[] = {"NODE_EXTRA_CA_CERTS", "DENO_CERT", "YARN_HTTPS_CA_FILE_PATH"};
    for (size_t i = 0; i < ARRAY_LEN(whole); i++)
        add_variable(env, whole[i], BUNDLE_INSIDE);
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        add_variable(env, own[i], CA_INSIDE);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

int run_egress_start(struct run_egress *r, const struct policy *policy, const struct run_secrets *secrets, int audit,
                     struct strv *env, struct err *err)
{
    if (start_process(r, audit, err) < 0)
        return -1;
    if (say(r, "{\"type\":\"hello\",\"version\":1}", err) < 0 || say_secrets(r, secrets, err) < 0 ||
        say_policy(r, policy, secrets, err) < 0 || say(r, "{\"type\":\"synced\"}", err) < 0)
        return -1;
    if (!wait_for(r, &r->applied, START_MS))
        return err_set(err, ERR_SETUP, 0, "the proxy for the network rules did not start%s%s", r->error[0] ? ": " : "",
                       r->error);
    if (r->error[0])
        return err_set(err, ERR_POLICY, 0, "network: %s", r->error);
    make_files(r);
    add_variables(env);
    return 0;
}

void run_egress_attach(struct run_egress *r, const int fds[2])
{
    struct egress_attach m = {.version = EGRESS_VERSION, .type = EGRESS_ATTACH, .id = SANDBOX};
    socklen_t n = sizeof m.ns_cookie;
    (void)getsockopt(fds[0], SOL_SOCKET, SO_NETNS_COOKIE, &m.ns_cookie, &n);
    n = sizeof m.tcp_cookie;
    (void)getsockopt(fds[0], SOL_SOCKET, SO_COOKIE, &m.tcp_cookie, &n);
    n = sizeof m.udp_cookie;
    (void)getsockopt(fds[1], SOL_SOCKET, SO_COOKIE, &m.udp_cookie, &n);
    if (r->attach >= 0)
        (void)fd_send(r->attach, &m, sizeof m, fds, 2);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

void run_egress_finish(struct run_egress *r)
{
    struct err ignored = {0};
    if (r->pid <= 0)
        return;
    /* egress closes and reports open connections before it sends the statistics */
    if (r->control >= 0 && say(r, "{\"type\":\"forget\",\"sandbox\":\"" SANDBOX "\"}", &ignored) == 0 &&
        say(r, "{\"type\":\"stats\",\"request\":1}", &ignored) == 0)
        (void)wait_for(r, &r->answered, STATS_MS);
    if (r->attach >= 0)
        (void)close(TAKE_FD(r->attach));
    if (r->control >= 0)
        (void)close(TAKE_FD(r->control));
    for (uint64_t end = now_ms() + END_MS; waitpid(r->pid, NULL, WNOHANG) == 0;) {
        if (now_ms() >= end)
            (void)kill(r->pid, SIGKILL);
        (void)poll(NULL, 0, 1);
    }
    r->pid = 0;
}

static void add_request(struct json *j, const json_t *x)
{
    static const char *const texts[] = {"ts", "kind", "method", "host"}, *const more[] = {"tls", "verdict", "rule"};
    static const char *const numbers[] = {"status", "bytes_up", "bytes_down"};
    json_obj(j, NULL);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (*field_text(x, texts[i]))
            json_str(j, texts[i], field_text(x, texts[i]));
    json_u64(j, "port", (uint64_t)json_integer_value(json_object_get(x, "port")));
    if (*field_text(x, "path"))
        json_str(j, "path", field_text(x, "path"));
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        if (*field_text(x, more[i]))
            json_str(j, more[i], field_text(x, more[i]));
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (json_object_get(x, numbers[i]))
            json_u64(j, numbers[i], (uint64_t)json_integer_value(json_object_get(x, numbers[i])));
    json_fixed(j, "ms", (uint64_t)json_integer_value(json_object_get(x, "t_total_us")), 3);
    json_end_obj(j);
}

void run_egress_json(const struct run_egress *r, struct json *j)
{
    static const char *const numbers[] = {"connections", "requests", "denied", "bytes_up", "bytes_down", "dns"};
    const json_t *list = json_object_get(r->stats, "sandboxes"), *host;
    const json_t *own = json_array_get(list, 0), *hosts = json_object_get(own, "hosts");
    const char *name;
    json_obj(j, "network");
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        json_u64(j, numbers[i], (uint64_t)json_integer_value(json_object_get(own, numbers[i])));
    json_obj(j, "hosts");
    json_object_foreach((json_t *)hosts, name, host)
    {
        json_obj(j, name);
        for (size_t i = 1; i < 5; i++)
            json_u64(j, numbers[i], (uint64_t)json_integer_value(json_object_get(host, numbers[i])));
        json_end_obj(j);
    }
    json_end_obj(j);
    json_arr(j, "log");
    for (size_t i = 0; i < json_array_size(r->log); i++)
        add_request(j, json_array_get(r->log, i));
    json_end_arr(j);
    if (r->left_out)
        json_u64(j, "log_left_out", r->left_out);
    json_end_obj(j);
}
