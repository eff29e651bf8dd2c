/* ref.h - parses the names of images in registries. Pure: it never asks the network or the file system. */
#ifndef HUTCH_IMAGE_REF_H
#define HUTCH_IMAGE_REF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { REF_HOST_MAX = 256, REF_NAME_MAX = 256, REF_TAG_MAX = 129, REF_DIGEST_MAX = 72 };

struct image_ref {
    bool plain;              /* without TLS: the name says http://, or the registry is on this machine */
    bool loopback;           /* the registry is on this machine */
    char host[REF_HOST_MAX]; /* with its port, if it has one: as requests name it */
    char name[REF_NAME_MAX];
    char tag[REF_TAG_MAX];       /* "" only if there is a digest */
    char digest[REF_DIGEST_MAX]; /* "sha256:..." or "" */
};

/* [http://|https://|docker://][HOST[:PORT]/]NAME[:TAG][@sha256:HEX]. Without a host it is Docker Hub, and a NAME of one
 * part there is below library/. The first part is a host if it has a dot or a colon in it, or is "localhost". ERR_USAGE
 * if it is wrong. */
int ref_parse(const char *text, struct image_ref *ret, struct err *err);
/* Whether a host, with or without a port, is this machine by its name alone. */
bool ref_loopback(const char *host);

#endif
