/* unit.h - what every unit test includes: cmocka with the headers it forgets to include itself. */
#ifndef HUTCH_TESTS_LIB_UNIT_H
#define HUTCH_TESTS_LIB_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After the others: it uses their types without including them. */
#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"

#endif
