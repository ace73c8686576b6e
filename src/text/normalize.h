/* Unicode normalisation form C, for the tokenisers that begin with it. */
#ifndef QN_TEXT_NORMALIZE_H
#define QN_TEXT_NORMALIZE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* What one thread needs to normalise: grows with the longest text. Zero it before, qn_nfc_scratch_free after. */
typedef struct qn_nfc_scratch {
    int32_t *codes;
    size_t codes_capacity;
    int32_t *sorted;
    size_t sorted_capacity;
    char *bytes;
    size_t bytes_capacity;
} qn_nfc_scratch;

void qn_nfc_scratch_free(qn_nfc_scratch *scratch);

/* qn_nfc - text[0..length), which must be valid UTF-8, in form C. *out is `text` itself where that is seen to be in form C, or
 * lies in the scratch until its next use. Takes linear time, however many marks pile up on a letter. */
qn_status qn_nfc(qn_nfc_scratch *scratch, const char *text, size_t length, const char **out, size_t *out_length);

#endif
