/* Whether a chat template is plain ChatML: "<|im_start|>role\ncontent<|im_end|>\n" for each message, each content as it is, and
 * "<|im_start|>assistant\n" to open an answer. Two things may be its own: the beginning-of-text token goes first, and a system
 * message does where a conversation begins with none. */
#ifndef QN_TEXT_CHATML_H
#define QN_TEXT_CHATML_H

#include "gguf/gguf.h"
#include "quern/status.h"

#include <stdbool.h>

#define QN_CHATML_START "<|im_start|>"
#define QN_CHATML_END "<|im_end|>"

typedef struct qn_chatml {
    bool plain;
    bool bos;          /* whether bos_token goes first */
    char *system;      /* its own system message, or NULL; qn_free */
    char problem[320]; /* what it has that plain ChatML has not */
} qn_chatml;

/* qn_chatml_read - what the template does with conversations of system, user and assistant; each of their orders is tried that
 * a template can tell apart. One that is not plain is no failure. */
qn_status qn_chatml_read(qn_string text, qn_chatml *out);

#endif
