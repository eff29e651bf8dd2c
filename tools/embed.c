/* embed - prints a file as a C array: embed FILE HEADER NAME. Used when the program is built. */
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 4) {
        (void)fprintf(stderr, "usage: embed FILE HEADER NAME\n");
        return 2;
    }
    FILE *f = fopen(argv[1], "rb");
    if (!f) {
        perror(argv[1]);
        return 1;
    }
    (void)printf("#include \"%s\"\n\nconst char %s[] = {", argv[2], argv[3]);
    unsigned long n = 0;
    for (int c; (c = getc(f)) != EOF; n++)
        (void)printf("%s%d,", n % 24 ? "" : "\n    ", c < 128 ? c : c - 256);
    (void)printf("\n};\nconst unsigned long %s_size = %lu;\n", argv[3], n);
    return ferror(f) || fclose(f) != 0;
}
