/* Determines whether a chat template is plain ChatML: "<|im_start|>role\ncontent<|im_end|>\n" for each message, with
 * unmodified contents, and "<|im_start|>assistant\n" to open an answer. Two additions are allowed: the beginning-of-text
 * token, and a default system message for conversations that do not begin with a system message. */
#ifndef QN_TEXT_CHATML_H
#define QN_TEXT_CHATML_H

#include "gguf/gguf.h"
#include "quern/status.h"

#include <stdbool.h>

#define QN_CHATML_START "<|im_start|>"
#define QN_CHATML_END "<|im_end|>"

typedef struct qn_chatml {
    bool plain;
    bool bos;          /* bos_token comes first */
    char *system;      /* the default system message, or NULL; free it with qn_free */
    char problem[320]; /* the first difference from plain ChatML */
} qn_chatml;

/* qn_chatml_read - check a template with all sequences of the roles system, user and assistant that a template can
 * distinguish. A template that is not plain ChatML is not an error: out->plain is then false. */
qn_status qn_chatml_read(qn_string text, qn_chatml *out);

#endif
