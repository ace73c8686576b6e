/* Unicode normalisation form C (NFC), used by some tokenisers before pre-tokenisation. */
#ifndef QN_TEXT_NORMALIZE_H
#define QN_TEXT_NORMALIZE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Scratch memory of one thread; grows with the longest text. Zero it before use; free it with qn_nfc_scratch_free. */
typedef struct qn_nfc_scratch {
    int32_t *codes;
    size_t codes_capacity;
    int32_t *sorted;
    size_t sorted_capacity;
    char *bytes;
    size_t bytes_capacity;
} qn_nfc_scratch;

void qn_nfc_scratch_free(qn_nfc_scratch *scratch);

/* qn_nfc - normalises a text to form C.
 *
 *   text         [length] valid UTF-8
 *   out          [*out_length] `text` itself if it has no character above U+02FF; else scratch memory, valid until its
 *                next use
 *   out_length   in bytes
 *
 * Time is linear, even with many combining marks on one letter. */
qn_status qn_nfc(qn_nfc_scratch *scratch, const char *text, size_t length, const char **out, size_t *out_length);

#endif
