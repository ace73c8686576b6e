/* Reading and writing the driver's pipeline cache. */
#include "vulkan/runtime/pipeline_cache.h"

#include "gpu/code_file.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* What a driver's cache depends on, and quern's version. The kernels are not part of it: the driver finds a pipeline by
 * its code. */
static qn_code_key key_of(const qn_vk *vk)
{
    VkPhysicalDeviceProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 };
    const VkPhysicalDeviceProperties *p = &properties.properties;
    struct {
        uint32_t vendor, device, driver, api;
        uint8_t cache[VK_UUID_SIZE];
        char version[16];
    } parts;
    XXH128_canonical_t hash;
    qn_code_key key;
    vk->instance.call.vkGetPhysicalDeviceProperties2(vk->info.physical, &properties);
    memset(&parts, 0, sizeof parts);
    parts.vendor = p->vendorID;
    parts.device = p->deviceID;
    parts.driver = p->driverVersion;
    parts.api = p->apiVersion;
    memcpy(parts.cache, p->pipelineCacheUUID, sizeof parts.cache);
    memcpy(parts.version, QN_VERSION,
           sizeof QN_VERSION < sizeof parts.version ? sizeof QN_VERSION : sizeof parts.version);
    XXH128_canonicalFromHash(&hash, XXH3_128bits(&parts, sizeof parts));
    memcpy(key.bytes, hash.digest, sizeof key.bytes);
    return key;
}

static VkPipelineCache create(qn_vk *vk, const void *data, size_t bytes)
{
    const VkPipelineCacheCreateInfo info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                             .initialDataSize = bytes,
                                             .pInitialData = data };
    VkPipelineCache cache = VK_NULL_HANDLE;
    return vk->call.vkCreatePipelineCache(vk->device, &info, NULL, &cache) == VK_SUCCESS ? cache : VK_NULL_HANDLE;
}

/* Returns the file's contents, or NULL. */
static void *read_file(const qn_code_key *key, size_t *bytes)
{
    char *folder, compiler[QN_COMPILER_MAX];
    void *data = NULL;
    *bytes = 0;
    if (qn_code_folder(&folder) == QN_OK && folder)
        (void)qn_code_file_read(&qn_pipeline_files, folder, key, &data, bytes, compiler);
    free(folder);
    if (data && *bytes <= QN_VK_MAX_CACHE_BYTES)
        return data;
    free(data);
    *bytes = 0;
    return NULL;
}

void qn_vk_open_cache(qn_vk *vk)
{
    const qn_code_key key = key_of(vk);
    size_t bytes;
    void *data = read_file(&key, &bytes);
    vk->cache = create(vk, data, bytes);
    vk->cache_bytes = vk->cache ? bytes : 0;
    if (!vk->cache && data)
        vk->cache = create(vk, NULL, 0);
    free(data);
}

static void write_file(qn_vk *vk)
{
    const qn_code_key key = key_of(vk);
    char *folder;
    size_t bytes = 0;
    if (vk->call.vkGetPipelineCacheData(vk->device, vk->cache, &bytes, NULL) != VK_SUCCESS ||
        bytes == vk->cache_bytes || bytes > QN_VK_MAX_CACHE_BYTES)
        return;
    void *data = malloc(bytes);
    if (data && vk->call.vkGetPipelineCacheData(vk->device, vk->cache, &bytes, data) == VK_SUCCESS &&
        qn_code_folder(&folder) == QN_OK) {
        if (folder)
            (void)qn_code_file_write(&qn_pipeline_files, folder, &key, vk->info.name, data, bytes);
        free(folder);
    }
    free(data);
}

/* A file that cannot be written is no error: the thread keeps the text of its last one. */
void qn_vk_close_cache(qn_vk *vk)
{
    char text[QN_ERROR_TEXT_MAX];
    if (!vk->cache)
        return;
    memcpy(text, qn_error_text(), sizeof text);
    write_file(vk);
    (void)qn_fail(QN_OK, "%s", text);
    vk->call.vkDestroyPipelineCache(vk->device, vk->cache, NULL);
    vk->cache = VK_NULL_HANDLE;
}
