#include "guest/code/languages.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"

enum { SPEC_MAX = 64 * 1024 };

static const struct language languages[] = {
    {.name = "python",
     .aliases = "python3,py",
     .kernels = "python3,python",
     .how = "pip install ipykernel",
     .ipc = true},
    {.name = "javascript",
     .aliases = "js",
     .kernels = "deno,javascript",
     .interrupt = INTERRUPT_RESTART,
     .how = "npm install -g deno && deno jupyter --install"},
    {.name = "typescript",
     .aliases = "ts",
     .kernels = "deno,typescript",
     .interrupt = INTERRUPT_RESTART,
     .how = "npm install -g deno && deno jupyter --install"},
    {.name = "r",
     .kernels = "ir,r",
     .how = "apt-get install r-cran-irkernel && R -e 'IRkernel::installspec(user=FALSE)'"},
    {.name = "java",
     .kernels = "java,jjava",
     .interrupt = INTERRUPT_MESSAGE,
     .how = "apt-get install openjdk-17-jdk-headless && pip install jjava"},
    {.name = "bash",
     .aliases = "sh",
     .kernels = "bash",
     .how = "pip install bash_kernel && python3 -m bash_kernel.install --sys-prefix",
     .terminal = true,
     .ipc = true},
};

const struct language *language_find(const char *word)
{
    for (size_t i = 0; i < ARRAY_LEN(languages); i++)
        if (strcasecmp(languages[i].name, word) == 0 || text_listed(languages[i].aliases, word, strlen(word)))
            return &languages[i];
    return NULL;
}

void language_add_names(struct buf *b)
{
    const char *names[ARRAY_LEN(languages) + 1] = {0};
    for (size_t i = 0; i < ARRAY_LEN(languages); i++)
        names[i] = languages[i].name;
    text_add_choices(b, names);
}

/* A kernelspec that can be used, or NULL. */
static json_t *language_read_spec(const char *dir, size_t ndir, const char *kernel, size_t nkernel)
{
    _cleanup_buf_ struct buf path = {0}, text = {0};
    buf_addf(&path, "%.*s/%.*s/kernel.json", (int)ndir, dir, (int)nkernel, kernel);
    if (fd_read_file(AT_FDCWD, buf_str(&path), SPEC_MAX, &text) < 0)
        return NULL;
    json_t *spec = json_loadb(buf_str(&text), text.n, 0, NULL), *argv = json_object_get(spec, "argv"), *item;
    bool good = json_array_size(argv) > 0;
    size_t i;
    json_array_foreach(argv, i, item) good &= json_is_string(item);
    if (!good) {
        json_decref(spec);
        return NULL;
    }
    (void)json_object_set_new(spec, "resource_dir", json_stringn(buf_str(&path), path.n - strlen("/kernel.json")));
    return spec;
}

json_t *language_spec(const struct language *l, const char *path, struct err *err)
{
    for (const char *k = l->kernels; *k; k += strcspn(k, ","), k += *k == ',')
        for (const char *d = path; *d; d += strcspn(d, ":"), d += *d == ':') {
            json_t *spec = language_read_spec(d, strcspn(d, ":"), k, strcspn(k, ","));
            if (spec)
                return spec;
        }
    (void)err_set(err, ERR_HOST, 0, "language %s is not installed in this sandbox; add it to its template with: %s",
                  l->name, l->how);
    return NULL;
}

bool language_is_variable(const char *name)
{
    if (!isalpha((unsigned char)name[0]) && name[0] != '_')
        return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_')
            return false;
    return true;
}

static void language_add_bytes(struct buf *code, const char *prefix, const char *value)
{
    for (; *value; value++)
        buf_addf(code, "%s%02x", prefix, (unsigned)(unsigned char)*value);
}

static void language_add_json(struct buf *code, const char *value)
{
    json_t *s = json_string(value);
    char *text = s ? json_dumps(s, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    buf_adds(code, text ? text : "\"\"");
    free(text);
    json_decref(s);
}

static void language_add_r(struct buf *code, const char *name, const char *value)
{
    if (!value) {
        buf_addf(code, "Sys.unsetenv(\"%s\")\n", name);
        return;
    }
    buf_addf(code, "Sys.setenv(\"%s\"=rawToChar(as.raw(c(", name);
    for (const char *p = value; *p; p++)
        buf_addf(code, "%s%u", p == value ? "" : ",", (unsigned)(unsigned char)*p);
    buf_adds(code, "))))\n");
}

void language_add_variable(const struct language *l, const char *name, const char *value, struct buf *code)
{
    if (strcmp(l->name, "python") == 0 && value) {
        buf_addf(code, "__import__('os').environ['%s'] = bytes.fromhex('", name);
        language_add_bytes(code, "", value);
        buf_adds(code, "').decode('utf-8', 'surrogateescape')\n");
    } else if (strcmp(l->name, "python") == 0) {
        buf_addf(code, "__import__('os').environ.pop('%s', None)\n", name);
    } else if (strcmp(l->name, "bash") == 0 && value) {
        buf_addf(code, "export %s=$'", name);
        language_add_bytes(code, "\\x", value);
        buf_adds(code, "'\n");
    } else if (strcmp(l->name, "bash") == 0) {
        buf_addf(code, "unset %s\n", name);
    } else if (strcmp(l->name, "r") == 0) {
        language_add_r(code, name, value);
    } else {
        bool java = strcmp(l->name, "java") == 0;
        if (value) {
            buf_addf(code, java ? "System.setProperty(\"%s\", " : "process.env[\"%s\"] = (", name);
            language_add_json(code, value);
            buf_adds(code, ");\n");
        } else {
            buf_addf(code, java ? "System.clearProperty(\"%s\");\n" : "delete process.env[\"%s\"];\n", name);
        }
    }
}
