/* Loading libvulkan; conversion of results into statuses. */
#include "vulkan/runtime/driver.h"

#include "base/library.h"
#include "base/process.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_once_t once;
    qn_vk_loader table;
    qn_status status;
    pid_t process; /* drivers do not work in its forked children */
    char text[QN_ERROR_TEXT_MAX];
} loaded = { .once = PTHREAD_ONCE_INIT };

static qn_status load(qn_vk_loader *table)
{
    void *library = qn_library_open(qn_library_vulkan);
    if (!library)
        return qn_fail(QN_ERR_UNSUPPORTED, "no Vulkan loader: %s cannot be loaded (%s)", qn_library_vulkan,
                       qn_library_error());
    void *function = qn_library_find(library, "vkGetInstanceProcAddr");
    if (!function)
        return qn_fail(QN_ERR_UNSUPPORTED, "no Vulkan loader: %s has no vkGetInstanceProcAddr", qn_library_vulkan);
    memcpy(&table->vkGetInstanceProcAddr, &function, sizeof function); /* POSIX allows it, ISO C has no conversion */
    table->vkCreateInstance = (PFN_vkCreateInstance)table->vkGetInstanceProcAddr(NULL, "vkCreateInstance");
    table->vkEnumerateInstanceVersion =
        (PFN_vkEnumerateInstanceVersion)table->vkGetInstanceProcAddr(NULL, "vkEnumerateInstanceVersion");
    if (!table->vkCreateInstance || !table->vkEnumerateInstanceVersion)
        return qn_fail(QN_ERR_UNSUPPORTED, "the Vulkan loader is too old: 1.2 is needed");
    return QN_OK;
}

static void load_once(void)
{
    loaded.process = getpid();
    loaded.status = load(&loaded.table);
    if (loaded.status)
        memcpy(loaded.text, qn_error_text(), sizeof loaded.text);
}

qn_status qn_vk_loader_load(const qn_vk_loader **loader)
{
    pthread_once(&loaded.once, load_once);
    *loader = NULL;
    if (loaded.status)
        return qn_fail(loaded.status, "%s", loaded.text);
    QN_TRY(qn_process_check(loaded.process, "Vulkan", "connection to the driver"));
    *loader = &loaded.table;
    return QN_OK;
}

static const char *name_of(VkResult result)
{
    switch ((int)result) {
#define NAME(name)                                                                                                     \
    case name: return #name;
        NAME(VK_NOT_READY)
        NAME(VK_TIMEOUT)
        NAME(VK_INCOMPLETE)
        NAME(VK_ERROR_OUT_OF_HOST_MEMORY)
        NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(VK_ERROR_INITIALIZATION_FAILED)
        NAME(VK_ERROR_DEVICE_LOST)
        NAME(VK_ERROR_MEMORY_MAP_FAILED)
        NAME(VK_ERROR_LAYER_NOT_PRESENT)
        NAME(VK_ERROR_EXTENSION_NOT_PRESENT)
        NAME(VK_ERROR_FEATURE_NOT_PRESENT)
        NAME(VK_ERROR_INCOMPATIBLE_DRIVER)
        NAME(VK_ERROR_TOO_MANY_OBJECTS)
        NAME(VK_ERROR_UNKNOWN)
#undef NAME
    default: return "unnamed error";
    }
}

qn_status qn_vk_check(VkResult result, const char *call)
{
    if (result == VK_SUCCESS)
        return QN_OK;
    const bool no_memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
                           result == VK_ERROR_TOO_MANY_OBJECTS;
    const qn_status status = no_memory                                ? QN_ERR_MEMORY
                             : result == VK_ERROR_INCOMPATIBLE_DRIVER ? QN_ERR_UNSUPPORTED
                                                                      : QN_ERR_DEVICE;
    return qn_fail(status, "%s: %s (%d)", call, name_of(result), (int)result);
}
