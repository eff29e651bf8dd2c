/* run-java.h - the trust stores of this machine's Java, with one more certificate. Java reads no bundle of certificates. */
#ifndef HUTCH_CLI_RUN_RUN_JAVA_H
#define HUTCH_CLI_RUN_RUN_JAVA_H

#include <stddef.h>

#include "base/buf.h"

enum { RUN_JAVA_STORES = 8 };

struct run_java {
    char *paths[RUN_JAVA_STORES]; /* real paths of the machine's stores */
    struct buf stores[RUN_JAVA_STORES];
    size_t n;
};

/* Finds the stores of the usual places, of JAVA_HOME and of the `java` in PATH, and makes them anew: what each holds, and
 * the certificate. `bundle` is for a store whose format hutch does not extend. */
void run_java_make(struct run_java *j, const struct buf *bundle, const struct buf *ca);

#endif
