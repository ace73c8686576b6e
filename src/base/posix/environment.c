/* The environment of POSIX is bytes, as paths are. */
#include "base/environment.h"

#include <stdlib.h>

const char *qn_environment(const char *name)
{
    return getenv(name);
}
