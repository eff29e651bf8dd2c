/* Opens what the children need: directories, locks, sockets, the operator's key, certificates. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/random.h"
#include "base/sha256.h"
#include "db/db.h"
#include "http/devca.h"
#include "keeper/proto.h"
#include "layers/proto.h"
#include "node/procs.h"
#include "sandboxes/idseal.h"

#define IMAGE_USER "hutch-image"

enum {
    CHOSEN_FIRST = 61184, /* the range systemd takes for users without a name */
    CHOSEN_LAST = 65519,
    BACKLOG = 4096,
    BIND_TRIES = 100,
    BIND_PAUSE_MS = 20,
    PEM_MAX = 1 << 20,
    KEY_TEXT = 44,
};

/* --- directories -------------------------------------------------------------------------------------------------- */

int node_open_dir(const char *path, uid_t uid, gid_t gid, mode_t mode, struct err *err)
{
    _cleanup_free_ char *walk = xstrdup(path);
    for (char *p = walk + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        if (mkdir(walk, 0755) < 0 && errno != EEXIST)
            return err_set(err, ERR_SETUP, errno, "cannot make the directory %s", walk);
        *p = '/';
    }
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "cannot make the directory %s", path);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open the directory %s", path);
    if (st.st_uid != geteuid() && st.st_uid != uid)
        return err_set(err, ERR_SETUP, 0, "the directory %s belongs to uid %u, not to us; give another one", path,
                       st.st_uid);
    if ((geteuid() == 0 && fchown(fd, uid, gid) < 0) || fchmod(fd, mode) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot set owner and mode of %s", path);
    return TAKE_FD(fd);
}

int node_take_lock(int dir, const char *path, struct err *err)
{
    _cleanup_close_ int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "cannot open %s/lock", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        char pid[24] = "";
        ssize_t n = pread(fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return err_set(err, ERR_SETUP, 0, "another hutch serve%s%s already uses %s; stop it, or give other directories",
                       *pid ? " with pid " : "", pid, path);
    }
    char text[24];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    /* The pid is only for the message above; on a full disk it is missing. */
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
        log_text(LOG_LEVEL_WARN, "cannot write our pid to %s/lock: %s", path, strerror(errno));
    return TAKE_FD(fd);
}

/* --- users of the children ---------------------------------------------------------------------------------------- */

/* Chooses an unused uid: the one that already owns the child's directory, else the first free one of the range. */
static int node_choose_uid(const char *name, const char *dir, uid_t taken, uid_t *ret, struct err *err)
{
    struct stat st;
    if (lstat(dir, &st) == 0 && st.st_uid >= CHOSEN_FIRST && st.st_uid <= CHOSEN_LAST && st.st_uid != taken &&
        !getpwuid(st.st_uid)) {
        *ret = st.st_uid;
        return 0;
    }
    for (uid_t u = CHOSEN_FIRST; u <= CHOSEN_LAST; u++)
        if (u != taken && !getpwuid(u) && !getgrgid(u)) {
            *ret = u;
            return 0;
        }
    return err_set(err, ERR_SETUP, 0, "no free uid: create a user with `useradd --system %s`", name);
}

int node_choose_user(const char *key, const char *name, const char *dir, uid_t taken, uid_t *ret_uid, gid_t *ret_gid,
                     bool *ret_made, struct err *err)
{
    *ret_uid = geteuid();
    *ret_gid = getegid();
    *ret_made = false;
    if (*ret_uid != 0)
        return 0;
    errno = 0;
    const struct passwd *pw = getpwnam(name);
    if (pw && pw->pw_uid == 0)
        return err_set(err, ERR_USAGE, 0, "%s: %s is root; this process must not be", key, name);
    if (pw && pw->pw_uid == taken)
        return err_set(err, ERR_USAGE, 0, "%s: %s is the user of another process of the node; give each its own", key,
                       name);
    if (pw) {
        *ret_uid = pw->pw_uid;
        *ret_gid = pw->pw_gid;
        return 0;
    }
    if (node_choose_uid(name, dir, taken, ret_uid, err) < 0)
        return -1;
    *ret_gid = *ret_uid;
    *ret_made = true;
    return 0;
}

/* Image workers read untrusted data, so they get a user of their own: neither front's nor egress's. */
static int node_choose_image_user(struct node_files *n, struct err *err)
{
    const struct passwd *pw = n->drop ? getpwnam(IMAGE_USER) : NULL;
    uid_t u = CHOSEN_FIRST;
    if (!n->drop)
        return 0;
    if (pw && pw->pw_uid != 0 && pw->pw_uid != n->uid && pw->pw_uid != n->egress.uid) {
        n->image_uid = pw->pw_uid;
        n->image_gid = pw->pw_gid;
        return 0;
    }
    while (u <= CHOSEN_LAST && (u == n->uid || u == n->egress.uid || getpwuid(u) || getgrgid(u)))
        u++;
    if (u > CHOSEN_LAST)
        return err_set(err, ERR_SETUP, 0, "no free uid: create a user with `useradd --system " IMAGE_USER "`");
    n->image_uid = u;
    n->image_gid = u;
    return 0;
}

/* --- sockets ------------------------------------------------------------------------------------------------------ */

/* The directory protects the socket; owner and mode are set before listen(), so before any client can connect. */
int node_listen(int run, const char *name, int type, gid_t gid, struct err *err)
{
    _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    (void)snprintf(sa.sun_path, sizeof sa.sun_path, "/proc/self/fd/%d/%s", run, name);
    (void)unlinkat(run, name, 0);
    mode_t was = umask(0177);
    int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&sa, sizeof sa);
    (void)umask(was);
    bool open_to_group = gid != (gid_t)-1;
    if (rc < 0 || (open_to_group && fchownat(run, name, 0, gid, AT_SYMLINK_NOFOLLOW) < 0) ||
        (open_to_group && fchmodat(run, name, 0660, 0) < 0) || listen(fd, 16) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot listen on %s in the runtime directory", name);
    return TAKE_FD(fd);
}

/* Retries, because after kill -9 of the previous supervisor its front may hold the port for a moment. */
static int node_bind_patiently(int fd, const struct addrinfo *a)
{
    bool bound = false;
    for (int tries = 0;; tries++) {
        bound = bound || bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (bound && listen(fd, BACKLOG) == 0)
            return 0;
        if (errno != EADDRINUSE || tries == BIND_TRIES)
            return -1;
        (void)nanosleep(&(struct timespec){.tv_nsec = BIND_PAUSE_MS * 1000000L}, NULL);
    }
}

static int node_bind_tcp(const char *address, int *ret, struct err *err)
{
    char host[64], port_text[8];
    uint16_t port;
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    if (!config_address(address, host, &port))
        return err_set(err, ERR_USAGE, 0, "\"%s\" is not ADDR:PORT", address);
    (void)snprintf(port_text, sizeof port_text, "%u", port);
    int rc = getaddrinfo(host, port_text, &hints, &list);
    if (rc != 0)
        return err_set(err, ERR_SETUP, 0, "cannot listen on %s: %s", address, gai_strerror(rc));
    _cleanup_close_ int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    rc = fd < 0 ? -1 : node_bind_patiently(fd, list);
    int eno = errno;
    freeaddrinfo(list);
    if (rc < 0)
        return err_set(err, ERR_SETUP, eno, "cannot listen on %s%s", address,
                       eno == EADDRINUSE ? " (another program does; --listen ADDR:PORT takes another port)" : "");
    *ret = TAKE_FD(fd);
    return 0;
}

/* --- keys and certificates ---------------------------------------------------------------------------------------- */

static int node_make_admin_key(struct node_files *n, struct err *err)
{
    char digits[41];
    random_hex(digits, 20);
    (void)snprintf(n->admin_key, sizeof n->admin_key, "e2b_%s", digits);
    _cleanup_close_ int fd =
        openat(n->state, ADMIN_KEY ".tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fd_write_all(fd, n->admin_key, KEY_TEXT) < 0 || fd_write_all(fd, "\n", 1) < 0 || fsync(fd) < 0 ||
        renameat(n->state, ADMIN_KEY ".tmp", n->state, ADMIN_KEY) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot write " ADMIN_KEY " in the state directory");
    n->first_start = true;
    return 0;
}

static bool node_is_admin_key(const char *text)
{
    return strncmp(text, "e2b_", 4) == 0 && strspn(text + 4, "0123456789abcdef") == KEY_TEXT - 4;
}

static int node_read_admin_key(const struct config *c, struct node_files *n, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(n->state, ADMIN_KEY, 256, &text) < 0) {
        if (errno != ENOENT)
            return err_set(err, ERR_SETUP, errno, "cannot read %s/" ADMIN_KEY, c->state);
        if (node_make_admin_key(n, err) < 0)
            return -1;
    } else {
        if (!node_is_admin_key(buf_str(&text)) || strspn(buf_str(&text) + KEY_TEXT, " \r\n") != text.n - KEY_TEXT)
            return err_set(err, ERR_SETUP, 0,
                           "%s/" ADMIN_KEY " must hold e2b_ and 40 hexadecimal digits; remove it for a new one",
                           c->state);
        (void)snprintf(n->admin_key, sizeof n->admin_key, "%.*s", KEY_TEXT, buf_str(&text));
    }
    sha256_hex(n->admin_key, KEY_TEXT, n->admin_digest);
    return 0;
}

int node_memory_file(const char *name, const void *p, size_t n, struct err *err)
{
    _cleanup_close_ int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || fd_write_all(fd, p, n) < 0 || fchmod(fd, 0444) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot make a file in memory for %s", name);
    return TAKE_FD(fd);
}

static int node_load_pem(int dir, const char *path, int *ret, struct err *err)
{
    _cleanup_buf_ struct buf text = {0};
    if (fd_read_file(dir, path, PEM_MAX, &text) < 0)
        return err_set(err, ERR_SETUP, errno, "cannot read %s", path);
    *ret = node_memory_file("tls", text.p, text.n, err);
    return *ret < 0 ? -1 : 0;
}

static int node_load_tls(const struct config *c, struct node_files *n, struct err *err)
{
    if (c->tls_cert) {
        if (node_load_pem(AT_FDCWD, c->tls_cert, &n->tls_cert, err) < 0)
            return -1;
        return node_load_pem(AT_FDCWD, c->tls_key, &n->tls_key, err);
    }
    if (!c->tls_dev)
        return 0;
    _cleanup_free_ char *dir = path_join(c->state, "tls");
    _cleanup_close_ int fd = node_open_dir(dir, geteuid(), getegid(), 0700, err);
    _cleanup_free_ char *name = xstrndup(c->domain, strcspn(c->domain, ":"));
    int change = fd < 0 ? -1 : devca_ensure(fd, name, time(NULL), err);
    if (change < 0)
        return -1;
    if (change == DEVCA_ALL)
        log_text(LOG_LEVEL_INFO, "made a certificate authority of this machine's own: %s/" DEVCA_CA_CERT, dir);
    if (node_load_pem(fd, DEVCA_CERT, &n->tls_cert, err) < 0)
        return -1;
    return node_load_pem(fd, DEVCA_KEY, &n->tls_key, err);
}

/* Opens the network presets that come with the program; without them documents that name a preset are refused. */
static int node_open_presets(void)
{
    char self[1024], path[1200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    static const char *const places[] = {"../../share/hutch/presets", "../share/hutch/presets", "../share/presets"};
    int fd = -1;
    if (n <= 0)
        return -1;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places) && fd < 0; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", self, places[i]);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return fd;
}

/* Loads the webhook's secret, and root certificates for it and for oauth.jwks, which front may not read itself. */
static int node_load_webhook(const struct config *c, struct node_files *n, struct err *err)
{
    const char *trust = c->trust ? c->trust : NODE_SYSTEM_TRUST;
    struct config_url url;
    _cleanup_buf_ struct buf roots = {0};
    bool webhook = c->webhook && config_url(c->webhook, &url), tls = webhook && url.tls;
    tls = tls || (c->oauth_jwks && config_url(c->oauth_jwks, &url) && url.tls);
    if (webhook && c->webhook_secret && node_load_pem(AT_FDCWD, c->webhook_secret, &n->webhook_secret, err) < 0)
        return err_wrap(err, "approvals.secret_file");
    if (!tls)
        return 0;
    if (fd_read_file(AT_FDCWD, trust, NODE_TRUST_MAX, &roots) < 0)
        return err_set(err, ERR_SETUP, errno,
                       "approvals.webhook or oauth.jwks is https, and the roots in %s cannot be read", trust);
    n->webhook_trust = node_memory_file("roots", roots.p, roots.n, err);
    return n->webhook_trust < 0 ? -1 : 0;
}

/* SQLite takes an empty file for a new store. If files that only a used store leaves are beside it, the database has
 * lost its contents. Starting then would forget every sandbox, key and secret, and the layer store would drop all stacks. */
static int node_check_store(const struct config *c, const struct node_files *n, struct err *err)
{
    static const char *const beside[] = {DB_MARK_FILE, IDSEAL_FILE, DB_FILE "-wal"};
    struct stat st;
    if (fstatat(n->db, DB_FILE, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || st.st_size > 0)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(beside); i++)
        if (fstatat(n->db, beside[i], &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_size > 0)
            return err_set(err, ERR_SETUP, 0,
                           "%s/front/" DB_FILE
                           " is empty, although %s beside it shows that it was in use; put a copy of "
                           "it back, or remove the empty file to begin with a new store",
                           c->state, beside[i]);
    return 0;
}

int node_files_open(const struct config *c, struct node_files *ret, struct err *err)
{
    struct node_files *n = ret;
    _cleanup_free_ char *db = path_join(c->state, "front");
    uid_t me = geteuid();
    *n = (struct node_files)NODE_FILES_INIT;
    n->drop = me == 0;
    if (node_choose_user("user", c->user, db, (uid_t)-1, &n->uid, &n->gid, &n->made_user, err) < 0)
        return -1;
    /* Front gets its directories as descriptors; in RUN it must be able to look up names. */
    if ((n->state = node_open_dir(c->state, me, getegid(), 0700, err)) < 0 ||
        (n->state_lock = node_take_lock(n->state, c->state, err)) < 0 || node_run_open(c, n, err) < 0 ||
        (n->db = node_open_dir(db, n->uid, n->gid, 0700, err)) < 0 || node_check_store(c, n, err) < 0 ||
        (n->templates = node_open_dir(c->templates, me, n->gid, n->drop ? 0750 : 0700, err)) < 0)
        return -1;
    n->presets = node_open_presets();
    if (c->network && c->network[0] == '/' && node_load_pem(AT_FDCWD, c->network, &n->network, err) < 0)
        return err_wrap(err, "sandboxes.network");
    if (node_load_webhook(c, n, err) < 0 || node_read_admin_key(c, n, err) < 0 || node_load_tls(c, n, err) < 0 ||
        node_ranges_open(n, err) < 0 || node_egress_open(c, n, err) < 0 || node_choose_image_user(n, err) < 0 ||
        node_bind_tcp(c->listen, &n->listen, err) < 0)
        return -1;
    if (c->listen_tls && node_bind_tcp(c->listen_tls, &n->listen_tls, err) < 0)
        return -1;
    node_record_listen(c, n);
    return 0;
}

void node_files_close(struct node_files *n)
{
    if (n->run >= 0 && n->keeper_socket >= 0)
        (void)unlinkat(n->run, KEEPER_SOCKET, 0);
    if (n->run >= 0 && n->layers_socket >= 0)
        (void)unlinkat(n->run, LAYERS_SOCKET, 0);
    node_egress_close(n);
    int *fds[] = {&n->keeper_socket,  &n->layers_socket, &n->listen, &n->listen_tls, &n->tls_cert,
                  &n->tls_key,        &n->templates,     &n->db,     &n->presets,    &n->network,
                  &n->webhook_secret, &n->webhook_trust, &n->run,    &n->state,      &n->run_lock,
                  &n->state_lock,     &n->ranges};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
    explicit_bzero(n->admin_key, sizeof n->admin_key);
}
