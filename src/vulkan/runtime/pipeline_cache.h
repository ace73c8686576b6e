/* The driver's pipeline cache on disk (gpu/code_file.h): one file for each device and driver. It is read when the
 * device is opened, and written when it is closed, if its size has changed since. A file that is damaged, foreign or
 * writable by others is not passed to the driver. Without a cache everything works, but for the time of compiling. */
#ifndef QN_VULKAN_RUNTIME_PIPELINE_CACHE_H
#define QN_VULKAN_RUNTIME_PIPELINE_CACHE_H

#include "vulkan/runtime/context.h"

/* The most that is kept. A larger cache is not written, and what was read is dropped. */
enum { QN_VK_MAX_CACHE_BYTES = 64 << 20 };

/* qn_vk_open_cache - sets vk->cache; VK_NULL_HANDLE if the driver has none. */
void qn_vk_open_cache(qn_vk *vk);

/* qn_vk_close_cache - writes and destroys it. */
void qn_vk_close_cache(qn_vk *vk);

#endif
