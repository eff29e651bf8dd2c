/* upload.h - writes the body of a request into files of a sandbox: the whole body into one file, or each file part of a form
 * into its own; gzip is decoded. Files appear whole, with their parents (files_create() of peers/files.h). Memory stays
 * constant however large the body is: while the sandbox takes a piece, the client waits.
 */
#ifndef HUTCH_API_UPLOAD_H
#define HUTCH_API_UPLOAD_H

#include "base/strv.h"
#include "http/http.h"
#include "peers/files.h"

struct upload_spec {
    struct links *links;
    const char *sandbox, *user;
    const char *path; /* of the file; NULL: each part of the form names its own */
    const char *part; /* the name of file parts; others are skipped */
    /* If set, `part` and this one are ends of names: the text of the part "X" `path_part`, which comes first, is the path of
     * the file part "X" `part`. */
    const char *path_part;
    const struct strv *meta; /* key, value, ... of every file; borrowed as long as the upload lives */
    uint64_t file_max;       /* bytes of one file; 0: any */
};
/* `opened` comes for each file. After one of the others nothing more happens, and the owner frees the upload, perhaps from
 * inside. `more`: a part of the body has not been read yet: answer with api_refuse_body(). */
struct upload_ops {
    void (*opened)(void *arg, const struct file_info *info);
    void (*done)(void *arg); /* all files are complete, and watchers were told */
    void (*failed)(void *arg, unsigned status, const char *text, bool more);
    void (*sandbox_failed)(void *arg, const struct link_status *st, bool more);
};

struct upload;
/* Reads content type and encoding from the request. NULL with err: they or the path are wrong. */
struct upload *upload_new(struct http_req *r, const struct upload_spec *spec, const struct upload_ops *ops, void *arg,
                          struct err *err);
/* The body, from the request's on_data and on_end. */
void upload_feed(struct upload *u, const void *p, size_t n);
void upload_end(struct upload *u);
/* At any time; no callback comes afterwards, and a file that is not complete stays as it was. NULL is fine. */
void upload_free(struct upload *u);

#endif
