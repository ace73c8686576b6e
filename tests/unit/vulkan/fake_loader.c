/* A Vulkan loader with one device that quern cannot use, for tests/e2e/vulkan_devices.sh: libvulkan.so.1 in a folder of
 * LD_LIBRARY_PATH. QN_FAKE_VULKAN says what is missing: none (there is no device), queue, address, version, extensions,
 * loader (its version); or `three`: there are three, the first without a queue, then an integrated and a discrete GPU.
 * Creating a device fails. */
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name);

static bool lacks(const char *what)
{
    const char *variable = getenv("QN_FAKE_VULKAN");
    return variable && !strcmp(variable, what);
}

static VkResult version(uint32_t *to)
{
    *to = lacks("loader") ? VK_API_VERSION_1_1 : VK_API_VERSION_1_3;
    return VK_SUCCESS;
}

static VkResult create(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *instance)
{
    static int one;
    (void)allocator;
    if (info->enabledLayerCount)
        return VK_ERROR_LAYER_NOT_PRESENT;
    *instance = (VkInstance)(void *)&one;
    return VK_SUCCESS;
}

static void destroy(VkInstance instance, const VkAllocationCallbacks *allocator)
{
    (void)instance;
    (void)allocator;
}

static int all[3]; /* whose addresses are the devices */

static VkResult enumerate(VkInstance instance, uint32_t *n, VkPhysicalDevice *devices)
{
    (void)instance;
    *n = lacks("three") ? 3 : !lacks("none");
    for (uint32_t i = 0; devices && i < *n; i++)
        devices[i] = (VkPhysicalDevice)(void *)&all[i];
    return VK_SUCCESS;
}

/* Number i of three devices; else 3. */
static size_t number_of(VkPhysicalDevice device)
{
    return lacks("three") ? (size_t)((const int *)(const void *)device - all) : 3;
}

static void properties_of(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *to)
{
    to->properties.apiVersion = lacks("version") ? VK_API_VERSION_1_1 : VK_API_VERSION_1_3;
    to->properties.deviceType =
        number_of(device) == 1 ? VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU : VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    snprintf(to->properties.deviceName, sizeof to->properties.deviceName, "Paper GPU");
}

static void features_of(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *to)
{
    (void)device;
    ((VkPhysicalDeviceBufferDeviceAddressFeatures *)to->pNext)->bufferDeviceAddress = !lacks("address");
}

static VkResult extensions_of(VkPhysicalDevice device, const char *layer, uint32_t *n, VkExtensionProperties *to)
{
    (void)device;
    (void)layer;
    (void)to;
    *n = 0;
    return lacks("extensions") ? VK_ERROR_OUT_OF_HOST_MEMORY : VK_SUCCESS;
}

static void memory_of(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *to)
{
    (void)device;
    *to = (VkPhysicalDeviceMemoryProperties){
        .memoryHeapCount = 2,
        .memoryHeaps = { { .size = 3u << 30, .flags = VK_MEMORY_HEAP_DEVICE_LOCAL_BIT }, { .size = 1u << 30 } }
    };
}

static void queues_of(VkPhysicalDevice device, uint32_t *n, VkQueueFamilyProperties *to)
{
    const bool has_queue = !lacks("queue") && number_of(device) != 0;
    *n = 1;
    if (to)
        *to = (VkQueueFamilyProperties){ .queueFlags = has_queue ? VK_QUEUE_COMPUTE_BIT : VK_QUEUE_TRANSFER_BIT,
                                         .queueCount = 1 };
}

static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *device)
{
    (void)physical;
    (void)info;
    (void)allocator;
    (void)device;
    return VK_ERROR_INITIALIZATION_FAILED;
}

static PFN_vkVoidFunction device_function(VkDevice device, const char *name)
{
    (void)device;
    (void)name;
    return NULL;
}

__attribute__((visibility("default"))) PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } functions[] = {
        { "vkEnumerateInstanceVersion", (PFN_vkVoidFunction)version },
        { "vkCreateInstance", (PFN_vkVoidFunction)create },
        { "vkDestroyInstance", (PFN_vkVoidFunction)destroy },
        { "vkEnumeratePhysicalDevices", (PFN_vkVoidFunction)enumerate },
        { "vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)properties_of },
        { "vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)features_of },
        { "vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction)extensions_of },
        { "vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction)memory_of },
        { "vkGetPhysicalDeviceQueueFamilyProperties", (PFN_vkVoidFunction)queues_of },
        { "vkCreateDevice", (PFN_vkVoidFunction)create_device },
        { "vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_function },
    };
    (void)instance;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name))
            return functions[i].function;
    return NULL;
}
