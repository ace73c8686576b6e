/* The end of a test program where no Vulkan driver is there: drivers that compute on the CPU are taken here. */
#ifndef QN_TESTS_HELPER_VULKAN_H
#define QN_TESTS_HELPER_VULKAN_H

#include "helper_test.h"

#include "vulkan/backend.h"

#include <stdio.h>
#include <stdlib.h>

/* Runs all tests, and returns what main() returns: 77, skipped, without a driver, unless QN_VULKAN_REQUIRED is set. */
static inline int run_tests_on_vulkan(void)
{
    enum { SKIPPED = 77 };
    const char *sanitize = getenv("QN_SANITIZE");
    int n;
    setenv("QN_VULKAN_CPU", "1", 1);
    if (sanitize && *sanitize) {
        puts("skipped: sanitizers find faults of drivers");
        return SKIPPED;
    }
    if (qn_vulkan_backend.count(&n) == QN_ERR_UNSUPPORTED && !getenv("QN_VULKAN_REQUIRED")) {
        printf("skipped: %s\n", qn_error_text());
        return SKIPPED;
    }
    return run_all_tests();
}

#endif
