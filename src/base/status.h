/* qn_fail and QN_TRY: how library code reports errors. */
#ifndef QN_BASE_STATUS_H
#define QN_BASE_STATUS_H

#include "quern/status.h"

/* qn_fail - stores a formatted error text for this thread and returns `status`: `return qn_fail(...)`.
 *
 * The text is truncated to QN_ERROR_TEXT_MAX bytes, including the terminator. Characters that must not be shown
 * (base/printable.h) are replaced by '?', so that names from a crafted file cannot control the terminal. Arguments may
 * point into the previous error text. Other threads keep their own texts: a status that is passed to another thread
 * needs a copy of its text (qn_error_text). */
qn_status qn_fail(qn_status status, const char *format, ...) QN_PRINTF(2, 3);

enum { QN_ERROR_TEXT_MAX = 512 };

/* QN_TRY - returns the status of `call` from the enclosing function unless it is QN_OK. Use it only where nothing
 * has to be freed. */
#define QN_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const qn_status qn_try_status = (call);                                                                        \
        if (qn_try_status != QN_OK)                                                                                    \
            return qn_try_status;                                                                                      \
    } while (0)

#endif
