/* Permission to use tile registers, from the Linux kernel. */
#include "base/tile_permission.h"

#include "base/cpu.h"

#if defined(__linux__) && QN_X86
#include <sys/syscall.h>
#include <unistd.h>

/* Linux, asm/prctl.h and asm/fpu/types.h; headers before 5.16 do not have them. */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

bool qn_request_tiles(void)
{
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
bool qn_request_tiles(void)
{
    return false;
}
#endif
