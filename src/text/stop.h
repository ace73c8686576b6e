/* Stop strings: incremental search for the first of several strings in a text. Text that may begin a stop string is
 * held back; all other text is safe to show. */
#ifndef QN_TEXT_STOP_H
#define QN_TEXT_STOP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_stop_strings qn_stop_strings;
typedef struct qn_stop qn_stop;

/* qn_stop_strings_create - makes an automaton of the strings. It is immutable: any number of searches may use it at the
 * same time, by different threads.
 *
 *   strings   [n] zero-terminated UTF-8, copied. QN_ERR_INVALID, with its index, for an empty string or invalid UTF-8
 *   n         may be 0: all text is then safe
 *   out       free it with qn_stop_strings_free, after its searches */
qn_status qn_stop_strings_create(const char *const *strings, size_t n, qn_stop_strings **out);
void qn_stop_strings_free(qn_stop_strings *strings);

/* qn_stop_strings_bytes - the memory of the automaton, in bytes. */
size_t qn_stop_strings_bytes(const qn_stop_strings *strings);

/* qn_stop_create - begins a search. Free it with qn_stop_free. */
qn_status qn_stop_create(const qn_stop_strings *strings, qn_stop **out);
void qn_stop_free(qn_stop *stop);

/* qn_stop_feed - searches the next part of the text.
 *
 *   text     [length] complete UTF-8 characters
 *   safe     [*n_safe] text that can be shown now, beginning with the text that earlier calls held back; valid until
 *            the next call
 *   n_safe   in bytes
 *   hit      whether a stop string has been found. The text before it is safe; it and the text after it are dropped,
 *            and later calls return no text
 *
 * The match that ends first counts; of several that end at the same byte, the longest. Time is linear in the text. */
qn_status qn_stop_feed(qn_stop *stop, const char *text, size_t length, const char **safe, size_t *n_safe, bool *hit);

/* qn_stop_hold - whether stop strings that end in the following text are ignored. One that begins there and ends
 * later is found. */
void qn_stop_hold(qn_stop *stop, bool holds);

/* qn_stop_flush - ends the text: returns the text held back, which is safe now, and resets the search, also after a
 * hit. */
qn_status qn_stop_flush(qn_stop *stop, const char **safe, size_t *n_safe);

/* qn_stop_found - the index of the last hit's stop string, the first one of equal strings; 0 if there was no hit. */
size_t qn_stop_found(const qn_stop *stop);

#endif
