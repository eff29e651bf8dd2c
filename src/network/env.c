/* The environment variables that a sandbox's network adds to its commands. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "network/networks-int.h"
#include "network/secrets.h"

#define BUNDLE "/etc/ssl/certs/ca-certificates.crt"
#define ROOT   "/etc/hutch/ca.pem"

static bool net_env_has(const struct strv *env, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < env->n; i++)
        if (strncmp(env->v[i], name, n) == 0 && env->v[i][n] == '=')
            return true;
    return false;
}

static void net_env_add(struct strv *env, const char *name, const char *value)
{
    if (!net_env_has(env, name))
        strv_take(env, xasprintf("%s=%s", name, value));
}

/* Variables for programs that do not use the system's bundle of certificates. */
static const struct {
    const char *name, *value;
} trust[] = {
    {"SSL_CERT_FILE", BUNDLE},
    {"REQUESTS_CA_BUNDLE", BUNDLE},
    {"CURL_CA_BUNDLE", BUNDLE},
    {"GIT_SSL_CAINFO", BUNDLE},
    {"PIP_CERT", BUNDLE},
    {"AWS_CA_BUNDLE", BUNDLE},
    {"CARGO_HTTP_CAINFO", BUNDLE},
    {"NIX_SSL_CERT_FILE", BUNDLE},
    {"HEX_CACERTS_PATH", BUNDLE},
    {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", BUNDLE},
    {"BUNDLE_SSL_CA_CERT", BUNDLE},
    {"NODE_EXTRA_CA_CERTS", ROOT},
    {"DENO_CERT", ROOT},
    {"YARN_HTTPS_CA_FILE_PATH", ROOT},
    {"NODE_USE_SYSTEM_CA", "1"},
    {"DENO_TLS_CA_STORE", "system,mozilla"},
    {"UV_NATIVE_TLS", "1"},
};

void net_environment(struct networks *nw, const struct sandbox *b, struct strv *env)
{
    for (size_t i = 0; b->net && i + 1 < b->net->placeholders.n; i += 2) {
        const struct sealed_secret *s = sealed_find(nw, b->tenant->id, b->net->placeholders.v[i]);
        _cleanup_free_ char *name = s ? sealed_variable(s) : NULL;
        if (name)
            net_env_add(env, name, b->net->placeholders.v[i + 1]);
    }
    for (size_t i = 0; nets_on(nw) && i < ARRAY_LEN(trust); i++)
        net_env_add(env, trust[i].name, trust[i].value);
}
