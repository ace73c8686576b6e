/* Libraries by dlopen. */
#include "base/library.h"

#include <dlfcn.h>
#include <stddef.h>

const char qn_library_cuda[] = "libcuda.so.1", qn_library_vulkan[] = "libvulkan.so.1";
const char *const qn_library_nvrtc[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                         "/usr/local/cuda/lib64/libnvrtc.so", NULL };

void *qn_library_open(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void *qn_library_find(void *library, const char *function)
{
    return dlsym(library, function);
}

const char *qn_library_error(void)
{
    return dlerror();
}
