/* Finds the template that is the image which a build names. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "builds/builds-int.h"

static const struct template *image_find_row(struct build_own *b, const char *name, const char *tag,
                                             const struct template_tag **ret)
{
    _cleanup_free_ char *full = xasprintf("%s:%s", name, tag);
    const struct template *t = template_find(b->builds->templates, b->b.tenant, full, ret);
    bool ours = t && (t->tenant == b->b.tenant || !t->tenant); /* never another tenant's template of that name */
    if (ours && *ret && template_kind_of(t, *ret) != TEMPLATE_IMPORTED)
        *ret = NULL;
    return ours ? t : NULL;
}

static bool image_is_tag(const struct build_image *i, const struct template_tag *tag)
{
    return build_image_is(i, template_image(tag), tag->origin ? tag->origin->manifest : "");
}

/* Finds an image by its digest under any tag. Tags that users chose have no known digest. */
static const struct template *image_find_digest(struct build_own *b, const struct build_image *i,
                                                const struct template_tag **ret)
{
    const struct template *t = image_find_row(b, i->name, i->tag, ret);
    for (size_t k = 0; t && k < t->ntags; k++)
        if (image_is_tag(i, &t->tags[k])) {
            *ret = &t->tags[k];
            return t;
        }
    return NULL;
}

/* Finds an image that was fetched by this reference, or a template that a user gave this name. `repo`: with any tag. */
static const struct template *image_find_tag(struct build_own *b, const struct build_image *i, const char *tag,
                                             bool repo, const struct template_tag **ret)
{
    const struct template *t = image_find_row(b, i->name, tag, ret);
    const char *image = t && *ret ? template_image(*ret) : NULL;
    return image && (!*image || image_is_tag(i, *ret) || (repo && build_image_same_repo(i, image))) ? t : NULL;
}

/* Finds by the name without digits, which users give and older versions wrote; it may belong to another image. */
static const struct template *image_find_loose(struct build_own *b, const struct build_image *i,
                                               const struct template_tag **ret)
{
    if (!i->loose_name[0] || !i->loose_tag[0])
        return NULL;
    const struct template *t = image_find_row(b, i->loose_name, i->loose_tag, ret);
    if ((!t || !*ret) && i->plain)
        t = image_find_row(b, i->loose_name, "default", ret);
    if (!t || !*ret || template_image(*ret)[0])
        return NULL;
    build_log_add(&b->b.log, "base", BUILD_INFO, "%.200s is taken from the template that a user named %s:%s", i->ref,
                  i->loose_name, (*ret)->tag);
    return t;
}

/* A name without a tag means `latest`, as in registries, or else `default`, as for sandboxes. */
const struct template *build_image_find(struct build_own *b, const struct build_image *i,
                                        const struct template_tag **ret)
{
    if (i->digest[0])
        return image_find_digest(b, i, ret);
    const struct template *t = image_find_tag(b, i, i->tag, false, ret);
    if (!t && i->plain)
        t = image_find_tag(b, i, "default", true, ret);
    bool loose = strcmp(i->name, i->loose_name) != 0 || strcmp(i->tag, i->loose_tag) != 0;
    return t || !loose ? t : image_find_loose(b, i, ret);
}
