/* Structs of the interface that begin with their size (quern/quern.h): the one place that reads them from a caller and
 * fills those of a caller. */
#ifndef QN_BASE_PARAMS_H
#define QN_BASE_PARAMS_H

#include "quern/status.h"

#include <stddef.h>

/* QN_PARAMS_READ - copy a caller's struct of a type of the interface.
 *
 *   from   the caller's
 *   to     of the type, with the defaults, which stay where `from` has no member; `to->size` is the library's
 *          afterwards
 *
 * QN_ERR_INVALID, naming the type, with both sizes, for a size of 0 or one that is no struct's, and for members that
 * are not zero beyond those of the library. */
#define QN_PARAMS_READ(type, from, to) qn_params_read(#type, from, sizeof(type), to)
qn_status qn_params_read(const char *type, const void *from, size_t size, void *to);

/* QN_RESULT_CHECK - whether a caller's struct can be filled: QN_ERR_INVALID for a size that is no struct's.
 * QN_RESULT_WRITE - fill one that can be: members beyond those of the library are zero. */
#define QN_RESULT_CHECK(type, to) qn_result_check(#type, to, sizeof(type))
qn_status qn_result_check(const char *type, const void *to, size_t size);
void qn_result_write(const void *from, size_t size, void *to);

#endif
