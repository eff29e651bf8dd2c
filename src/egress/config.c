/* config.c - reads the JSON configuration that supervisor (or hutch run) gives egress at its start. Unknown members are
 * refused. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "egress/audit/audit.h"

enum {
    CONNECTIONS = 20000,
    FILES_PER_CONNECTION = 6 /* both sides, and two pipes once it is spliced */,
    FILES_SPARE = 256
};

static int config_take_networks(const json_t *list, const char *name, struct netpol_cidr *ret, size_t room,
                                size_t *ret_n, struct err *err)
{
    *ret_n = 0;
    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) > room)
        return err_set(err, ERR_SETUP, 0, "%s of the egress configuration is not a list of at most %zu networks", name,
                       room);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (!text || !netpol_cidr_parse(text, &ret[i]))
            return err_set(err, ERR_SETUP, 0, "%s[%zu] of the egress configuration is not a network like 10.0.0.0/8",
                           name, i);
    }
    *ret_n = json_array_size(list);
    return 0;
}

static uint32_t connections_that_fit(uint32_t wanted)
{
    struct rlimit l = {0};
    uint64_t n = wanted;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_max > FILES_SPARE &&
        (l.rlim_max - FILES_SPARE) / FILES_PER_CONNECTION < n)
        n = (l.rlim_max - FILES_SPARE) / FILES_PER_CONNECTION;
    return (uint32_t)n;
}

static bool audit_sync_of(const char *word, int *ret)
{
    static const char *const words[] = {
        [AUDIT_SYNC_OFF] = "off", [AUDIT_SYNC_INTERVAL] = "interval", [AUDIT_SYNC_EACH] = "each"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(words[i], word) == 0) {
            *ret = (int)i;
            return true;
        }
    return false;
}

static int config_take(const json_t *json, struct egress_config *ret, struct err *err)
{
    json_error_t e;
    const char *resolv_conf = "", *servers = "", *on_full = "block", *sync = "off", *level = "info";
    json_t *infra = NULL, *loopback = NULL;
    int run = 0, blind = 0, file = 0;
    json_int_t connections = CONNECTIONS;
    if (json_unpack_ex((json_t *)(uintptr_t)json, &e, 0, "{s?I,s?s,s?s,s?o,s?o,s?b,s?b,s?b,s?s,s?s,s?s!}",
                       "connections", &connections, "resolv_conf", &resolv_conf, "servers", &servers, "infra", &infra,
                       "loopback_ok", &loopback, "run", &run, "no_interception", &blind, "audit_file", &file,
                       "audit_on_full", &on_full, "audit_sync", &sync, "log_level", &level) < 0)
        return err_set(err, ERR_SETUP, 0, "the egress configuration is not as it should be: %s", e.text);
    if (connections < 1 || connections > 1000000 || strlen(resolv_conf) >= sizeof ret->resolv_conf ||
        strlen(servers) >= sizeof ret->servers || strlen(level) >= sizeof ret->log_level)
        return err_set(err, ERR_SETUP, 0, "a value of the egress configuration is too long or out of range");
    if (strcmp(on_full, "block") != 0 && strcmp(on_full, "drop") != 0)
        return err_set(err, ERR_SETUP, 0, "audit_on_full of the egress configuration is neither block nor drop");
    if (!audit_sync_of(sync, &ret->audit_sync))
        return err_set(err, ERR_SETUP, 0, "audit_sync of the egress configuration is neither off, interval nor each");
    ret->connections = connections_that_fit((uint32_t)connections);
    (void)snprintf(ret->resolv_conf, sizeof ret->resolv_conf, "%s", resolv_conf);
    (void)snprintf(ret->servers, sizeof ret->servers, "%s", servers);
    (void)snprintf(ret->log_level, sizeof ret->log_level, "%s", level);
    ret->run = run;
    ret->no_interception = blind;
    ret->audit_file = file;
    ret->audit_drop = strcmp(on_full, "drop") == 0;
    if (config_take_networks(infra, "infra", ret->infra, ARRAY_LEN(ret->infra), &ret->ninfra, err) < 0)
        return -1;
    return config_take_networks(loopback, "loopback_ok", ret->loopback_ok, ARRAY_LEN(ret->loopback_ok),
                                &ret->nloopback_ok, err);
}

int egress_config_parse(const char *text, size_t n, struct egress_config *ret, struct err *err)
{
    json_error_t e;
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    *ret = (struct egress_config){0};
    if (!json)
        return err_set(err, ERR_SETUP, 0, "the egress configuration is not JSON: line %d column %d", e.line, e.column);
    int rc = config_take(json, ret, err);
    json_decref(json);
    return rc;
}
