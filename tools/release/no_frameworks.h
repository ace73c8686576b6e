/* Before each source of curl: as if this were no Mac, where it would call a framework, which zig does not have, for an effect on the
 * resolver of iOS. */
#include <TargetConditionals.h>
#undef TARGET_OS_OSX
#define TARGET_OS_OSX 0
