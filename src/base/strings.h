/* Functions on strings and lines that ISO C does not have, and not every C library. Each works as the GNU C library's
 * function of that name. */
#ifndef QN_BASE_STRINGS_H
#define QN_BASE_STRINGS_H

#include <stddef.h>
#include <stdio.h>

/* qn_memmem - finds bytes in bytes: the first place, or NULL. The time is linear, whatever the bytes are. */
void *qn_memmem(const void *text, size_t length, const void *wanted, size_t wanted_length);

/* qn_memrchr - the last place of a byte, or NULL. */
void *qn_memrchr(const void *text, int byte, size_t length);

/* qn_mempcpy - memcpy; returns the end of what was written. */
void *qn_mempcpy(void *to, const void *from, size_t length);

/* qn_strcasestr - finds a string regardless of the case of ASCII letters; NULL if it is not there. */
char *qn_strcasestr(const char *text, const char *wanted);

/* qn_strndup - a terminated copy of at most n bytes; free() it. NULL without memory. */
char *qn_strndup(const char *text, size_t n);

/* qn_strsep - cuts *rest at the first of the delimiters. Returns the part before it; NULL if *rest is NULL. */
char *qn_strsep(char **rest, const char *delimiters);

/* qn_getline - reads a line with its newline into *line, which it grows. Returns its length, or -1 at the end or on an
 * error of the file. */
ptrdiff_t qn_getline(char **line, size_t *capacity, FILE *file);

/* qn_wipe - overwrites a secret, also if the compiler sees that nobody reads it again. */
void qn_wipe(void *bytes, size_t n);

/* qn_sort - sorts in ascending order; elements that compare equal keep their order. In place if there is no memory for
 * a copy.
 *
 *   compare   less than, equal to or greater than 0, as qsort; `context` is the caller's */
void qn_sort(void *base, size_t n, size_t size, int (*compare)(const void *a, const void *b, void *context),
             void *context);

#endif
