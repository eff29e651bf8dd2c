#include "tests/lib/unit.h"

#include "guest/code/lines.h"

/* The lines for one message. */
static const char *said(struct lines *l, struct buf *b, const char *type, const char *content)
{
    json_t *root = json_loads(content, 0, NULL);
    assert_non_null(root);
    const struct wire_msg m = {.content = root, .type = type, .parent_id = "x"};
    size_t before = b->n;
    lines_add_message(l, &m, b);
    json_decref(root);
    return buf_str(b) + before;
}

static void results_have_the_names_that_clients_know(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct lines l = {0};
    assert_string_equal(said(&l, &b, "execute_input", "{\"execution_count\":3}"),
                        "{\"type\":\"number_of_executions\",\"execution_count\":3}\n");
    assert_string_equal(
        said(&l, &b, "execute_result", "{\"data\":{\"text/plain\":\"'a'\",\"image/png\":\"iVBO\",\"e2b/data\":null}}"),
        "{\"type\":\"result\",\"is_main_result\":true,\"text\":\"a\",\"png\":\"iVBO\",\"extra\":{}}\n");
    assert_string_equal(said(&l, &b, "display_data", "{\"data\":{\"a/b\":1,\"type\":2}}"),
                        "{\"type\":\"result\",\"is_main_result\":false,\"a/b\":1,\"extra\":{\"a/b\":1,\"type\":2}}\n");
    assert_string_equal(said(&l, &b, "update_display_data", "{\"data\":{\"text/plain\":\"a\"}}"), "");
    assert_non_null(strstr(said(&l, &b, "stream", "{\"name\":\"stderr\",\"text\":\"e\"}"),
                           "{\"type\":\"stderr\",\"text\":\"e\",\"timestamp\""));
    assert_string_equal(said(&l, &b, "stream", "{\"name\":\"stdout\",\"text\":5}"), "");
}

static void only_the_first_error_counts_and_has_no_colours(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct lines l = {0};
    assert_string_equal(
        said(&l, &b, "error",
             "{\"ename\":\"E\",\"evalue\":\"v\",\"traceback\":[\"\\u001b[0;31mred\\u001b[0m\",\" b\\u001b[\"]}"),
        "{\"type\":\"error\",\"name\":\"E\",\"value\":\"v\",\"traceback\":\"red\\n b\"}\n");
    assert_string_equal(said(&l, &b, "execute_reply", "{\"status\":\"error\",\"ename\":\"E\",\"evalue\":\"v\"}"), "");
    assert_true(l.replied && !l.idle);
    said(&l, &b, "status", "{\"execution_state\":\"busy\"}");
    assert_false(l.idle);
    said(&l, &b, "status", "{\"execution_state\":\"idle\"}");
    assert_true(l.idle);
    struct lines other = {0};
    assert_non_null(strstr(said(&other, &b, "execute_reply", "{\"status\":\"aborted\"}"), "ExecutionAborted"));
}

static void a_cell_cannot_write_without_limit(void **state)
{
    (void)state;
    size_t n = 8 * 1024 * 1024;
    char *text = malloc(n + 1);
    struct lines l = {0};
    _cleanup_buf_ struct buf b = {0};
    assert_non_null(text);
    memset(text, 'x', n);
    text[n] = '\0';
    json_t *content = json_pack("{ss ss}", "name", "stdout", "text", text);
    const struct wire_msg m = {.content = content, .type = "stream", .parent_id = "x"};
    for (int i = 0; i < 10; i++) {
        buf_done(&b);
        lines_add_message(&l, &m, &b);
        assert_int_equal(l.full, i >= 7);
        if (i >= 7)
            assert_int_equal(b.n, 0);
    }
    lines_add_stop(&l, "variables are lost", &b);
    assert_non_null(strstr(buf_str(&b), "OutputLimitExceeded"));
    assert_non_null(strstr(buf_str(&b), "write it to a file; variables are lost\""));
    json_decref(content);
    free(text);
}

static void a_cell_that_is_stopped_has_one_error_at_its_end(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = {0};
    struct lines l = {0};
    lines_add_stop(&l, NULL, &b);
    assert_int_equal(b.n, 0);
    lines_stop(&l, "ExecutionTimeout", "1 s");
    assert_string_equal(said(&l, &b, "error", "{\"ename\":\"KeyboardInterrupt\",\"evalue\":\"\"}"), "");
    assert_non_null(strstr(said(&l, &b, "stream", "{\"name\":\"stdout\",\"text\":\"late\"}"), "late"));
    size_t before = b.n;
    lines_add_stop(&l, NULL, &b);
    assert_string_equal(buf_str(&b) + before,
                        "{\"type\":\"error\",\"name\":\"ExecutionTimeout\",\"value\":\"1 s\",\"traceback\":\"\"}\n");
    before = b.n;
    lines_add_stop(&l, NULL, &b);
    lines_add_error(&l, "Other", "", &b);
    assert_int_equal(b.n, before);
    /* An error that came first stays the only one. */
    struct lines other = {.failed = true};
    lines_stop(&other, "ExecutionTimeout", "1 s");
    lines_add_stop(&other, NULL, &b);
    assert_int_equal(b.n, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_have_the_names_that_clients_know),
        cmocka_unit_test(only_the_first_error_counts_and_has_no_colours),
        cmocka_unit_test(a_cell_cannot_write_without_limit),
        cmocka_unit_test(a_cell_that_is_stopped_has_one_error_at_its_end),
    };
    return cmocka_run_group_tests_name("code/lines", tests, NULL, NULL);
}
