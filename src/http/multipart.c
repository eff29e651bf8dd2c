#include "http/multipart.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/text.h"
#include "http/url.h"

enum { BOUNDARY_MAX = 70 };

enum state {
    PREAMBLE,  /* before the first boundary; what comes is dropped */
    DELIMITED, /* right after a boundary: "--" or the end of the line must follow */
    PADDING,   /* spaces after a boundary */
    LINE_END,  /* CR seen, LF must follow */
    LAST_DASH, /* "-" of "--" seen */
    HEADER,    /* collecting a part header */
    DATA,      /* inside a part */
    EPILOGUE,  /* after the closing boundary; dropped */
};

struct multipart {
    const struct multipart_events *events;
    void *arg;
    enum state state;
    size_t parts;   /* begun */
    size_t skipped; /* bytes of preamble */
    size_t matched; /* bytes of `delimiter` that the stream's last bytes equal */
    size_t delimiter_n;
    char delimiter[BOUNDARY_MAX + 5]; /* CR LF "--" boundary */
    struct buf header;
};

static int multipart_bad(struct err *err, const struct multipart *m, const char *what)
{
    (void)err_set(err, ERR_USAGE, 0, "multipart body, part %zu: %s", m->parts, what);
    return -1;
}

/* ---- parameters: ; name=token or ; name="quoted" ---- */

static bool token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

/* Reads a quoted string from its opening quote. A backslash escapes only a quote or a backslash: some clients write
 * those, others write Windows paths unescaped. Returns what follows the closing quote, or NULL. */
static const char *multipart_quoted(const char *s, struct buf *value)
{
    for (s++; *s != '"'; s++) {
        if (*s == '\0')
            return NULL;
        if (*s == '\\' && (s[1] == '"' || s[1] == '\\'))
            s++;
        buf_addc(value, *s);
    }
    return s + 1;
}

/* The next "; name=value" of *s. 1 got one, 0 none is left, -1 not well formed. */
static int next_parameter(const char **s, char *name, size_t name_size, struct buf *value)
{
    const char *p = *s;
    size_t n = 0;
    p += strspn(p, " \t");
    if (*p == '\0')
        return 0;
    if (*p++ != ';')
        return -1;
    p += strspn(p, " \t");
    if (*p == '\0')
        return 0;
    while (token_char(p[n]))
        n++;
    if (n == 0 || n >= name_size || p[n] != '=')
        return -1;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)(p[i] >= 'A' && p[i] <= 'Z' ? p[i] + 32 : p[i]);
    name[n] = '\0';
    p += n + 1;
    buf_add(value, "", 0);
    if (*p == '"') {
        p = multipart_quoted(p, value);
        if (!p)
            return -1;
    } else {
        for (; token_char(*p) || (*p & 0x80) != 0 || (*p != '\0' && strchr("/:?=@", *p)); p++)
            buf_addc(value, *p);
    }
    *s = p;
    return 1;
}

static bool boundary_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("'()+_,-./:=? ", c));
}

static int set_boundary(struct multipart *m, const struct buf *value, struct err *err)
{
    bool good = value->n > 0 && value->n <= BOUNDARY_MAX && value->p[value->n - 1] != ' ';
    for (size_t i = 0; good && i < value->n; i++)
        good = boundary_char(value->p[i]);
    if (!good)
        return err_set(err, ERR_USAGE, 0,
                       "content-type: the boundary must be 1 to %d letters, digits or \"'()+_,-./:=? \" characters",
                       BOUNDARY_MAX);
    memcpy(m->delimiter, "\r\n--", 4);
    memcpy(m->delimiter + 4, value->p, value->n);
    m->delimiter_n = 4 + value->n;
    return 0;
}

static int read_boundary(struct multipart *m, const char *content_type, struct err *err)
{
    static const char type[] = "multipart/form-data";
    char name[32];
    const char *s = content_type ? content_type : "";
    int got;
    if (strncasecmp(s, type, sizeof type - 1) != 0 ||
        (s[sizeof type - 1] != '\0' && !strchr("; \t", s[sizeof type - 1])))
        return err_set(err, ERR_USAGE, 0, "content-type: expected multipart/form-data with a boundary");
    s += sizeof type - 1;
    for (;;) {
        _cleanup_buf_ struct buf value = {0};
        got = next_parameter(&s, name, sizeof name, &value);
        if (got <= 0)
            break;
        if (strcmp(name, "boundary") == 0)
            return set_boundary(m, &value, err);
    }
    return err_set(err, ERR_USAGE, 0, "content-type: %s",
                   got < 0 ? "a parameter is not well formed; expected ; boundary=..."
                           : "multipart/form-data without a boundary");
}

int multipart_new(const char *content_type, const struct multipart_events *events, void *arg, struct multipart **ret,
                  struct err *err)
{
    struct multipart *m = xcalloc(1, sizeof *m);
    m->events = events;
    m->arg = arg;
    m->matched = 2; /* the first boundary needs no line end before it */
    if (read_boundary(m, content_type, err) < 0) {
        free(m);
        return -1;
    }
    *ret = m;
    return 0;
}

void multipart_free(struct multipart *m)
{
    if (!m)
        return;
    buf_done(&m->header);
    free(m);
}

/* ---- part headers ---- */

struct disposition {
    bool seen;
    char *name, *filename;
};

static void disposition_done(struct disposition *d)
{
    free(d->name);
    free(d->filename);
}

/* Browsers and SDKs write a quote, CR and LF of a file name as %22, %0D, %0A and leave every other '%' alone. */
static char *browser_decoded(const struct buf *value)
{
    char *out = xmalloc(value->n + 1);
    size_t n = 0;
    const char *s = buf_str(value);
    while (*s) {
        char c = *s;
        size_t used = 1;
        if (strncmp(s, "%22", 3) == 0)
            c = '"', used = 3;
        else if (strncasecmp(s, "%0d", 3) == 0)
            c = '\r', used = 3;
        else if (strncasecmp(s, "%0a", 3) == 0)
            c = '\n', used = 3;
        out[n++] = c;
        s += used;
    }
    out[n] = '\0';
    return out;
}

/* filename*=UTF-8''percent%20encoded (RFC 8187), which older clients send for names that are not ASCII. */
static int extended_decoded(const struct multipart *m, const struct buf *value, char **ret, struct err *err)
{
    const char *language = strchr(buf_str(value), '\''), *text = language ? strchr(language + 1, '\'') : NULL;
    struct buf out = {0};
    if (!text || strncasecmp(value->p, "utf-8'", 6) != 0)
        return multipart_bad(err, m, "filename* must begin with UTF-8''");
    if (url_decode(text + 1, strlen(text + 1), URL_PLUS_LITERAL, &out, err) < 0) {
        buf_done(&out);
        return err_wrap(err, "multipart body, part %zu: filename*", m->parts);
    }
    *ret = out.p ? out.p : xstrdup("");
    return 0;
}

static int read_disposition(const struct multipart *m, const char *s, struct disposition *d, struct err *err)
{
    _cleanup_free_ char *extended = NULL;
    char name[32];
    int got;
    if (d->seen)
        return multipart_bad(err, m, "two content-disposition fields");
    d->seen = true;
    if (strncasecmp(s, "form-data", 9) != 0 || (s[9] != '\0' && !strchr("; \t", s[9])))
        return multipart_bad(err, m, "content-disposition must be form-data");
    s += 9;
    for (;;) {
        _cleanup_buf_ struct buf value = {0};
        got = next_parameter(&s, name, sizeof name, &value);
        if (got <= 0)
            break;
        char **slot = strcmp(name, "name") == 0 ? &d->name : strcmp(name, "filename") == 0 ? &d->filename : NULL;
        if (slot && *slot)
            return multipart_bad(err, m, "content-disposition gives name or filename twice");
        if (slot)
            *slot = browser_decoded(&value);
        else if (strcmp(name, "filename*") == 0 && !extended && extended_decoded(m, &value, &extended, err) < 0)
            return -1;
    }
    if (got < 0)
        return multipart_bad(err, m,
                             "content-disposition has a parameter that is not well formed; expected ; name=\"value\"");
    if (!d->name)
        return multipart_bad(err, m, "content-disposition without a name");
    if (extended) { /* the exact one of the two */
        free(d->filename);
        d->filename = TAKE_PTR(extended);
    }
    return 0;
}

/* Cuts one header line (in place) into a field. */
static int split_field(const struct multipart *m, char *line, struct http_field *ret, struct err *err)
{
    size_t n = 0;
    for (; token_char(line[n]); n++)
        if (line[n] >= 'A' && line[n] <= 'Z')
            line[n] = (char)(line[n] + 32);
    if (n == 0 || line[n] != ':')
        return multipart_bad(err, m,
                             n == 0 ? "a header line begins without a field name (folded lines are not taken)"
                                    : "a header field name is not followed by ':'");
    line[n] = '\0';
    char *value = line + n + 1 + strspn(line + n + 1, " \t");
    size_t end = strlen(value);
    while (end > 0 && (value[end - 1] == ' ' || value[end - 1] == '\t'))
        end--;
    value[end] = '\0';
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
            return multipart_bad(err, m, "a control character in a header field (line ends are CR LF)");
    *ret = (struct http_field){line, value};
    return 0;
}

/* m->header holds the lines of the part's header, each with its CR LF, without the empty one. */
static int multipart_begin_part(struct multipart *m, struct err *err)
{
    struct http_field fields[MULTIPART_FIELDS_MAX];
    _cleanup_(disposition_done) struct disposition d = {0};
    struct multipart_part part = {.fields = {fields, 0}};
    if (m->header.n > 0 && memchr(m->header.p, '\0', m->header.n))
        return multipart_bad(err, m, "a NUL byte in the header");
    for (char *line = m->header.p; m->header.n > 0 && *line;) {
        char *end = strstr(line, "\r\n");
        *end = '\0';
        if (part.fields.n == MULTIPART_FIELDS_MAX)
            return multipart_bad(err, m, "too many header fields");
        if (split_field(m, line, &fields[part.fields.n], err) < 0)
            return -1;
        const struct http_field *f = &fields[part.fields.n++];
        if (strcmp(f->name, "content-type") == 0)
            part.content_type = f->value;
        if (strcmp(f->name, "content-disposition") == 0 && read_disposition(m, f->value, &d, err) < 0)
            return -1;
        line = end + 2;
    }
    if (!d.seen)
        return multipart_bad(err, m, "no content-disposition");
    part.name = d.name;
    part.filename = d.filename;
    int status = m->events->part_begin ? m->events->part_begin(m->arg, &part, err) : 0;
    buf_done(&m->header);
    m->state = DATA;
    m->matched = 0;
    return status;
}

/* ---- the stream ---- */

/* Takes header bytes up to and with the empty line. Returns how many were used, or -1. */
static ssize_t multipart_feed_header(struct multipart *m, const char *p, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (m->header.n == MULTIPART_HEADER_MAX)
            return err_set(err, ERR_USAGE, 0, "multipart body, part %zu: the header is longer than %d bytes", m->parts,
                           MULTIPART_HEADER_MAX);
        buf_addc(&m->header, p[i]);
        size_t have = m->header.n;
        if (p[i] != '\n')
            continue;
        if (have < 2 || m->header.p[have - 2] != '\r')
            return multipart_bad(err, m, "a header line ends with a bare LF; line ends are CR LF");
        if (have != 2 && m->header.p[have - 3] != '\n') /* which has a CR before it, or it would have been refused */
            continue;
        m->header.n -= 2; /* the empty line */
        m->header.p[m->header.n] = '\0';
        return multipart_begin_part(m, err) < 0 ? -1 : (ssize_t)i + 1;
    }
    return (ssize_t)n;
}

static int multipart_give_data(struct multipart *m, const char *p, size_t n, struct err *err)
{
    if (n == 0)
        return 0;
    if (m->state == DATA)
        return m->events->part_data ? m->events->part_data(m->arg, p, n, err) : 0;
    m->skipped += n;
    return m->skipped > MULTIPART_PREAMBLE_MAX ? multipart_bad(err, m, "no boundary found in the first 64 KiB") : 0;
}

/* Looks for the delimiter. It holds a CR only at its beginning, so after a failed match the bytes matched so far
 * were data, and only the current one may begin a new match. */
static ssize_t multipart_feed_data(struct multipart *m, const char *p, size_t n, struct err *err)
{
    size_t i = 0;
    while (i < n) {
        if (m->matched == 0) {
            const char *cr = memchr(p + i, '\r', n - i);
            size_t end = cr ? (size_t)(cr - p) : n;
            if (multipart_give_data(m, p + i, end - i, err) < 0)
                return -1;
            i = end;
            if (!cr)
                break;
        }
        if (p[i] != m->delimiter[m->matched]) {
            size_t before = m->matched;
            m->matched = 0;
            if (multipart_give_data(m, m->delimiter, before, err) < 0)
                return -1;
            continue;
        }
        i++;
        if (++m->matched == m->delimiter_n) {
            bool inside = m->state == DATA;
            m->state = DELIMITED;
            m->matched = 0;
            if (inside && m->events->part_end && m->events->part_end(m->arg, err) < 0)
                return -1;
            return (ssize_t)i;
        }
    }
    return (ssize_t)n;
}

/* One byte between a boundary and what it announces. */
static int multipart_feed_delimited(struct multipart *m, char c, struct err *err)
{
    if (m->state == LINE_END && c == '\n') {
        if (++m->parts > MULTIPART_PARTS_MAX)
            return err_set(err, ERR_USAGE, 0, "multipart body: more than %d parts", MULTIPART_PARTS_MAX);
        m->state = HEADER;
        return 0;
    }
    if (m->state == LAST_DASH && c == '-') {
        m->state = EPILOGUE;
        return m->events->end ? m->events->end(m->arg, err) : 0;
    }
    if (m->state == DELIMITED && c == '-')
        m->state = LAST_DASH;
    else if ((m->state == DELIMITED || m->state == PADDING) && (c == ' ' || c == '\t'))
        m->state = PADDING;
    else if ((m->state == DELIMITED || m->state == PADDING) && c == '\r')
        m->state = LINE_END;
    else
        return err_set(
            err, ERR_USAGE, 0,
            "multipart body: the boundary after part %zu is followed by byte 0x%02x; expected CR LF or \"--\"",
            m->parts, (unsigned char)c);
    return 0;
}

int multipart_feed(struct multipart *m, const void *bytes, size_t n, struct err *err)
{
    const char *p = bytes;
    while (n > 0 && m->state != EPILOGUE) {
        ssize_t used = 1;
        if (m->state == HEADER)
            used = multipart_feed_header(m, p, n, err);
        else if (m->state == DATA || m->state == PREAMBLE)
            used = multipart_feed_data(m, p, n, err);
        else if (multipart_feed_delimited(m, *p, err) < 0)
            used = -1;
        if (used < 0)
            return -1;
        p += used;
        n -= (size_t)used;
    }
    return 0;
}

int multipart_finish(struct multipart *m, struct err *err)
{
    if (m->state == EPILOGUE)
        return 0;
    if (m->parts == 0)
        return err_set(err, ERR_USAGE, 0, "multipart body: it ended before the first boundary");
    return multipart_bad(err, m, "the body ended before the closing boundary");
}
