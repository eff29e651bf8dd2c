/* err.h - the error convention of all code.
 *
 * A function that can fail returns int: 0 or positive on success, -1 on failure, and takes `struct err *err` as its last
 * parameter. On success *err is untouched; on failure it holds a class (which is also the exit code of the program), the
 * errno if there was one, the stage that failed and one line naming the operation and its object. The caller owns the
 * struct; nothing in it is allocated. Libraries never print: the program prints err.msg once, where it gives up.
 */
#ifndef HUTCH_BASE_ERR_H
#define HUTCH_BASE_ERR_H

/* Error classes; their numbers are the exit codes users see. */
enum err_code {
    ERR_NONE = 0,
    ERR_USAGE = 120,    /* the command line is wrong */
    ERR_POLICY = 121,   /* a policy document is wrong, contradictory or above its ceiling */
    ERR_HOST = 122,     /* this host cannot enforce what was asked */
    ERR_SETUP = 123,    /* the sandbox could not be built; nothing is left behind */
    ERR_LIMIT = 124,    /* a limit ended the command */
    ERR_INTERNAL = 125, /* out of memory, or a defect of ours */
};

struct err {
    int code;       /* enum err_code */
    int eno;        /* errno at the failure, or 0 */
    char stage[24]; /* set-up stage ("mounts", "seccomp"), or "" */
    char msg[1024]; /* one line, no newline; the caller escapes untrusted bytes */
};

/* Fills *err and returns -1. When eno is not 0, ": " and its description are appended. */
int err_set(struct err *err, enum err_code code, int eno, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#ifdef __clang_analyzer__ /* sees one file at a time, so it does not know that this fails */
#define err_set(...) ((void)err_set(__VA_ARGS__), -1)
#endif

/* Puts "context: " before the message that is there. Returns -1. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
