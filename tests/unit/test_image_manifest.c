#include "tests/lib/unit.h"

#include "image/image-int.h"

#define A      "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B      "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define D(d)   "{\"mediaType\":\"m\",\"digest\":\"" d "\",\"size\":7}"
#define OCI    "application/vnd.oci.image.index.v1+json"
#define DOCKER "application/vnd.docker.distribution.manifest.list.v2+json"

static void check_refused(int rc, const struct err *err, enum image_failure f, const char *part)
{
    assert_int_equal(rc, -1);
    if (image_failure_of(err) != f || !strstr(err->msg, part))
        fail_msg("%d: %s", (int)image_failure_of(err), err->msg);
}

static void an_image_has_a_configuration_and_layers(void **state)
{
    static const char text[] = "{\"schemaVersion\":2,\"config\":" D(A) ",\"layers\":[" D(B) "," D(A) "]}";
    struct manifest m;
    struct err err = {0};
    (void)state;
    assert_int_equal(manifest_kind(text, sizeof text - 1, "", &err), MANIFEST_IMAGE);
    assert_int_equal(manifest_image(text, sizeof text - 1, &m, &err), 0);
    assert_int_equal(m.n, 2);
    assert_int_equal(m.config.digest[0], 0xaa);
    assert_int_equal(m.layer[0].digest[31], 0xbb);
    assert_int_equal(m.layer[0].size, 7);
    manifest_done(&m);
}

static void manifests_that_lack_something_are_refused(void **state)
{
    static const char *const cases[][2] = {
        {"", "not JSON"},
        {"[1]", "configuration"},
        {"{\"config\":" D(A) "}", "no layers"},
        {"{\"config\":" D(A) ",\"layers\":[]}", "no layers"},
        {"{\"config\":{\"digest\":\"" A "\"},\"layers\":[" D(A) "]}", "no size"},
        {"{\"config\":{\"digest\":\"sha256:zz\",\"size\":1},\"layers\":[" D(A) "]}", "digest \"sha256:zz\""},
        {"{\"config\":" D(A) ",\"layers\":[{\"digest\":\"sha512:00\",\"size\":1}]}", "layer 1 has the digest"},
        {"{\"config\":" D(A) ",\"layers\":[{\"digest\":\"" A "\",\"size\":-1}]}", "layer 1 has no size"},
        {"{\"config\":" D(A) ",\"config\":" D(B) ",\"layers\":[" D(A) "]}", "not JSON"},
        {"{\"config\":" D(
             A) ",\"layers\":[{\"mediaType\":\"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip\","
                "\"digest\":\"" A "\",\"size\":1}]}",
         "not in the image itself"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct manifest m;
        struct err err = {0};
        check_refused(manifest_image(cases[i][0], strlen(cases[i][0]), &m, &err), &err, IMAGE_BAD_DATA, cases[i][1]);
        manifest_done(&m);
    }
}

static void more_layers_than_the_limit_are_too_large(void **state)
{
    _cleanup_buf_ struct buf b = {0};
    struct manifest m;
    struct err err = {0};
    (void)state;
    buf_adds(&b, "{\"config\":" D(A) ",\"layers\":[" D(A));
    for (size_t i = 1; i < IMAGE_LAYERS_MAX; i++)
        buf_adds(&b, "," D(A));
    size_t n = b.n;
    buf_adds(&b, "]}");
    assert_int_equal(manifest_image(b.p, b.n, &m, &err), 0);
    assert_int_equal(m.n, IMAGE_LAYERS_MAX);
    manifest_done(&m);
    b.n = n;
    buf_adds(&b, "," D(A) "]}");
    check_refused(manifest_image(b.p, b.n, &m, &err), &err, IMAGE_TOO_LARGE, "129 layers");
    manifest_done(&m);
}

static void kinds_are_told_by_media_type_and_by_fields(void **state)
{
    static const char list[] = "{\"schemaVersion\":2,\"manifests\":[]}";
    static const char own[] = "{\"schemaVersion\":2,\"mediaType\":\"" DOCKER "\",\"manifests\":[]}";
    static const char old[] = "{\"schemaVersion\":1,\"fsLayers\":[]}";
    static const char other[] = "{\"hello\":1}";
    struct err err = {0};
    (void)state;
    assert_int_equal(manifest_kind(list, sizeof list - 1, "", &err), MANIFEST_LIST);
    assert_int_equal(manifest_kind(list, sizeof list - 1, OCI, &err), MANIFEST_LIST);
    assert_int_equal(manifest_kind(own, sizeof own - 1, "text/plain", &err), MANIFEST_LIST);
    check_refused(manifest_kind(old, sizeof old - 1, "", &err), &err, IMAGE_BAD_DATA, "schema 1");
    check_refused(manifest_kind(other, sizeof other - 1, "", &err), &err, IMAGE_BAD_DATA, "neither");
}

#define P(d, os, arch, name)                                                                    \
    "{\"digest\":\"" d "\",\"size\":1,\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch \
    "\"},\"annotations\":{"                                                                     \
    "\"org.opencontainers.image.ref.name\":\"" name "\"}}"
#define V(d, variant)  \
    "{\"digest\":\"" d \
    "\",\"size\":1,\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\",\"variant\":\"" variant "\"}}"
#define N(d, name) \
    "{\"digest\":\"" d "\",\"size\":1,\"annotations\":{\"org.opencontainers.image.ref.name\":\"" name "\"}}"
#define LIST(x) "{\"manifests\":[" x "]}"

static int choose(const char *text, const char *select, uint8_t *first, struct err *err)
{
    struct manifest_list l;
    const struct descriptor *d = NULL;
    int rc = manifest_list(text, strlen(text), &l, err);
    if (rc == 0)
        rc = manifest_choose(&l, select, &d, err);
    if (rc == 0)
        *first = d->digest[0];
    manifest_list_done(&l);
    return rc;
}

static void the_manifest_for_this_machine_is_chosen(void **state)
{
    struct err err = {0};
    uint8_t first = 0;
    (void)state;
    assert_int_equal(choose(LIST(P(A, "linux", "arm64", "") "," P(B, "linux", "amd64", "")), "", &first, &err), 0);
    assert_int_equal(first, 0xbb);
    assert_int_equal(choose(LIST(N(A, "x")), "", &first, &err), 0);
    assert_int_equal(first, 0xaa);
    /* An attestation is for no machine at all. */
    assert_int_equal(choose(LIST(P(A, "linux", "amd64", "") "," P(B, "unknown", "unknown", "")), "", &first, &err), 0);
    assert_int_equal(first, 0xaa);
    check_refused(choose(LIST(P(A, "linux", "arm64", "") "," P(B, "windows", "amd64", "")), "", &first, &err), &err,
                  IMAGE_NOT_FOUND, "linux/arm64, windows/amd64");
}

static void of_several_for_this_kind_of_machine_one_runs_everywhere(void **state)
{
    static const struct {
        const char *list;
        uint8_t first;
    } cases[] = {
        {LIST(V(A, "v2") "," P(B, "linux", "amd64", "")), 0xbb}, /* as AlmaLinux has it */
        {LIST(P(A, "linux", "amd64", "") "," V(B, "v3")), 0xaa},
        {LIST(V(A, "v3") "," V(B, "v2")), 0xbb},
        {LIST(V(A, "v2") "," V(B, "v1")), 0xbb},
        {LIST(V(A, "x") "," V(B, "v4")), 0xbb},
        {LIST(P(A, "linux", "amd64", "") "," P(B, "linux", "amd64", "")), 0xaa}, /* the first one */
        {LIST(P(A, "linux", "amd64", "n") "," P(B, "linux", "amd64", "n")), 0xaa},
    };
    struct err err = {0};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint8_t first = 0;
        if (choose(cases[i].list, "", &first, &err) < 0)
            fail_msg("%zu: %s", i, err.msg);
        assert_int_equal(first, cases[i].first);
    }
    check_refused(choose(LIST(P(A, "linux", "amd64", "a") "," P(B, "linux", "amd64", "b")), "", &(uint8_t){0}, &err),
                  &err, IMAGE_BAD_DATA, "several images (a, b)");
}

static void of_several_images_one_is_chosen_by_name(void **state)
{
    static const char two[] = LIST(N(A, "docker.io/library/a:1") "," N(B, "b"));
    struct err err = {0};
    uint8_t first = 0;
    (void)state;
    assert_int_equal(choose(two, "b", &first, &err), 0);
    assert_int_equal(first, 0xbb);
    assert_int_equal(choose(two, "1", &first, &err), 0);
    assert_int_equal(first, 0xaa);
    check_refused(choose(two, "", &first, &err), &err, IMAGE_BAD_DATA, "several images (docker.io/library/a:1, b)");
    check_refused(choose(two, "c", &first, &err), &err, IMAGE_NOT_FOUND, "no image called \"c\"");
    /* Two names of the same image are no question. */
    assert_int_equal(choose(LIST(N(A, "x") "," N(A, "y")), "", &first, &err), 0);
}

static void docker_save_names_its_files(void **state)
{
    static const char text[] =
        "[{\"Config\":\"c.json\",\"RepoTags\":[\"a:1\",\"a:2\"],\"Layers\":[\"x/layer.tar\",\"y\"]},"
        "{\"Config\":\"d.json\",\"RepoTags\":null,\"Layers\":[\"z\"]}]";
    struct docker_manifest d;
    struct err err = {0};
    (void)state;
    assert_int_equal(manifest_docker(text, sizeof text - 1, "a:2", &d, &err), 0);
    assert_string_equal(d.config, "c.json");
    assert_int_equal(d.n, 2);
    assert_string_equal(d.layer[0], "x/layer.tar");
    docker_manifest_done(&d);
    check_refused(manifest_docker(text, sizeof text - 1, "", &d, &err), &err, IMAGE_BAD_DATA, "several");
    check_refused(manifest_docker(text, sizeof text - 1, "b", &d, &err), &err, IMAGE_NOT_FOUND, "there are: a:1");
    check_refused(manifest_docker("{}", 2, "", &d, &err), &err, IMAGE_BAD_DATA, "not a list");
    check_refused(manifest_docker("[{}]", 4, "", &d, &err), &err, IMAGE_BAD_DATA, "no configuration");
}

static void a_configuration_says_what_its_layers_are(void **state)
{
    static const char good[] =
        "{\"os\":\"linux\",\"architecture\":\"amd64\",\"rootfs\":{\"diff_ids\":[\"" A "\",\"" B "\"]}}";
    static const char arm[] = "{\"os\":\"linux\",\"architecture\":\"arm64\",\"rootfs\":{\"diff_ids\":[\"" A "\"]}}";
    static const char bad[] = "{\"rootfs\":{\"diff_ids\":[7]}}";
    uint8_t ids[2][SHA256_BYTES];
    struct err err = {0};
    (void)state;
    assert_int_equal(manifest_config(good, sizeof good - 1, ids, 2, &err), 0);
    assert_int_equal(ids[1][5], 0xbb);
    check_refused(manifest_config(good, sizeof good - 1, ids, 1, &err), &err, IMAGE_BAD_DATA,
                  "has 1 layers, its configuration names 2");
    check_refused(manifest_config(arm, sizeof arm - 1, ids, 1, &err), &err, IMAGE_BAD_DATA, "linux/arm64");
    check_refused(manifest_config(bad, sizeof bad - 1, ids, 1, &err), &err, IMAGE_BAD_DATA, "diff_id of layer 1");
    check_refused(manifest_config(good, IMAGE_CONFIG_MAX + 1, ids, 2, &err), &err, IMAGE_TOO_LARGE, "at most");
}

static void the_sum_of_an_export_is_looked_at(void **state)
{
    static const char text[] = "{\"format\":\"hutch-export-1\",\"sum\":\"" A "\",\"layers\":[{}]}";
    static const char later[] = "{\"format\":\"hutch-export-9\",\"sum\":\"" A "\",\"layers\":[{}]}";
    uint8_t sum[SHA256_BYTES];
    struct err err = {0};
    (void)state;
    memset(sum, 0xaa, sizeof sum);
    assert_int_equal(manifest_hutch(text, sizeof text - 1, sum, 1, &err), 0);
    check_refused(manifest_hutch(text, sizeof text - 1, sum, 2, &err), &err, IMAGE_BAD_DATA, "names 1");
    check_refused(manifest_hutch(later, sizeof later - 1, sum, 1, &err), &err, IMAGE_BAD_DATA, "hutch-export-9");
    sum[0] = 0;
    check_refused(manifest_hutch(text, sizeof text - 1, sum, 1, &err), &err, IMAGE_BAD_DATA, "was changed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_has_a_configuration_and_layers),
        cmocka_unit_test(manifests_that_lack_something_are_refused),
        cmocka_unit_test(more_layers_than_the_limit_are_too_large),
        cmocka_unit_test(kinds_are_told_by_media_type_and_by_fields),
        cmocka_unit_test(the_manifest_for_this_machine_is_chosen),
        cmocka_unit_test(of_several_for_this_kind_of_machine_one_runs_everywhere),
        cmocka_unit_test(of_several_images_one_is_chosen_by_name),
        cmocka_unit_test(docker_save_names_its_files),
        cmocka_unit_test(a_configuration_says_what_its_layers_are),
        cmocka_unit_test(the_sum_of_an_export_is_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
