/* Structs that begin with their size: older and newer ones than the library's. */
#include "base/params.h"

#include "base/status.h"

#include <string.h>

/* Larger than any struct will be: a size above it comes from a struct that was not initialised. */
enum { MOST_BYTES = 4096 };

/* The size of a caller's struct, which is its first member. */
static size_t size_of(const void *sized)
{
    size_t size;
    memcpy(&size, sized, sizeof size);
    return size;
}

qn_status qn_result_check(const char *type, const void *to, size_t size)
{
    const size_t found = size_of(to);
    if (found > sizeof size && found <= MOST_BYTES)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: its size is %zu, expected %zu, which its initialiser sets", type, found, size);
}

qn_status qn_params_read(const char *type, const void *from, size_t size, void *to)
{
    QN_TRY(qn_result_check(type, from, size));
    const size_t found = size_of(from);
    const char *bytes = from;
    for (size_t i = size; i < found; i++)
        if (bytes[i])
            return qn_fail(QN_ERR_INVALID,
                           "%s: its size is %zu, expected at most %zu: byte %zu is set, of a member that this version "
                           "does not have",
                           type, found, size, i);
    memcpy(to, from, found < size ? found : size);
    memcpy(to, &size, sizeof size);
    return QN_OK;
}

void qn_result_write(const void *from, size_t size, void *to)
{
    const size_t found = size_of(to), both = found < size ? found : size;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, both - sizeof size);
    if (found > both)
        memset((char *)to + both, 0, found - both);
}
