/* Paths and texts between quern's UTF-8 and the UTF-16 of Windows. For files in folders win32/ alone. */
#ifndef QN_BASE_WIN32_WIDE_H
#define QN_BASE_WIN32_WIDE_H

#include <stdbool.h>
#include <wchar.h>

/* qn_wide_path - the path for Windows' functions; free() it. One that is longer than MAX_PATH allows becomes absolute,
 * with the prefix for long paths. NULL with errno if it is not UTF-8 or there is no memory. */
wchar_t *qn_wide_path(const char *path);

/* qn_narrow - UTF-8 of a terminated text; free() it. NULL with errno on failure. */
char *qn_narrow(const wchar_t *text);

/* qn_set_errno - sets errno from GetLastError. */
void qn_set_errno(void);

/* qn_windows_error - the text of GetLastError, in a buffer of the calling thread. */
const char *qn_windows_error(void);

#endif
