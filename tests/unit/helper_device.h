/* What the devices under test support, for tests that run on the one that QN_TEST_DEVICE names. */
#ifndef QN_TESTS_HELPER_DEVICE_H
#define QN_TESTS_HELPER_DEVICE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool is_vulkan(const char *device)
{
    return !strncmp(device, "vulkan", 6);
}

/* Returns whether the device runs a golden model with this cache format. Vulkan devices have no AURA codes.
 * QN_TEST_MODEL: models with this text in their names alone, on devices that take minutes for all. */
static inline bool device_runs(const char *device, const char *model, const char *kv)
{
    const char *only = getenv("QN_TEST_MODEL");
    if (only && !strstr(model, only))
        return false;
    return !is_vulkan(device) || !strcmp(kv, "f16");
}

/* Returns whether a row has the same bits in a step of any other rows. */
static inline bool device_has_same_bits(const char *device)
{
    return is_vulkan(device) || !strcmp(device, "cpu");
}

#endif
