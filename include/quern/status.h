/* quern: status codes and error text, shared by every public header.
 *
 * Every function that can fail returns a qn_status. The text of the last failure on the calling thread names the thing that
 * was wrong, what was found and what was expected, and can be shown to a user as it is.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qn_status {
    QN_OK = 0,
    QN_ERR_INVALID,     /* an argument is outside what the function accepts */
    QN_ERR_FORMAT,      /* a file or a stored structure breaks its format */
    QN_ERR_UNSUPPORTED, /* well formed, but this build cannot do it (architecture, type, tokeniser, device) */
    QN_ERR_IO,          /* the operating system refused: open, read, write, map */
    QN_ERR_MEMORY,      /* an allocation failed or its size would overflow */
    QN_ERR_CONTEXT,     /* the session's context is full */
    QN_ERR_CANCELLED    /* qn_session_cancel was called */
} qn_status;

/* qn_status_name - a constant, lower-case name of a status ("invalid argument"). Never NULL. */
QN_API const char *qn_status_name(qn_status status);

/* qn_error_text - what the last failing quern call on this thread had to say, or "" when none has failed yet.
 * Owned by the library; valid until the next failing call on the same thread. */
QN_API const char *qn_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
