/* Creating the instance, with the validation layer if that is asked for, and choosing among its devices. */
#include "vulkan/runtime/instance.h"

#include "base/append.h"
#include "base/memory.h"
#include "vulkan/runtime/matrices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAMILIES = 32 };

static const char validate[] = "QN_VULKAN_VALIDATE";

static bool has_value(const char *variable, const char *text)
{
    const char *value = getenv(variable);
    return value && !strcmp(value, text);
}

static bool is_set(const char *variable)
{
    return has_value(variable, "1");
}

/* ---- Validation ---- */

static VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                     VkDebugUtilsMessageTypeFlagsEXT types,
                                     const VkDebugUtilsMessengerCallbackDataEXT *data, void *user)
{
    qn_vk_messages *messages = user;
    (void)severity;
    (void)types;
    if (atomic_fetch_add(&messages->n, 1) == 0)
        snprintf(messages->first, sizeof messages->first, "%s", data->pMessage);
    fprintf(stderr, "quern: Vulkan validation: %s\n", data->pMessage);
    return VK_FALSE;
}

static const VkDebugUtilsMessengerCreateInfoEXT messenger = {
    .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
    .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
    .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
    .pfnUserCallback = on_message,
};

static qn_status create_messenger(qn_vk_instance *instance)
{
    VkDebugUtilsMessengerCreateInfoEXT info = messenger;
    const PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)instance->loader->vkGetInstanceProcAddr(instance->handle,
                                                                                    "vkCreateDebugUtilsMessengerEXT");
    if (!create)
        return qn_fail(QN_ERR_UNSUPPORTED, "QN_VULKAN_VALIDATE: the layer has no debug messages");
    info.pUserData = instance->messages;
    return qn_vk_check(create(instance->handle, &info, NULL, &instance->messenger), "vkCreateDebugUtilsMessengerEXT");
}

qn_status qn_vk_check_messages(const qn_vk_instance *instance)
{
    if (!instance->messages || !atomic_load(&instance->messages->n))
        return QN_OK;
    return qn_fail(QN_ERR_DEVICE, "Vulkan validation: %s", instance->messages->first);
}

/* ---- The instance ---- */

static qn_status create(qn_vk_instance *instance)
{
    static const VkValidationFeatureEnableEXT
        of_calls[] = { VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT },
        of_kernels[] = { VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT,
                         VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT };
    static const char *const layers[] = { "VK_LAYER_KHRONOS_validation" };
    static const char *const extensions[] = { VK_EXT_DEBUG_UTILS_EXTENSION_NAME,
                                              VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME };
    const bool validates = instance->messages != NULL, validates_kernels = has_value(validate, "gpu");
    const VkValidationFeaturesEXT features = { .sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                               .enabledValidationFeatureCount = validates_kernels ? 2 : 1,
                                               .pEnabledValidationFeatures =
                                                   validates_kernels ? of_kernels : of_calls };
    const VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                            .pApplicationName = "quern",
                                            .apiVersion = VK_API_VERSION_1_2 };
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                        .pNext = validates ? &features : NULL,
                                        .pApplicationInfo = &application,
                                        .enabledLayerCount = validates,
                                        .ppEnabledLayerNames = layers,
                                        .enabledExtensionCount = validates ? 2 : 0,
                                        .ppEnabledExtensionNames = extensions };
    uint32_t version = 0;
    QN_TRY(QN_VK(instance->loader, vkEnumerateInstanceVersion, &version));
    if (version < VK_API_VERSION_1_2)
        return qn_fail(QN_ERR_UNSUPPORTED, "the Vulkan loader has version %u.%u, 1.2 is needed",
                       VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    const VkResult result = instance->loader->vkCreateInstance(&info, NULL, &instance->handle);
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
        return qn_fail(QN_ERR_UNSUPPORTED, "no Vulkan driver: none could be loaded (vkCreateInstance)");
    QN_TRY(qn_vk_check(result, "vkCreateInstance"));
#define FIND(function)                                                                                                 \
    instance->call.function = (PFN_##function)instance->loader->vkGetInstanceProcAddr(instance->handle, #function);    \
    if (!instance->call.function)                                                                                      \
        return qn_fail(QN_ERR_UNSUPPORTED, "the Vulkan loader has no " #function);
    QN_VK_INSTANCE_FUNCTIONS(FIND)
#undef FIND
    return validates ? create_messenger(instance) : QN_OK;
}

/* ---- Devices ---- */

const char *qn_vk_type_name(VkPhysicalDeviceType type)
{
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete GPU";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated GPU";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual GPU";
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return "software on the CPU";
    default: return "other device";
    }
}

/* Finds a queue family with compute: one without graphics first, which does not compete with a desktop. */
static bool find_queue(const qn_vk_instance *instance, VkPhysicalDevice physical, qn_vk_info *info)
{
    VkQueueFamilyProperties families[MAX_FAMILIES];
    uint32_t n = MAX_FAMILIES;
    bool found = false;
    instance->call.vkGetPhysicalDeviceQueueFamilyProperties(physical, &n, families);
    for (uint32_t i = 0; i < n; i++) {
        const VkQueueFlags flags = families[i].queueFlags;
        if (!(flags & VK_QUEUE_COMPUTE_BIT) || (found && flags & VK_QUEUE_GRAPHICS_BIT))
            continue;
        info->queue_family = i;
        info->clock_bits = families[i].timestampValidBits;
        found = true;
        if (!(flags & VK_QUEUE_GRAPHICS_BIT))
            break;
    }
    return found;
}

static uint64_t device_memory(const qn_vk_instance *instance, VkPhysicalDevice physical)
{
    VkPhysicalDeviceMemoryProperties memory;
    uint64_t bytes = 0;
    instance->call.vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++)
        if (memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)
            bytes += memory.memoryHeaps[i].size;
    return bytes;
}

/* ---- Features ---- */

/* The names that QN_VULKAN_OFF may have. */
static const char *const feature_names[] = { "dot", "matrix", "lanes", "shared", "addresses" };

enum { N_FEATURES = sizeof feature_names / sizeof *feature_names };

/* Returns whether QN_VULKAN_OFF names a feature. */
static bool is_off(const char *feature)
{
    const char *list = getenv("QN_VULKAN_OFF");
    const size_t n = strlen(feature);
    for (const char *at = list ? strstr(list, feature) : NULL; at; at = strstr(at + 1, feature))
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n]))
            return true;
    return false;
}

/* Fails for a name in QN_VULKAN_OFF that is no feature's. */
static qn_status check_off(void)
{
    const char *list = getenv("QN_VULKAN_OFF");
    for (size_t n = 0; list && *list; list += n + (list[n] == ',')) {
        bool is_known = false;
        n = strcspn(list, ",");
        for (size_t i = 0; i < N_FEATURES; i++)
            is_known = is_known || (strlen(feature_names[i]) == n && !memcmp(feature_names[i], list, n));
        if (is_known)
            continue;
        char names[QN_VK_REASON];
        qn_text_buffer to = QN_APPEND_TO(names);
        for (size_t i = 0; i < N_FEATURES; i++)
            qn_append(&to, "%s%s", i ? ", " : "", feature_names[i]);
        return qn_fail(QN_ERR_INVALID, "the environment variable QN_VULKAN_OFF: '%.*s' is not one of %s", (int)n, list,
                       names);
    }
    return QN_OK;
}

/* What every device has. */
enum { LEAST_LANES = 128, LEAST_SHARED = 16 << 10 };

static uint32_t capped(uint32_t has, const char *feature, uint32_t least)
{
    return is_off(feature) && has > least ? least : has;
}

static bool has_extension(const VkExtensionProperties *extensions, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(extensions[i].extensionName, name))
            return true;
    return false;
}

/* Software has no instruction for it, and takes it for tests. */
static bool find_dot(const qn_vk_instance *instance, const qn_vk_info *info)
{
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR
    };
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR limits = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR
    };
    VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &dot };
    VkPhysicalDeviceProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                               .pNext = &limits };
    instance->call.vkGetPhysicalDeviceFeatures2(info->physical, &features);
    instance->call.vkGetPhysicalDeviceProperties2(info->physical, &properties);
    return dot.shaderIntegerDotProduct &&
           (limits.integerDotProduct4x8BitPackedSignedAccelerated || info->type == VK_PHYSICAL_DEVICE_TYPE_CPU);
}

static qn_status find_features(const qn_vk_instance *instance, qn_vk_info *info)
{
    VkExtensionProperties *extensions;
    uint32_t n = 0;
    QN_TRY(QN_VK(&instance->call, vkEnumerateDeviceExtensionProperties, info->physical, NULL, &n, NULL));
    QN_TRY(qn_alloc(&extensions, n ? n : 1, sizeof *extensions, "device"));
    const VkResult result = instance->call.vkEnumerateDeviceExtensionProperties(info->physical, NULL, &n, extensions);
    if (result == VK_SUCCESS)
        info->features.dot = !is_off("dot") &&
                             has_extension(extensions, n, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME) &&
                             find_dot(instance, info);
    if (result == VK_SUCCESS && !is_off("matrix") && has_extension(extensions, n, QN_VK_MATRIX_EXTENSION))
        info->features.matrix_depth = qn_vk_find_matrices(instance, info->physical);
    qn_free(extensions);
    return qn_vk_check(result, "vkEnumerateDeviceExtensionProperties");
}

static void read_limits(const VkPhysicalDeviceLimits *limits, qn_vk_features *features)
{
    const uint32_t lanes = limits->maxComputeWorkGroupSize[0] < limits->maxComputeWorkGroupInvocations
                               ? limits->maxComputeWorkGroupSize[0]
                               : limits->maxComputeWorkGroupInvocations;
    features->lanes = capped(lanes, "lanes", LEAST_LANES);
    features->shared_bytes = capped(limits->maxComputeSharedMemorySize, "shared", LEAST_SHARED);
}

static void describe(const qn_vk_instance *instance, VkPhysicalDevice physical, qn_vk_info *info)
{
    VkPhysicalDeviceMaintenance3Properties limits = { .sType =
                                                          VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES };
    VkPhysicalDeviceProperties2 properties = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                               .pNext = &limits };
    VkPhysicalDeviceBufferDeviceAddressFeatures addresses = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES
    };
    VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &addresses };
    instance->call.vkGetPhysicalDeviceProperties2(physical, &properties);
    const VkPhysicalDeviceProperties *p = &properties.properties;
    *info = (qn_vk_info){ .physical = physical,
                          .type = p->deviceType,
                          .api = p->apiVersion,
                          .driver = p->driverVersion,
                          .tick = (double)p->limits.timestampPeriod * 1e-9,
                          .memory_bytes = device_memory(instance, physical),
                          .largest_bytes = limits.maxMemoryAllocationSize };
    snprintf(info->name, sizeof info->name, "%s", p->deviceName);
    read_limits(&p->limits, &info->features);
    if (p->apiVersion < VK_API_VERSION_1_2) {
        snprintf(info->unfit, sizeof info->unfit, "has Vulkan %u.%u, 1.2 is needed",
                 VK_API_VERSION_MAJOR(p->apiVersion), VK_API_VERSION_MINOR(p->apiVersion));
        return;
    }
    instance->call.vkGetPhysicalDeviceFeatures2(physical, &features);
    if (!find_queue(instance, physical, info))
        snprintf(info->unfit, sizeof info->unfit, "has no compute queue");
    else if (!addresses.bufferDeviceAddress || is_off("addresses"))
        snprintf(info->unfit, sizeof info->unfit, "has no bufferDeviceAddress");
}

/* The order of devices: those that can be used first, and of these discrete GPUs, then integrated ones. */
static int rank_of(const qn_vk_info *info)
{
    enum { OTHERS = 2, UNFIT = 3 };
    return *info->unfit                                           ? UNFIT
           : info->type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU   ? 0
           : info->type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ? 1
                                                                  : OTHERS;
}

static void add_device(qn_vk_instance *instance, const qn_vk_info *info)
{
    size_t at = instance->n_devices++;
    for (; at > 0 && rank_of(&instance->devices[at - 1]) > rank_of(info); at--)
        instance->devices[at] = instance->devices[at - 1];
    instance->devices[at] = *info;
}

static qn_status list_devices(qn_vk_instance *instance)
{
    VkPhysicalDevice physical[QN_VK_MAX_DEVICES];
    uint32_t n = QN_VK_MAX_DEVICES;
    const bool takes_cpus = is_set("QN_VULKAN_CPU");
    char cpu[sizeof instance->devices->name] = "";
    const VkResult result = instance->call.vkEnumeratePhysicalDevices(instance->handle, &n, physical);
    if (result != VK_INCOMPLETE)
        QN_TRY(qn_vk_check(result, "vkEnumeratePhysicalDevices"));
    for (uint32_t i = 0; i < n; i++) {
        qn_vk_info info;
        describe(instance, physical[i], &info);
        if (!*info.unfit && find_features(instance, &info) != QN_OK)
            snprintf(info.unfit, sizeof info.unfit, "does not list its extensions");
        if (info.type == VK_PHYSICAL_DEVICE_TYPE_CPU && !takes_cpus)
            memcpy(cpu, info.name, sizeof cpu);
        else
            add_device(instance, &info);
    }
    if (instance->n_devices)
        return QN_OK;
    if (*cpu)
        return qn_fail(QN_ERR_UNSUPPORTED, "no Vulkan device: %s computes on the CPU, which quern does itself", cpu);
    return qn_fail(QN_ERR_UNSUPPORTED, "no Vulkan device: no driver has one");
}

qn_status qn_vk_instance_open(qn_vk_instance *instance)
{
    *instance = (qn_vk_instance){ 0 };
    QN_TRY(check_off());
    QN_TRY(qn_vk_loader_load(&instance->loader));
    if (is_set(validate) || has_value(validate, "gpu"))
        QN_TRY(qn_alloc(&instance->messages, 1, sizeof *instance->messages, "device"));
    QN_TRY(create(instance));
    return list_devices(instance);
}

void qn_vk_instance_close(qn_vk_instance *instance)
{
    if (instance->messenger) {
        const PFN_vkDestroyDebugUtilsMessengerEXT destroy =
            (PFN_vkDestroyDebugUtilsMessengerEXT)instance->loader->vkGetInstanceProcAddr(
                instance->handle, "vkDestroyDebugUtilsMessengerEXT");
        destroy(instance->handle, instance->messenger, NULL);
    }
    if (instance->handle && instance->call.vkDestroyInstance)
        instance->call.vkDestroyInstance(instance->handle, NULL);
    qn_free(instance->messages);
    *instance = (qn_vk_instance){ 0 };
}

qn_status qn_vk_find_device(const qn_vk_instance *instance, int ordinal, const qn_vk_info **info)
{
    *info = NULL;
    if (ordinal < 0 || (size_t)ordinal >= instance->n_devices)
        return qn_fail(QN_ERR_UNSUPPORTED, "vulkan:%d: there is no such device, only %zu", ordinal,
                       instance->n_devices);
    const qn_vk_info *found = &instance->devices[ordinal];
    if (*found->unfit)
        return qn_fail(QN_ERR_UNSUPPORTED, "vulkan:%d: %s %s", ordinal, found->name, found->unfit);
    *info = found;
    return QN_OK;
}
