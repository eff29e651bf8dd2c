/* netpol.c - the life of a compiled policy: memory, references, the index from names and addresses to rules. */
#include "policy/net/netpol.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "policy/net/netpol-int.h"

const char *netpol_reason_name(enum netpol_reason r)
{
#define X(a, b) [NETPOL_R_##a] = #b,
    static const char *const names[] = {NETPOL_REASONS(X)};
#undef X
    return (unsigned)r < ARRAY_LEN(names) ? names[r] : "none";
}

void *netpol_keep(struct netpol *p, size_t n, size_t size)
{
    MEM_GROW(p->kept, p->nkept, p->kept_cap);
    return p->kept[p->nkept++] = xcalloc(n ? n : 1, size);
}

const char *netpol_keep_text(struct netpol *p, const char *text, size_t n)
{
    char *copy = netpol_keep(p, n + 1, 1);
    memcpy(copy, text, n);
    return copy;
}

struct netpol *netpol_ref(struct netpol *p)
{
    (void)__atomic_fetch_add(&p->refs, 1, __ATOMIC_RELAXED);
    return p;
}

void netpol_unref(struct netpol *p)
{
    if (!p || __atomic_fetch_sub(&p->refs, 1, __ATOMIC_ACQ_REL) > 1)
        return;
    for (struct netpol_node *node = p->nodes, *next; node; node = next) {
        next = node->next;
        for (int i = 0; i < 2; i++) {
            free(node->exact[i].v);
            free(node->below[i].v);
        }
        free(node);
    }
    for (int i = 0; i < 2; i++) {
        free(p->any[i].v);
        free(p->blocks[i].v);
    }
    for (size_t i = 0; i < p->nkept; i++)
        free(p->kept[i]);
    free(p->kept);
    free(p->rules);
    map_done(&p->names);
    free(p);
}

const struct netpol_settings *netpol_settings(const struct netpol *p) { return &p->settings; }
size_t netpol_rules(const struct netpol *p) { return p->nrules; }
const struct netpol_rule *netpol_rule_at(const struct netpol *p, size_t i)
{
    return i < p->nrules ? &p->rules[i] : NULL;
}

/* --- the index ---------------------------------------------------------------------------------------------------- */

/* The node of a suffix; all shorter suffixes are made with it. */
static struct netpol_node *node_of(struct netpol *p, const char *name)
{
    struct netpol_node *node = NULL;
    for (const char *at = name + strlen(name); at > name;) {
        do
            at--;
        while (at > name && at[-1] != '.');
        node = map_get(&p->names, at);
        if (node)
            continue;
        node = xcalloc(1, sizeof *node);
        node->next = p->nodes;
        p->nodes = node;
        (void)map_put(&p->names, at, node);
    }
    return node;
}

static void list_add(struct netpol_list *l, unsigned rule)
{
    if (l->n > 0 && l->v[l->n - 1] == rule)
        return;
    MEM_GROW(l->v, l->n, l->cap);
    l->v[l->n++] = (uint16_t)rule;
}

static void index_host(struct netpol *p, const struct netpol_host *h, unsigned rule, bool deny)
{
    if (h->kind == NETPOL_HOST_ANY) {
        list_add(&p->any[deny], rule);
        return;
    }
    struct netpol_node *node = node_of(p, h->name);
    if (h->kind != NETPOL_HOST_BELOW)
        list_add(&node->exact[deny], rule);
    if (h->kind != NETPOL_HOST_EXACT)
        list_add(&node->below[deny], rule);
}

static int compare_blocks(const void *va, const void *vb)
{
    const struct netpol_block *a = va, *b = vb;
    if (a->cidr.bits != b->cidr.bits)
        return a->cidr.bits < b->cidr.bits ? 1 : -1;
    int r = memcmp(&a->cidr.addr, &b->cidr.addr, sizeof a->cidr.addr);
    return r != 0 ? r : (int)a->rule - (int)b->rule;
}

static void index_blocks(struct netpol_blocks *b)
{
    if (b->n > 0)
        qsort(b->v, b->n, sizeof b->v[0], compare_blocks);
    for (size_t i = 0; i < b->n; i++) {
        if (i == 0 || b->v[i].cidr.bits != b->v[i - 1].cidr.bits) {
            b->groups[b->ngroups].bits = b->v[i].cidr.bits;
            b->groups[b->ngroups++].from = i;
        }
        b->groups[b->ngroups - 1].to = i + 1;
    }
}

void netpol_index(struct netpol *p)
{
    for (unsigned i = 0; i < p->nrules; i++) {
        struct netpol_rule *rule = &p->rules[i];
        struct netpol_inside *in = rule->inside;
        rule->index = i;
        p->subtracts |= in->ndeny > 0;
        for (size_t k = 0; k < in->nhosts; k++)
            index_host(p, &in->hosts[k], i, rule->deny);
        struct netpol_blocks *b = &p->blocks[rule->deny];
        for (size_t k = 0; k < in->ncidrs; k++) {
            MEM_GROW(b->v, b->n, b->cap);
            b->v[b->n++] = (struct netpol_block){.cidr = in->cidrs[k], .rule = (uint16_t)i};
        }
    }
    index_blocks(&p->blocks[0]);
    index_blocks(&p->blocks[1]);
    for (size_t i = 0; i < p->ninspect; i++) {
        const struct netpol_host *h = &p->inspect[i];
        struct netpol_node *node = node_of(p, h->name);
        node->inspect_exact |= h->kind != NETPOL_HOST_BELOW;
        node->inspect_below |= h->kind != NETPOL_HOST_EXACT;
    }
}
