/* Of macOS' headers what src/base/darwin/ uses. test_darwin.c has the functions. */
#include <stdint.h>

typedef unsigned mach_port_t;
typedef int kern_return_t;
typedef unsigned mach_msg_type_number_t;
typedef int *host_info64_t;
typedef unsigned natural_t;
typedef struct vm_statistics64 {
    natural_t free_count, active_count, inactive_count, wire_count, purgeable_count;
} vm_statistics64_data_t;

#define HOST_VM_INFO64 4
#define HOST_VM_INFO64_COUNT ((mach_msg_type_number_t)(sizeof(vm_statistics64_data_t) / sizeof(int)))
#define KERN_SUCCESS 0

extern uintptr_t vm_kernel_page_size;
mach_port_t mach_host_self(void);
mach_port_t mach_task_self(void);
kern_return_t mach_port_deallocate(mach_port_t task, mach_port_t port);
kern_return_t host_statistics64(mach_port_t host, int flavour, host_info64_t info, mach_msg_type_number_t *count);
