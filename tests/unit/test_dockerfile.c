/* Dockerfiles as steps, and the files of a context. */
#include "cli/files/dockerfile.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/mem.h"
#include "cli/files/context.h"
#include "tests/lib/unit.h"

static struct dockerfile d;
static struct err err;

static int parse_with(const char *text, const struct strv *args)
{
    dockerfile_done(&d);
    memset(&err, 0, sizeof err);
    return dockerfile_parse(text, strlen(text), "Dockerfile", args, NULL, &d, &err);
}
static int parse(const char *text)
{
    struct strv none = {0};
    return parse_with(text, &none);
}
static int done(void **state)
{
    (void)state;
    dockerfile_done(&d);
    return 0;
}

/* Step i, of those behind the first two (USER root, WORKDIR /), as "TYPE|arg|arg". */
static const char *step(size_t i)
{
    static char text[1024];
    i += 2;
    if (i >= d.nsteps)
        return "none";
    size_t n = (size_t)snprintf(text, sizeof text, "%s", dockerfile_type_name(d.steps[i].type));
    for (size_t k = 0; k < d.steps[i].args.n; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "|%s", d.steps[i].args.v[k]);
    return text;
}

static int parse_target(const char *text, const char *target)
{
    struct strv none = {0};
    dockerfile_done(&d);
    memset(&err, 0, sizeof err);
    return dockerfile_parse(text, strlen(text), "Dockerfile", &none, target, &d, &err);
}

static const char stages[] =
    "ARG V=12\nFROM debian:$V AS build\nARG V\nENV E=1\nRUN make $V\nCMD [\"a\"]\n"
    "FROM other AS unused\nCOPY --from=third:1 /x /y\n"
    "FROM Build\nUSER me\nRUN echo $E\n"
    "FROM last AS last\nCOPY --from=img:2 --chown=u /a/../b c/\nCOPY --from=2 /d e\nCOPY f g\n";

static void only_the_stages_that_are_needed_are_left(void **state)
{
    (void)state;
    assert_int_equal(parse_target(stages, NULL), 0);
    assert_int_equal(d.nstages, 4);
    assert_string_equal(d.stages[0].from, "img:2"); /* images first: no FROM */
    assert_int_equal(d.stages[0].end, 0);
    assert_string_equal(d.stages[1].from, "debian:12");
    assert_string_equal(step(1), "RUN|export V=12; make $V");
    assert_null(d.stages[2].from);
    assert_int_equal(d.stages[2].from_stage, 1);
    assert_string_equal(d.stages[3].name, "last");
    assert_int_equal(d.stages[3].end, d.nsteps);
    size_t at = d.stages[2].end; /* USER root, WORKDIR / are the two that step() passes over */
    assert_string_equal(step(at), "COPY|b|c/|u|");
    assert_int_equal(d.steps[at + 2].from, 0);
    assert_int_equal(d.steps[at + 3].from, 2);
    assert_int_equal(d.steps[at + 4].from, -1);
    assert_string_equal(step(at + 3), "USER|user");
    assert_null(d.start);
}

static void a_target_is_found_by_its_name_or_number(void **state)
{
    (void)state;
    assert_int_equal(parse_target(stages, "2"), 0);
    assert_int_equal(d.nstages, 2);
    assert_int_equal(d.stages[1].from_stage, 0);
    assert_string_equal(d.start, "a");                                /* of the stage it starts from */
    assert_int_equal(d.steps[d.nsteps - 1].type, DOCKERFILE_WORKDIR); /* USER was said, WORKDIR was not */
    assert_int_equal(parse_target(stages, "BUILD"), 0);
    assert_int_equal(d.nstages, 1);
    assert_int_equal(parse_target(stages, "nobody"), -1);
    assert_non_null(strstr(err.msg, "there is no stage 'nobody' (--target); there are build, unused, last"));
    assert_int_equal(parse_target(stages, "7"), -1);
}

static void there_are_not_more_stages_than_the_limit(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf text = {0};
    for (int i = 0; i < DOCKERFILE_STAGES_MAX; i++)
        buf_adds(&text, "FROM x\n");
    assert_int_equal(parse(buf_str(&text)), 0);
    assert_int_equal(d.nstages, 1);
    buf_adds(&text, "COPY --from=y a b\n");
    assert_int_equal(parse(buf_str(&text)), -1);
    assert_non_null(strstr(err.msg, "Dockerfile:33: more than 32 stages"));
}

static void every_instruction_becomes_a_step(void **state)
{
    (void)state;
    assert_int_equal(
        parse("FROM debian:bookworm\nRUN apt-get update\nENV A=1 B=\"two words\"\nWORKDIR /app\nUSER agent\n"
              "COPY . /app/\nCMD [\"python\", \"a b.py\"]\n"),
        0);
    assert_string_equal(d.stages[0].from, "debian:bookworm");
    assert_string_equal(step(0), "RUN|apt-get update");
    assert_string_equal(step(1), "ENV|A|1|B|two words");
    assert_string_equal(step(2), "WORKDIR|/app");
    assert_string_equal(step(3), "USER|agent");
    assert_string_equal(step(4), "COPY|.|/app/|root|");
    assert_string_equal(step(5), "none");
    assert_string_equal(d.start, "python 'a b.py'");
}

static void without_user_and_workdir_the_template_is_for_user(void **state)
{
    (void)state;
    assert_int_equal(parse("FROM x\nRUN true"), 0);
    assert_string_equal(step(1), "USER|user");
    assert_string_equal(step(2), "WORKDIR|/home/user");
    assert_null(d.start);
}

static void lines_go_on_behind_an_escape_and_comments_are_left_out(void **state)
{
    (void)state;
    assert_int_equal(parse("# a comment\n\nFROM x\nRUN a \\\n  # not this\n\n  && b \\  \n  && c\n"), 0);
    assert_string_equal(step(0), "RUN|a   && b   && c");
    assert_int_equal(d.steps[2].line, 4);
    assert_int_equal(parse("# escape=`\nFROM x\nRUN a `\n b\nENV P=C:\\d\n"), 0);
    assert_string_equal(step(0), "RUN|a  b");
    assert_string_equal(step(1), "ENV|P|C:\\d");
    assert_int_equal(parse("from x\r\nrun a\r\n"), 0);
    assert_string_equal(step(0), "RUN|a");
    assert_int_equal(parse("FROM x\nRUN a \\"), 0);
    assert_string_equal(step(0), "RUN|a ");
}

static void declared_variables_are_put_in_and_others_left_to_the_node(void **state)
{
    (void)state;
    assert_int_equal(parse("ARG V=12\nFROM debian:$V\nARG W=x\nENV A=${W}y B=$A C=\"$W z\" D='$W' E=\\$W F=$PATH:/b\n"
                           "ENV G=${NO:-def} H=${W:+set} I=$A\nWORKDIR /$W\nCOPY a $W/\n"),
                     0);
    assert_string_equal(d.stages[0].from, "debian:12");
    assert_string_equal(step(0), "ENV|A|xy|B|${A}|C|x z|D|\\$W|E|\\$W|F|${PATH}:/b");
    assert_string_equal(step(1), "ENV|G|def|H|set|I|xy");
    assert_string_equal(step(2), "WORKDIR|/x");
    assert_string_equal(step(3), "COPY|a|x/|root|");
}

static void args_hold_for_commands_and_not_for_the_template(void **state)
{
    (void)state;
    struct strv given = {0};
    strv_add(&given, "TOKEN=it's");
    assert_int_equal(parse_with("FROM x\nARG TOKEN\nARG N=1\nRUN echo $TOKEN\nENV N=2\nRUN b\n", &given), 0);
    assert_string_equal(step(0), "RUN|export TOKEN='it'\\''s' N=1; echo $TOKEN");
    assert_string_equal(step(2), "RUN|export TOKEN='it'\\''s'; b");
    strv_done(&given);
}

static void an_exec_form_is_quoted_and_a_shell_form_left_alone(void **state)
{
    (void)state;
    assert_int_equal(parse("FROM x\nRUN [\"sh\", \"-c\", \"echo $HOME\"]\nRUN [ -e /x ] || true\n"
                           "RUN --mount=type=cache,target=/c make\n"),
                     0);
    assert_string_equal(step(0), "RUN|sh -c 'echo $HOME'");
    assert_string_equal(step(1), "RUN|[ -e /x ] || true");
    assert_string_equal(step(2), "RUN|make");
    assert_int_equal(d.notes.n, 1);
}

static void each_source_of_a_copy_is_a_step(void **state)
{
    (void)state;
    assert_int_equal(
        parse("FROM x\nCOPY --chown=a:b --chmod=755 x y /d/\nCOPY [\"a b\", \"/c\"]\nADD ./q/../r /r\nCOPY /abs .\n"),
        0);
    assert_string_equal(step(0), "COPY|x|/d/|a:b|755");
    assert_string_equal(step(1), "COPY|y|/d/|a:b|755");
    assert_string_equal(step(2), "COPY|a b|/c|root|");
    assert_string_equal(step(3), "COPY|r|/r|root|");
    assert_string_equal(step(4), "COPY|abs|.|root|");
}

static void entrypoint_and_cmd_become_the_start_command(void **state)
{
    (void)state;
    assert_int_equal(parse("FROM x\nENTRYPOINT [\"run\"]\nCMD [\"-v\", \"a b\"]"), 0);
    assert_string_equal(d.start, "run -v 'a b'");
    assert_int_equal(parse("FROM x\nENTRYPOINT run it\nCMD [\"-v\"]"), 0);
    assert_string_equal(d.start, "run it");
    assert_int_equal(parse("FROM x\nCMD a\nCMD b && c"), 0);
    assert_string_equal(d.start, "b && c");
    assert_int_equal(parse("FROM x\nCMD []"), 0);
    assert_null(d.start);
}

static void what_has_no_meaning_is_a_note(void **state)
{
    (void)state;
    assert_int_equal(
        parse("FROM --platform=linux/arm64 x AS one\nEXPOSE 80\nLABEL a=b\nVOLUME /v\nHEALTHCHECK NONE\nUSER a:b\n"),
        0);
    assert_int_equal(d.notes.n, 6);
    assert_string_equal(d.notes.v[1], "line 2: EXPOSE has no meaning for a template and is ignored");
}

static void every_error_names_its_line_and_what_is_right(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } wrong[] = {
        {"", "Dockerfile:1: there is no FROM"},
        {"RUN x", "Dockerfile:1: RUN before FROM"},
        {"FROM x AS a\n\nFROM y AS A", "Dockerfile:3: a second stage 'A' (the first is on line 1)"},
        {"FROM x AS 1", "Dockerfile:1: '1' is not a name for a stage"},
        {"FROM x\nCOPY --from=a b c\nFROM y AS a",
         "Dockerfile:3: line 2 copies from stage 'a', which starts only here"},
        {"FROM x\nCOPY --from=0 b c", "Dockerfile:2: COPY --from=0 names the stage it stands in"},
        {"FROM x\nCOPY --from=1 b c\nFROM y", "Dockerfile:2: COPY --from=1: no earlier stage has this number"},
        {"FROM x\nCOPY --from= b c", "Dockerfile:2: COPY --from needs a stage or an image"},
        {"FROM x\nCOPY --from=scratch b c", "Dockerfile:2: FROM scratch"},
        {"FROM x\nADD --from=y b c", "Dockerfile:2: ADD has no --from"},
        {"FROM x\nCOPY --from=y ../b c", "Dockerfile:2: COPY of '../b' leads out of the stage"},
        {"FROM scratch", "Dockerfile:1: FROM scratch"},
        {"FROM $V", "Dockerfile:1: a variable in '${V}' has no value"},
        {"FROM a b", "Dockerfile:1: FROM has one image"},
        {"FROM x\nRUM y", "Dockerfile:2: RUM is not an instruction; did you mean RUN?"},
        {"FROM x\nRUN cat <<EOF\nhello\nEOF\n", "Dockerfile:2: heredocs are not supported"},
        {"FROM x\nRUN --mount=type=secret,id=a b", "Dockerfile:2: RUN --mount=type=secret,id=a is not supported"},
        {"FROM x\nCOPY a", "Dockerfile:2: COPY has one source or more, then the destination"},
        {"FROM x\nCOPY a b c", "Dockerfile:2: with several sources the destination is a directory: write c/"},
        {"FROM x\nCOPY ../a b", "Dockerfile:2: COPY of '../a' leads out of the context"},
        {"FROM x\nCOPY a/../../b c", "Dockerfile:2: COPY of 'a/../../b' leads out of the context"},
        {"FROM x\nCOPY --chmod=u+x a b", "Dockerfile:2: --chmod must be octal"},
        {"FROM x\nADD http://h/f /f", "Dockerfile:2: ADD of http://h/f: only files of the context"},
        {"FROM x\nADD a.tgz /f", "Dockerfile:2: ADD would unpack a.tgz"},
        {"FROM x\nENV A", "Dockerfile:2: ENV has NAME=VALUE"},
        {"FROM x\nENV 1A=b", "Dockerfile:2: '1A' is not a name for a variable"},
        {"FROM x\nENV A=\"b", "Dockerfile:2: an unclosed \""},
        {"FROM x\nENV A=${B", "Dockerfile:2: '${B' is not a variable"},
        {"FROM x\nUSER 1000", "Dockerfile:2: USER 1000: a number names no user here"},
        {"FROM x\nSHELL [\"zsh\"]", "Dockerfile:2: SHELL is not supported"},
        {"FROM x\nONBUILD RUN y", "Dockerfile:2: ONBUILD is not supported"},
        {"FROM x\nWORKDIR", "Dockerfile:2: WORKDIR has one path"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(parse(wrong[i].text), -1);
        if (strncmp(err.msg, wrong[i].want, strlen(wrong[i].want)) != 0)
            fail_msg("'%s' gives '%s', not '%s'", wrong[i].text, err.msg, wrong[i].want);
    }
}

static void too_many_steps_are_refused(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf text = {0};
    buf_adds(&text, "FROM x\n");
    for (int i = 0; i < DOCKERFILE_STEPS_MAX; i++)
        buf_adds(&text, "RUN a\n");
    assert_int_equal(parse(buf_str(&text)), -1);
    assert_non_null(strstr(err.msg, "more than 200 steps"));
}

/* --- the context -------------------------------------------------------------------------------------------------- */

static void the_last_pattern_that_fits_decides_what_is_ignored(void **state)
{
    (void)state;
    struct strv p = {0};
    context_ignore_read("# c\n*.log\n/build/\n!build/keep.txt\n**/tmp\n  sub/*  \n\n!sub/ok\nsub/ok/not\n", &p);
    assert_true(context_ignored(&p, "a.log"));
    assert_false(context_ignored(&p, "d/a.log"));
    assert_true(context_ignored(&p, "build"));
    assert_true(context_ignored(&p, "build/x/y"));
    assert_false(context_ignored(&p, "build/keep.txt"));
    assert_true(context_ignored(&p, "a/b/tmp/c"));
    assert_true(context_ignored(&p, "sub/no"));
    assert_false(context_ignored(&p, "sub/ok/yes"));
    assert_true(context_ignored(&p, "sub/ok/not"));
    strv_done(&p);
}

static char *make_tree(void)
{
    char *dir = xstrdup("/tmp/hutch-context-XXXXXX");
    assert_non_null(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_int_equal(mkdirat(fd, "src", 0755), 0);
    assert_int_equal(mkdirat(fd, "src/deep", 0755), 0);
    static const char *const files[] = {"a.txt", "b.txt", "src/main.py", "src/deep/x", ".dockerignore"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        int f = openat(fd, files[i], O_WRONLY | O_CREAT, 0644);
        const char *text = i == 4 ? "b.*\n" : "hello\n";
        assert_int_equal(fd_write_all(f, text, strlen(text)), 0);
        assert_int_equal(fchmod(f, 0644), 0);
        close(f);
    }
    assert_int_equal(symlinkat("main.py", fd, "src/link"), 0);
    close(fd);
    return dir;
}

static void the_files_of_a_source_are_sorted_hashed_and_archived(void **state)
{
    (void)state;
    char *dir = make_tree();
    struct context c;
    struct strv files = {0}, all = {0}, glob = {0}, none = {0};
    char hash[SHA256_HEX], again[SHA256_HEX];
    assert_int_equal(context_open(&c, dir, &err), 0);
    assert_int_equal(context_files(&c, "src", &files, &err), 0);
    assert_int_equal(files.n, 5);
    assert_string_equal(files.v[0], "src");
    assert_string_equal(files.v[1], "src/deep");
    assert_string_equal(files.v[2], "src/deep/x");
    assert_string_equal(files.v[4], "src/main.py");
    assert_int_equal(context_files(&c, ".", &all, &err), 0);
    assert_int_equal(all.n, 7);
    assert_int_equal(context_files(&c, "*.txt", &glob, &err), 0);
    assert_int_equal(glob.n, 1);
    assert_string_equal(glob.v[0], "a.txt");
    assert_int_equal(context_files(&c, "b.txt", &none, &err), -1);
    assert_int_equal(context_files(&c, "gone", &none, &err), -1);
    assert_non_null(strstr(err.msg, "there is no gone in the context"));
    assert_int_equal(context_hash(&c, "a.txt", "/x", &glob, hash, &err), 0);
    sha256_hex("COPY a.txt /xa.txt331886hello\n", 30, again); /* mode 0100644 is 33188, size 6 */
    assert_string_equal(hash, again);
    int out = open(dir, O_TMPFILE | O_RDWR, 0600);
    assert_true(out >= 0);
    assert_int_equal(context_tar(&c, &files, out, &err), 0);
    assert_int_equal(lseek(out, 0, SEEK_END) % 512, 0);
    close(out);
    context_done(&c);
    strv_done(&files);
    strv_done(&all);
    strv_done(&glob);
    strv_done(&none);
    static const char *const gone[] = {"src/deep/x", "src/link", "src/main.py", "a.txt", "b.txt", ".dockerignore"};
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        assert_int_equal(unlinkat(fd, gone[i], 0), 0);
    assert_int_equal(unlinkat(fd, "src/deep", AT_REMOVEDIR), 0);
    assert_int_equal(unlinkat(fd, "src", AT_REMOVEDIR), 0);
    close(fd);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_instruction_becomes_a_step, done),
        cmocka_unit_test_teardown(only_the_stages_that_are_needed_are_left, done),
        cmocka_unit_test_teardown(a_target_is_found_by_its_name_or_number, done),
        cmocka_unit_test_teardown(there_are_not_more_stages_than_the_limit, done),
        cmocka_unit_test_teardown(without_user_and_workdir_the_template_is_for_user, done),
        cmocka_unit_test_teardown(lines_go_on_behind_an_escape_and_comments_are_left_out, done),
        cmocka_unit_test_teardown(declared_variables_are_put_in_and_others_left_to_the_node, done),
        cmocka_unit_test_teardown(args_hold_for_commands_and_not_for_the_template, done),
        cmocka_unit_test_teardown(an_exec_form_is_quoted_and_a_shell_form_left_alone, done),
        cmocka_unit_test_teardown(each_source_of_a_copy_is_a_step, done),
        cmocka_unit_test_teardown(entrypoint_and_cmd_become_the_start_command, done),
        cmocka_unit_test_teardown(what_has_no_meaning_is_a_note, done),
        cmocka_unit_test_teardown(every_error_names_its_line_and_what_is_right, done),
        cmocka_unit_test_teardown(too_many_steps_are_refused, done),
        cmocka_unit_test(the_last_pattern_that_fits_decides_what_is_ignored),
        cmocka_unit_test(the_files_of_a_source_are_sorted_hashed_and_archived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
