/* quern: the output of a model, parsed into reasoning, content and tool calls.
 *
 * qn_generate and schedulers deliver the answer to a prompt in the model's chat format as a stream of these events
 * (qn_request_params.on_event). docs/tool-calls.md describes the formats of calls and which text is recognised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_OUTPUT_H
#define QUERN_OUTPUT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Text that does not parse is delivered as content (or reasoning) with its exact bytes; it is never an error. Texts are
 * not empty. The events of an answer that was cut by a limit or cancelled are a prefix of the events of the whole
 * answer. */
typedef enum qn_output_event_kind {
    QN_OUTPUT_REASONING,
    QN_OUTPUT_CONTENT,
    QN_OUTPUT_CALL_BEGIN, /* text is the function's name */
    QN_OUTPUT_ARGUMENTS,  /* text continues the arguments: the concatenated texts of a call are a JSON object */
    QN_OUTPUT_CALL_END    /* text is the whole call as the model wrote it, including delimiters, for an exact replay */
} qn_output_event_kind;

typedef enum qn_output_call_end {
    QN_OUTPUT_COMPLETE, /* the arguments are complete */
    QN_OUTPUT_CUT,   /* the output ended inside the call: the arguments are a proper prefix of JSON, or "". The call's
                        text is not delivered as content */
    QN_OUTPUT_BROKEN /* the arguments are as for QN_OUTPUT_CUT, because the text after them is not part of a call. That
                        text is delivered as content. A caller that has not passed the call on can drop it and use its
                        text as content */
} qn_output_call_end;

typedef struct qn_output_event {
    qn_output_event_kind kind;
    const char *text; /* [length] complete characters of UTF-8, not terminated, valid during the call */
    size_t length;
    size_t call;                 /* index of the call, for the events of calls: 0, 1, ... */
    qn_output_call_end call_end; /* read with QN_OUTPUT_CALL_END only */
} qn_output_event;

#ifdef __cplusplus
}
#endif
#endif
