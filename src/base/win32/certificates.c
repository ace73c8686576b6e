/* Schannel has Windows' own store. */
#include "base/certificates.h"

#include <stddef.h>

const char *qn_system_certificates(void)
{
    return NULL;
}
