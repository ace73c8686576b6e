/* Available memory by the kernel's statistics of pages: free ones, and those of files, which it can drop. */
#include "base/available.h"

#include <mach/mach.h>
#include <sys/resource.h>

uint64_t qn_available_memory_in(const char *root)
{
    vm_statistics64_data_t pages;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    const mach_port_t host = mach_host_self();
    const kern_return_t result = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&pages, &count);
    mach_port_deallocate(mach_task_self(), host);
    if (*root || result != KERN_SUCCESS)
        return UINT64_MAX;
    return ((uint64_t)pages.free_count + pages.inactive_count + pages.purgeable_count) * vm_kernel_page_size;
}

uint64_t qn_available_memory(void)
{
    return qn_available_memory_in("");
}

uint64_t qn_available_addresses(void)
{
    return UINT64_MAX;
}
