/* netpol-from.c - turns the network settings of E2B's clients and of sandbox-runtime into our documents. */
#include <string.h>

#include "base/cleanup.h"
#include "base/json.h"
#include "policy/net/netpol-int.h"

static bool is_block(const char *text)
{
    struct netpol_cidr c;
    return netpol_cidr_parse(text, &c);
}

/* How E2B's clients write "all traffic". */
static bool is_everything(const char *text)
{
    struct netpol_cidr c;
    return strchr(text, '.') && netpol_cidr_parse(text, &c) && c.bits == 96;
}

static bool has_everything(const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_everything(list[i]))
            return true;
    return false;
}

/* Turns the addresses or the names of a list into one rule, or as many as are needed to hold them. */
struct piece {
    const char *id;
    const char *effect;       /* NULL: allow */
    bool blocks;              /* take the addresses of the list, or the names */
    bool all_too;             /* in deny lists: also what stands for everything */
    const char *const *ports; /* NULL-terminated; NULL: the default */
    bool tcp, broad;
};

static bool piece_takes_host(const struct piece *piece, const char *text)
{
    return is_block(text) == piece->blocks && (piece->all_too || !is_everything(text));
}

static void end_piece(struct json *j, const struct piece *piece)
{
    json_end_arr(j);
    if (piece->ports) {
        json_arr(j, "ports");
        for (size_t i = 0; piece->ports[i]; i++)
            json_str(j, NULL, piece->ports[i]);
        json_end_arr(j);
    }
    if (piece->tcp)
        json_str(j, "proto", "tcp");
    if (piece->broad)
        json_bool(j, "broad", true);
    if (!piece->effect)
        json_bool(j, "repeats", true); /* foreign lists may repeat an entry, or deny what they allow */
    json_end_obj(j);
}

static void piece_add_rules(struct json *j, const struct piece *piece, const char *const *list, size_t n)
{
    size_t in = 0, number = 0;
    for (size_t i = 0; i < n; i++) {
        if (!piece_takes_host(piece, list[i]))
            continue;
        if (in == 0) {
            _cleanup_buf_ struct buf id = {0};
            buf_adds(&id, piece->id);
            if (number++ > 0)
                buf_addf(&id, ".%zu", number);
            json_obj(j, NULL);
            json_str(j, "id", buf_str(&id));
            if (piece->effect)
                json_str(j, "effect", piece->effect);
            json_arr(j, piece->blocks ? "cidrs" : "hosts");
        }
        json_str(j, NULL, list[i]);
        if (++in == NETPOL_HOSTS_MAX) {
            end_piece(j, piece);
            in = 0;
        }
    }
    if (in > 0)
        end_piece(j, piece);
}

static const char *const every_port[] = {"1-65535", NULL};
/* Web ports go by the rule for requests, where names are checked; the others are opaque. */
static const char *const other_ports[] = {"1-79", "81-442", "444-65535", NULL};

void netpol_from_e2b(const char *const *allow, size_t nallow, const char *const *deny, size_t ndeny, int internet,
                     const char *const *header_hosts, size_t nheader_hosts, struct buf *out)
{
    struct json j;
    bool closed = (internet == 0 || has_everything(deny, ndeny)) && !has_everything(allow, nallow);
    json_start(&j, out);
    json_obj(&j, NULL);
    json_u64(&j, "version", 1);
    json_str(&j, "default", closed ? "deny" : "public");
    json_str(&j, "order", "allow-first");
    if (nheader_hosts > 0) {
        json_obj(&j, "tls");
        json_arr(&j, "inspect");
        for (size_t i = 0; i < nheader_hosts; i++)
            json_str(&j, NULL, header_hosts[i]);
        json_end_arr(&j);
        json_end_obj(&j);
    }
    json_arr(&j, "rules");
    piece_add_rules(&j, &(struct piece){.id = "allowOut", .all_too = true, .broad = true}, allow, nallow);
    piece_add_rules(
        &j,
        &(struct piece){.id = "allowOut.addresses", .blocks = true, .all_too = true, .ports = every_port, .tcp = true},
        allow, nallow);
    piece_add_rules(&j, &(struct piece){.id = "denyOut", .effect = "deny", .all_too = true}, deny, ndeny);
    /* "Deny everything" is the default above: as a rule it would also deny the addresses of allowed names. */
    piece_add_rules(&j, &(struct piece){.id = "denyOut.addresses", .effect = "deny", .blocks = true}, deny, ndeny);
    json_end_arr(&j);
    json_end_obj(&j);
}

/* sandbox-runtime takes "*.github.io" and refuses "*.com"; the second is left to fail here too. */
static bool may_be_broad(const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0 || (strncmp(list[i], "*.", 2) == 0 && !strchr(list[i] + 2, '.')))
            return false;
    return true;
}

void netpol_from_domains(const char *const *allow, size_t nallow, const char *const *deny, size_t ndeny,
                         struct buf *out)
{
    struct json j;
    bool broad = may_be_broad(allow, nallow);
    json_start(&j, out);
    json_obj(&j, NULL);
    json_u64(&j, "version", 1);
    json_str(&j, "default", "deny");
    json_arr(&j, "rules");
    piece_add_rules(&j, &(struct piece){.id = "allowedDomains", .all_too = true, .broad = broad}, allow, nallow);
    piece_add_rules(
        &j,
        &(struct piece){.id = "allowedDomains.tcp", .all_too = true, .broad = broad, .ports = other_ports, .tcp = true},
        allow, nallow);
    piece_add_rules(
        &j,
        &(struct piece){
            .id = "allowedDomains.addresses", .blocks = true, .all_too = true, .ports = every_port, .tcp = true},
        allow, nallow);
    piece_add_rules(&j, &(struct piece){.id = "deniedDomains", .effect = "deny", .all_too = true}, deny, ndeny);
    piece_add_rules(&j,
                    &(struct piece){.id = "deniedDomains.addresses", .effect = "deny", .blocks = true, .all_too = true},
                    deny, ndeny);
    json_end_arr(&j);
    json_end_obj(&j);
}
