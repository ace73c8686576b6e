/* Vulkan devices for the registry: counting, describing and opening them. */
#include "vulkan/backend.h"

#include "vulkan/executor/device.h"
#include "vulkan/runtime/instance.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static qn_status count(int *n)
{
    qn_vk_instance instance;
    const qn_status status = qn_vk_instance_open(&instance);
    *n = (int)instance.n_devices;
    qn_vk_instance_close(&instance);
    return status;
}

/* Copies what is known of a device, also of one that quern cannot use. */
static qn_status read_info(int ordinal, qn_vk_info *info)
{
    qn_vk_instance instance;
    const qn_vk_info *found;
    qn_status status = qn_vk_instance_open(&instance);
    if (status == QN_OK && ordinal >= 0 && (size_t)ordinal < instance.n_devices)
        *info = instance.devices[ordinal];
    else if (status == QN_OK)
        status = qn_vk_find_device(&instance, ordinal, &found);
    qn_vk_instance_close(&instance);
    return status;
}

static qn_status describe(int ordinal, char text[QN_DEVICE_TEXT_MAX])
{
    qn_vk_info info;
    QN_TRY(read_info(ordinal, &info));
    snprintf(text, QN_DEVICE_TEXT_MAX, "vulkan:%d, %.80s, %s, %.1f GiB, Vulkan %u.%u%s%s", ordinal, info.name,
             qn_vk_type_name(info.type), (double)info.memory_bytes / 0x1p30, VK_API_VERSION_MAJOR(info.api),
             VK_API_VERSION_MINOR(info.api), *info.unfit ? "; cannot be used: " : "", info.unfit);
    return QN_OK;
}

static qn_status memory_of(int ordinal, uint64_t *bytes)
{
    qn_vk_info info;
    QN_TRY(read_info(ordinal, &info));
    *bytes = info.memory_bytes;
    return QN_OK;
}

static struct {
    pthread_once_t once;
    bool is_automatic;
} first = { .once = PTHREAD_ONCE_INIT };

static void look_at_first(void)
{
    qn_vk_info info = { .type = VK_PHYSICAL_DEVICE_TYPE_OTHER };
    first.is_automatic =
        read_info(0, &info) == QN_OK && info.type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU && !*info.unfit;
}

/* A discrete GPU, which can be used: the first device, if there is one. Whether an integrated one is faster than the
 * CPU, with which it shares the memory, is not known. Drivers are loaded once: that takes tens of milliseconds. */
static bool is_automatic(void)
{
    pthread_once(&first.once, look_at_first);
    return first.is_automatic;
}

const qn_backend qn_vulkan_backend = { .name = "vulkan",
                                       .is_numbered = true,
                                       .is_automatic = is_automatic,
                                       .count = count,
                                       .describe = describe,
                                       .memory = memory_of,
                                       .open = qn_vk_device_create };
