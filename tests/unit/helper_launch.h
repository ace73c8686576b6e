/* Assertions on launches of GPU kernels. */
#ifndef QN_TESTS_HELPER_LAUNCH_H
#define QN_TESTS_HELPER_LAUNCH_H

#include "helper_assert.h"

#include "cuda/kernels/launch.h"

static inline void assert_defines(const qn_launch *launch, const char *expected)
{
    char defines[QN_GPU_DEFINES_MAX];
    qn_gpu_defines(&launch->variant, defines);
    assert_string_equal(defines, expected);
}

#endif
