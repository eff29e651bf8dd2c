/* gen-filters - writes the built-in seccomp programs as C (default), or the reference page of the filter (--docs).
 *
 * Runs at build time, so that starting a sandbox loads bytes instead of compiling a filter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/run/filter-int.h"

static void print_program(unsigned flags)
{
    size_t n = 0;
    _cleanup_free_ struct sock_filter *v = filter_compile(flags, NULL, &n);
    printf("static const struct sock_filter program_%02x[] = {", flags);
    for (size_t i = 0; i < n; i++)
        printf("%s{0x%02x,%u,%u,0x%x},", i % 6 ? "" : "\n", v[i].code, v[i].jt, v[i].jf, v[i].k);
    printf("\n};\n");
}

static void print_source(void)
{
    printf("/* Written by gen-filters; the programs for every set of flags without custom rules. */\n"
           "#include \"policy/run/filter-int.h\"\n");
    for (unsigned f = 0; f <= FILTER_FLAG_ALL; f++)
        if (rules_builtin_flags(f))
            print_program(f);
    printf("const struct filter_builtin filter_builtins[] = {\n");
    size_t n = 0;
    for (unsigned f = 0; f <= FILTER_FLAG_ALL; f++)
        if (rules_builtin_flags(f) && ++n)
            printf("{0x%02x, program_%02x, sizeof program_%02x / sizeof program_%02x[0]},\n", f, f, f, f);
    printf("};\nconst size_t nfilter_builtins = %zu;\n", n);
}

int main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--docs") != 0)) {
        fprintf(stderr, "usage: gen-filters [--docs]\n");
        return 120;
    }
    if (argc == 2) {
        _cleanup_buf_ struct buf b = {0};
        filter_add_docs(&b);
        fputs(buf_str(&b), stdout);
    } else {
        print_source();
    }
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
