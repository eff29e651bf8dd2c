/* unit.h - what every unit test includes: cmocka with the headers it forgets to include itself. */
#ifndef HUTCH_TESTS_LIB_UNIT_H
#define HUTCH_TESTS_LIB_UNIT_H

/* clang-format off: cmocka needs these four before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"

#endif
