/* quern: status codes and error texts, shared by every public header.
 *
 * Every function that can fail returns a qn_status. The library keeps the text of the last failure of each thread
 * (qn_error_text). The text names the argument, file or tensor, the value found and the value expected; it can be shown
 * to a user unchanged.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_STATUS_H
#define QUERN_STATUS_H

#if defined(__GNUC__)
#define QN_API __attribute__((visibility("default")))
#define QN_PRINTF(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define QN_API
#define QN_PRINTF(format_index, first_arg)
#endif

/* The initialiser of a struct that begins with its size: QN_MODEL_PARAMS_INIT is that of qn_model_params, and so on.
 * All other members have their defaults, which are 0 (quern/quern.h). */
/* clang-format off */
#define QN_INIT(type) { .size = sizeof(type) }
/* clang-format on */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qn_status {
    QN_OK = 0,
    QN_ERR_INVALID,     /* an argument is outside what the function accepts */
    QN_ERR_FORMAT,      /* a file or a serialised structure violates its format */
    QN_ERR_UNSUPPORTED, /* valid, but not implemented or not available here (architecture, type, tokeniser, device) */
    QN_ERR_IO,          /* the operating system reported an error: open, read, write, map */
    QN_ERR_MEMORY,      /* an allocation failed on the host or on a GPU, or its size overflows */
    QN_ERR_CONTEXT,     /* the tokens do not fit in the session's context */
    QN_ERR_CANCELLED,   /* stopped by qn_session_cancel, or by a progress callback that returned false */
    QN_ERR_BUSY,        /* a scheduler's queue is full, or on_memory refused the memory of a request: try again later */
    QN_ERR_DEVICE       /* a GPU's driver reported an error; often no later call on that GPU succeeds */
} qn_status;

/* qn_status_name - the lower-case name of a status, for example "invalid argument"; "unknown status" for any other
 * value. A static string, never NULL. */
QN_API const char *qn_status_name(qn_status status);

/* qn_error_text - the error text of the last quern call that failed on the calling thread, or "" if none has failed.
 *
 * Successful calls do not clear it. At most 511 bytes; control characters from files are replaced by '?'. Owned by the
 * library, valid until the next failing call on the same thread. */
QN_API const char *qn_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
