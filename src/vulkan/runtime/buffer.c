/* Memory of a device, and copies between it and the host. Memory that the host cannot map is copied through a staging
 * buffer, piece by piece. */
#include "vulkan/runtime/context.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { STAGING_BYTES = 8 << 20, WORD = 4 };

enum {
    DEVICE = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    MAPPED = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    CACHED = VK_MEMORY_PROPERTY_HOST_CACHED_BIT
};

/* ---- Memory types ---- */

/* Finds the first type with all of these properties; UINT32_MAX if there is none. */
static uint32_t type_with(const qn_vk *vk, uint32_t allowed, VkMemoryPropertyFlags properties)
{
    for (uint32_t i = 0; i < vk->memory.memoryTypeCount; i++)
        if (allowed >> i & 1 && (vk->memory.memoryTypes[i].propertyFlags & properties) == properties)
            return i;
    return UINT32_MAX;
}

/* The specification promises a type with DEVICE, and one with MAPPED. */
static uint32_t type_for(const qn_vk *vk, uint32_t allowed, qn_vk_place place)
{
    static const VkMemoryPropertyFlags wishes[][2] = { [QN_VK_ON_DEVICE] = { DEVICE, 0 },
                                                       [QN_VK_SHARED] = { DEVICE | MAPPED, MAPPED },
                                                       [QN_VK_ON_HOST] = { CACHED | MAPPED, MAPPED } };
    const uint32_t first = type_with(vk, allowed, wishes[place][0]);
    return first != UINT32_MAX ? first : type_with(vk, allowed, wishes[place][1]);
}

/* QN_VULKAN_STAGING=1: memory on the device is not mapped even where it could be, as on a discrete GPU. For tests. */
static bool is_mapped(const qn_vk *vk, uint32_t type, qn_vk_place place)
{
    const char *staging = getenv("QN_VULKAN_STAGING");
    if (place == QN_VK_ON_DEVICE && staging && !strcmp(staging, "1"))
        return false;
    return (vk->memory.memoryTypes[type].propertyFlags & MAPPED) == MAPPED;
}

static qn_status allocate(qn_vk *vk, qn_vk_place place, qn_vk_buffer *buffer)
{
    const VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                      .size = buffer->bytes,
                                      .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                               VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                               VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT };
    const VkMemoryAllocateFlagsInfo flags = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                              .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT };
    VkMemoryRequirements needs;
    void *host;
    QN_TRY(QN_VK(&vk->call, vkCreateBuffer, vk->device, &info, NULL, &buffer->handle));
    vk->call.vkGetBufferMemoryRequirements(vk->device, buffer->handle, &needs);
    const uint32_t type = type_for(vk, needs.memoryTypeBits, place);
    if (type == UINT32_MAX)
        return qn_fail(QN_ERR_DEVICE, "%s: no memory type for a buffer", vk->info.name);
    const VkMemoryAllocateInfo memory = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                          .pNext = &flags,
                                          .allocationSize = needs.size,
                                          .memoryTypeIndex = type };
    QN_TRY(QN_VK(&vk->call, vkAllocateMemory, vk->device, &memory, NULL, &buffer->memory));
    atomic_fetch_add(&vk->n_allocated, buffer->bytes);
    QN_TRY(QN_VK(&vk->call, vkBindBufferMemory, vk->device, buffer->handle, buffer->memory, 0));
    if (is_mapped(vk, type, place)) {
        QN_TRY(QN_VK(&vk->call, vkMapMemory, vk->device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &host));
        buffer->host = host;
    }
    buffer->address = vk->call.vkGetBufferDeviceAddress(
        vk->device, &(VkBufferDeviceAddressInfo){ .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                                  .buffer = buffer->handle });
    return QN_OK;
}

qn_status qn_vk_alloc(qn_vk *vk, size_t bytes, qn_vk_place place, const char *what, qn_vk_buffer *buffer)
{
    *buffer = (qn_vk_buffer){ .bytes = qn_round_up(bytes ? bytes : 1, WORD) };
    if (bytes > vk->info.largest_bytes) {
        *buffer = (qn_vk_buffer){ 0 };
        return qn_fail(QN_ERR_MEMORY, "%s: %zu bytes, the largest allocation of %s has %llu", what, bytes,
                       vk->info.name, (unsigned long long)vk->info.largest_bytes);
    }
    const qn_status status = allocate(vk, place, buffer);
    if (status == QN_OK)
        return QN_OK;
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    qn_vk_free(vk, buffer);
    if (status != QN_ERR_MEMORY)
        return qn_fail(status, "%s: %zu bytes: %s", what, bytes, text);
    return qn_fail(status, "%s: %zu bytes do not fit: %s has %.1f GiB, of which quern has taken %.1f (%s)", what, bytes,
                   vk->info.name, (double)vk->info.memory_bytes / 0x1p30,
                   (double)atomic_load(&vk->n_allocated) / 0x1p30, text);
}

void qn_vk_free(qn_vk *vk, qn_vk_buffer *buffer)
{
    if (buffer->handle)
        vk->call.vkDestroyBuffer(vk->device, buffer->handle, NULL);
    if (buffer->memory) {
        vk->call.vkFreeMemory(vk->device, buffer->memory, NULL);
        atomic_fetch_sub(&vk->n_allocated, buffer->bytes);
    }
    *buffer = (qn_vk_buffer){ 0 };
}

/* ---- Copies: the caller holds copy_lock ---- */

static qn_status reserve_staging(qn_vk *vk)
{
    return vk->staging.handle ? QN_OK : qn_vk_alloc(vk, STAGING_BYTES, QN_VK_ON_HOST, "staging buffer", &vk->staging);
}

static qn_status copy(qn_vk *vk, const qn_vk_buffer *to, size_t to_at, const qn_vk_buffer *from, size_t from_at,
                      size_t bytes)
{
    QN_TRY(qn_vk_begin(vk, &vk->copies));
    qn_vk_copy(vk, &vk->copies, to, to_at, from, from_at, bytes);
    QN_TRY(qn_vk_end(vk, &vk->copies));
    return qn_vk_run(vk, &vk->copies);
}

static qn_status write_staged(qn_vk *vk, const qn_vk_buffer *to, size_t at, const uint8_t *from, size_t bytes)
{
    QN_TRY(reserve_staging(vk));
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        memcpy(vk->staging.host, from + done, n);
        QN_TRY(copy(vk, to, at + done, &vk->staging, 0, n));
    }
    return QN_OK;
}

static qn_status read_staged(qn_vk *vk, uint8_t *to, const qn_vk_buffer *from, size_t at, size_t bytes)
{
    QN_TRY(reserve_staging(vk));
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        QN_TRY(copy(vk, &vk->staging, 0, from, at + done, n));
        memcpy(to + done, vk->staging.host, n);
    }
    return QN_OK;
}

static qn_status fill(qn_vk *vk, const qn_vk_buffer *buffer)
{
    QN_TRY(qn_vk_begin(vk, &vk->copies));
    vk->call.vkCmdFillBuffer(vk->copies.handle, buffer->handle, 0, VK_WHOLE_SIZE, 0);
    QN_TRY(qn_vk_end(vk, &vk->copies));
    return qn_vk_run(vk, &vk->copies);
}

qn_status qn_vk_write(qn_vk *vk, const qn_vk_buffer *to, size_t at, const void *from, size_t bytes)
{
    if (to->host) {
        memcpy(to->host + at, from, bytes);
        return QN_OK;
    }
    pthread_mutex_lock(&vk->copy_lock);
    const qn_status status = write_staged(vk, to, at, from, bytes);
    pthread_mutex_unlock(&vk->copy_lock);
    return status;
}

qn_status qn_vk_read(qn_vk *vk, void *to, const qn_vk_buffer *from, size_t at, size_t bytes)
{
    if (from->host) {
        memcpy(to, from->host + at, bytes);
        return QN_OK;
    }
    pthread_mutex_lock(&vk->copy_lock);
    const qn_status status = read_staged(vk, to, from, at, bytes);
    pthread_mutex_unlock(&vk->copy_lock);
    return status;
}

qn_status qn_vk_zero(qn_vk *vk, const qn_vk_buffer *buffer)
{
    if (buffer->host) {
        memset(buffer->host, 0, buffer->bytes);
        return QN_OK;
    }
    pthread_mutex_lock(&vk->copy_lock);
    const qn_status status = fill(vk, buffer);
    pthread_mutex_unlock(&vk->copy_lock);
    return status;
}
