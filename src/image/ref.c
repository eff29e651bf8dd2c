#include "image/ref.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/num.h"
#include "image/image-int.h"

#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789"
#define WORD  LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"

static int ref_wrong(struct err *err, const char *text, const char *why)
{
    return image_fail(err, IMAGE_BAD_DATA, "\"%s\" is not the name of an image: %s", image_shown(text), why);
}

static bool ref_skip_prefix(const char **p, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*p, prefix, n) != 0)
        return false;
    *p += n;
    return true;
}

/* Letters, digits, '-' and '.'; or an IPv6 address in brackets; and a port. */
static const char *ref_host_wrong(const char *host)
{
    const char *port = NULL;
    size_t n;
    int number;
    if (host[0] == '[') {
        n = strspn(host + 1, "0123456789abcdefABCDEF:.") + 1;
        if (n < 3 || host[n] != ']')
            return "the address of the registry is not one";
        n++;
    } else {
        n = strspn(host, WORD ".-");
        if (n == 0 || host[0] == '.' || host[0] == '-' || strstr(host, "..") || memchr(host, '_', n))
            return "the name of the registry is not a host name";
    }
    if (host[n] == ':')
        port = host + n + 1;
    else if (host[n] != '\0')
        return "the name of the registry is not a host name";
    return port && !num_int(port, 1, 65535, &number) ? "the port of the registry is not a number up to 65535" : NULL;
}

/* Parts of lower-case letters and digits, with '.', '_', '__' or dashes between them. */
static const char *ref_name_wrong(const char *name)
{
    for (const char *p = name;;) {
        size_t n = strspn(p, LOWER);
        if (n == 0)
            return strpbrk(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == p
                       ? "names of images are in lower case"
                       : "a part of its name does not begin with a letter or digit";
        p += n;
        if (*p == '\0')
            return NULL;
        if (*p == '/') {
            p++;
            continue;
        }
        n = strspn(p, *p == '-' ? "-" : *p == '_' ? "_" : ".");
        if (n == 0)
            return *p >= 'A' && *p <= 'Z' ? "names of images are in lower case"
                                          : "names of images are made of letters, digits, '.', '_', '-' and '/'";
        if ((*p == '.' && n > 1) || (*p == '_' && n > 2) || !p[n] || p[n] == '/')
            return "a '.', '_' or '-' in its name stands where a letter or digit must be";
        p += n;
    }
}

bool ref_loopback(const char *host)
{
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    return (n == 9 && memcmp(host, "localhost", n) == 0) || (n == 5 && memcmp(host, "[::1]", n) == 0) ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == n);
}

static int ref_take_host(const char *text, const char **rest, struct image_ref *ret, struct err *err)
{
    const char *slash = strchr(*rest, '/');
    size_t n = slash ? (size_t)(slash - *rest) : 0;
    bool is_host = slash && (memchr(*rest, '.', n) || memchr(*rest, ':', n) ||
                             (n == 9 && memcmp(*rest, "localhost", 9) == 0) || (*rest)[0] == '[');
    if (!is_host) {
        (void)snprintf(ret->host, sizeof ret->host, "docker.io");
        return 0;
    }
    if (n >= sizeof ret->host)
        return ref_wrong(err, text, "the name of the registry is too long");
    memcpy(ret->host, *rest, n);
    ret->host[n] = '\0';
    *rest = slash + 1;
    const char *why = ref_host_wrong(ret->host);
    return why ? ref_wrong(err, text, why) : 0;
}

static int ref_take_digest(const char *text, const char *digest, struct image_ref *ret, struct err *err)
{
    uint8_t bytes[SHA256_BYTES];
    if (!hash_from_digest(digest, bytes))
        return ref_wrong(err, text, "behind '@' sha256: and 64 lower-case hexadecimal digits are expected");
    (void)snprintf(ret->digest, sizeof ret->digest, "%s", digest);
    return 0;
}

static int ref_take_tag(const char *text, const char *tag, struct image_ref *ret, struct err *err)
{
    size_t n = strlen(tag);
    if (n == 0 || n >= sizeof ret->tag || strspn(tag, WORD ".-") != n || tag[0] == '.' || tag[0] == '-')
        return ref_wrong(err, text,
                         "a tag has up to 128 letters, digits, '.', '_' and '-', and begins with none of '.' and '-'");
    memcpy(ret->tag, tag, n + 1);
    return 0;
}

int ref_parse(const char *text, struct image_ref *ret, struct err *err)
{
    char rest[REF_NAME_MAX + REF_TAG_MAX + REF_DIGEST_MAX];
    const char *p = text;
    *ret = (struct image_ref){0};
    bool plain = ref_skip_prefix(&p, "http://");
    if (!plain && !ref_skip_prefix(&p, "https://"))
        (void)ref_skip_prefix(&p, "docker://");
    if (ref_take_host(text, &p, ret, err) < 0)
        return -1;
    if (strlen(p) >= sizeof rest)
        return ref_wrong(err, text, "it is too long");
    memcpy(rest, p, strlen(p) + 1);
    char *at = strchr(rest, '@'), *colon;
    if (at) {
        *at = '\0';
        if (ref_take_digest(text, at + 1, ret, err) < 0)
            return -1;
    }
    colon = strchr(rest, ':');
    if (colon) {
        *colon = '\0';
        if (ref_take_tag(text, colon + 1, ret, err) < 0)
            return -1;
    } else if (!at) {
        memcpy(ret->tag, "latest", sizeof "latest");
    }
    bool hub = strcmp(ret->host, "docker.io") == 0 || strcmp(ret->host, "index.docker.io") == 0;
    int n = snprintf(ret->name, sizeof ret->name, "%s%s", hub && !strchr(rest, '/') ? "library/" : "", rest);
    if (n < 0 || (size_t)n >= sizeof ret->name)
        return ref_wrong(err, text, "its name is longer than 255 bytes");
    const char *why = rest[0] ? ref_name_wrong(rest) : "there is no name";
    if (why)
        return ref_wrong(err, text, why);
    if (hub)
        (void)snprintf(ret->host, sizeof ret->host, "registry-1.docker.io");
    ret->loopback = ref_loopback(ret->host);
    ret->plain = plain || (ret->loopback && strncmp(text, "https://", 8) != 0);
    return 0;
}
