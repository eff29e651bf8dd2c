/* Which template of the store is the image that a build names. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "front/builds-int.h"

static const struct tmpl *find_row(struct build_own *b, const char *name, const char *tag, const struct tmpl_tag **ret)
{
    _cleanup_free_ char *full = xasprintf("%s:%s", name, tag);
    const struct tmpl *t = tmpl_find(b->front, b->b.tenant, full, ret);
    bool ours = t && (t->tenant == b->b.tenant || !t->tenant); /* never what another tenant calls so */
    if (ours && *ret && tmpl_kind_of(t, *ret) != TMPL_IMPORTED)
        *ret = NULL;
    return ours ? t : NULL;
}

static bool is_image(const struct build_image *i, const struct tmpl_tag *tag)
{
    return build_image_is(i, tmpl_image(tag), tag->origin ? tag->origin->manifest : "");
}

/* A digest means one image whatever it is called here; what somebody named has none that is known. */
static const struct tmpl *find_digest(struct build_own *b, const struct build_image *i, const struct tmpl_tag **ret)
{
    const struct tmpl *t = find_row(b, i->name, i->tag, ret);
    for (size_t k = 0; t && k < t->ntags; k++)
        if (is_image(i, &t->tags[k])) {
            *ret = &t->tags[k];
            return t;
        }
    return NULL;
}

/* What was fetched as this reference, or what somebody gave this name. `repo`: any tag of it will do. */
static const struct tmpl *find_tag(struct build_own *b, const struct build_image *i, const char *tag, bool repo,
                                   const struct tmpl_tag **ret)
{
    const struct tmpl *t = find_row(b, i->name, tag, ret);
    const char *image = t && *ret ? tmpl_image(*ret) : NULL;
    return image && (!*image || is_image(i, *ret) || (repo && build_image_same_repo(i, image))) ? t : NULL;
}

/* Names without digits are those that people give, and those of before; other images may be called the same. */
static const struct tmpl *find_loose(struct build_own *b, const struct build_image *i, const struct tmpl_tag **ret)
{
    if (!i->loose_name[0] || !i->loose_tag[0])
        return NULL;
    const struct tmpl *t = find_row(b, i->loose_name, i->loose_tag, ret);
    if ((!t || !*ret) && i->plain)
        t = find_row(b, i->loose_name, "default", ret);
    if (!t || !*ret || tmpl_image(*ret)[0])
        return NULL;
    build_log_add(&b->b.log, "base", BUILD_INFO, "%.200s is here what somebody called %s:%s", i->ref, i->loose_name,
                  (*ret)->tag);
    return t;
}

/* A name alone means `latest`, as everywhere, or else what it means for sandboxes: `default`. */
const struct tmpl *build_image_find(struct build_own *b, const struct build_image *i, const struct tmpl_tag **ret)
{
    if (i->digest[0])
        return find_digest(b, i, ret);
    const struct tmpl *t = find_tag(b, i, i->tag, false, ret);
    if (!t && i->plain)
        t = find_tag(b, i, "default", true, ret);
    bool loose = strcmp(i->name, i->loose_name) != 0 || strcmp(i->tag, i->loose_tag) != 0;
    return t || !loose ? t : find_loose(b, i, ret);
}
