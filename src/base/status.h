/* Failing with a text: the one way in which library code reports an error. */
#ifndef QN_BASE_STATUS_H
#define QN_BASE_STATUS_H

#include "quern/status.h"

/* qn_fail - record a formatted text for this thread and return `status`, so that a caller can write `return qn_fail(...)`.
 * Text beyond QN_ERROR_TEXT_MAX bytes is cut. Control characters that came from a file are replaced by '?', so that a hostile
 * name cannot drive the terminal. Arguments may point into the previous error text. */
qn_status qn_fail(qn_status status, const char *format, ...) QN_PRINTF(2, 3);

enum { QN_ERROR_TEXT_MAX = 512 };

/* QN_TRY - return from the enclosing function when `call` does not give QN_OK. Only for functions that own nothing yet. */
#define QN_TRY(call)                                                                                                           \
    do {                                                                                                                       \
        const qn_status qn_try_status = (call);                                                                                \
        if (qn_try_status != QN_OK)                                                                                            \
            return qn_try_status;                                                                                              \
    } while (0)

#endif
