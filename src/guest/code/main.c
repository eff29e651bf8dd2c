/* main.c - hutch-code: the code interpreter inside a sandbox. It serves port 49999 and drives real Jupyter kernels. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/num.h"
#include "guest/code/service.h"
#include "http/server.h"
#include "os/wipe.h"

enum { PROCESSES_STANDARD = 400 /* of the 512 that a sandbox has unless configured */ };

static const char usage[] =
    "usage: hutch-code [--port N] [--kernels DIR[:DIR...]] [--cwd DIR] [--warm LANGUAGE]\n"
    "                  [--processes N]\n"
    "Serves the code interpreter on 127.0.0.1. --kernels: where kernelspecs are; --warm: a "
    "kernel that starts at once, or none; --processes: how many processes and threads their user may have, 0: any "
    "number.\n";

static int main_listen(int port, struct err *err)
{
    static const int one = 1;
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, ERR_SETUP, errno, "socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&a, sizeof a) < 0 || listen(fd, 64) < 0) {
        (void)err_set(err, ERR_SETUP, errno, "listen on 127.0.0.1:%d", port);
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Empties a directory of ours that a service on this port left behind when it was killed. */
static void main_empty(const char *dir)
{
    struct err err;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)wipe_tree(dirfd(d), e->d_name, &err);
    if (d)
        (void)closedir(d);
}

/* The directory for connection files and sockets. The port is ours already, so no other service uses it. */
static int main_make_dir(const char *dir, struct err *err)
{
    struct stat st;
    if (mkdir(dir, 0700) == 0)
        return 0;
    if (errno != EEXIST)
        return err_set(err, ERR_SETUP, errno, "make %s", dir);
    if (lstat(dir, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
        return err_set(err, ERR_SETUP, 0, "%s is not a directory of this user alone; remove it", dir);
    main_empty(dir);
    return 0;
}

static void main_on_signal(void *arg, int signo)
{
    (void)signo;
    loop_stop(arg);
}

/* Serves until a signal comes; then ends the kernels. */
static int main_serve(struct contexts *all, int port, struct err *err)
{
    struct loop *l = all->world.loop;
    struct http_limits limits = http_default_limits;
    struct http_server *server;
    struct context *c;
    limits.connections = 256;
    int fd = main_listen(port, err);
    if (fd < 0 || main_make_dir(all->world.dir, err) < 0 || loop_signal(l, SIGTERM, main_on_signal, l, err) < 0 ||
        loop_signal(l, SIGINT, main_on_signal, l, err) < 0 ||
        http_server_new(l, &limits, service_handle, all, &server, err) < 0 ||
        http_server_listen(server, fd, NULL, NULL, err) < 0)
        return -1;
    if (all->warm && context_default(all, all->warm, &(struct kernel_rights){0}, &c, err) < 0) {
        log_text(LOG_LEVEL_WARN, "%s", err->msg);
        (void)snprintf(all->why, sizeof all->why, "%.500s", err->msg);
    }
    int result = loop_run(l, err);
    all->world.ending = true;
    while (all->first)
        context_free(all->first);
    http_server_free(server);
    loop_settle(l);
    (void)close(fd);
    main_empty(all->world.dir);
    (void)rmdir(all->world.dir);
    return result;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"port", 1, NULL, 'p'}, {"kernels", 1, NULL, 'k'},   {"cwd", 1, NULL, 'c'},
                                            {"warm", 1, NULL, 'w'}, {"processes", 1, NULL, 'n'}, {0}};
    const char *tmp = getenv("TMPDIR");
    struct contexts all = {.cwd = "/home/user",
                           .world.path = "/usr/local/share/jupyter/kernels:/usr/share/jupyter/kernels"};
    struct err err;
    int port = 49999, processes = PROCESSES_STANDARD;
    all.warm = language_find("python");
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 'k')
            all.world.path = optarg;
        else if (o == 'c')
            all.cwd = optarg;
        else if (o == 'w' && ((all.warm = language_find(optarg)) || strcmp(optarg, "none") == 0))
            continue;
        else if (o == 'n' && num_int(optarg, 0, 1 << 22, &processes))
            continue;
        else if (o != 'p' || !num_int(optarg, 1, 65535, &port)) {
            (void)fputs(usage, stderr);
            return ERR_USAGE;
        }
    }
    all.world.processes = (unsigned)processes;
    log_open("code", LOG_LEVEL_INFO, 2);
    (void)signal(SIGPIPE, SIG_IGN);
    char *dir = xasprintf("%s/hutch-code-%d", tmp && tmp[0] == '/' ? tmp : "/tmp", port);
    all.world.dir = dir;
    all.world.zmq = zmq_ctx_new();
    int result = -1;
    if (!all.world.zmq)
        (void)err_set(&err, ERR_SETUP, errno, "start libzmq");
    else if (loop_new(&all.world.loop, &err) == 0)
        result = main_serve(&all, port, &err);
    if (result < 0)
        (void)fprintf(stderr, "hutch-code: %s\n", err.msg);
    loop_free(all.world.loop);
    if (all.world.zmq)
        (void)zmq_ctx_term(all.world.zmq);
    free(dir);
    return result < 0 ? err.code : 0;
}
