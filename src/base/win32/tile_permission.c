/* Permission to use tile registers: Windows requires none beyond the registers that it saves, which base/cpu.c checks.
 */
#include "base/tile_permission.h"

bool qn_request_tiles(void)
{
    return true;
}
