/* quern: what a model writes, parsed back into reasoning, content and tool calls.
 *
 * An answer to a prompt of the model's chat format is received as a stream of these events, from qn_generate
 * and from a scheduler (qn_request_params.on_event). docs/tool-calls.md describes the forms of
 * calls, and what is recognised.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef QUERN_OUTPUT_H
#define QUERN_OUTPUT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What does not parse is content (or reasoning) with its exact bytes, never an error. Texts are not empty. What comes
 * of an answer that is cut, by a limit or because it was cancelled, is the beginning of what would have come of the
 * whole one. */
typedef enum qn_output_event_kind {
    QN_OUTPUT_REASONING,
    QN_OUTPUT_CONTENT,
    QN_OUTPUT_CALL_BEGIN, /* text is the function's name */
    QN_OUTPUT_ARGUMENTS,  /* text continues the arguments: the pieces of a call are its arguments as JSON, an object */
    QN_OUTPUT_CALL_END /* text is all that the model wrote of the call, delimiters included: for a replay of the exact
                          bytes */
} qn_output_event_kind;

typedef enum qn_output_call_end {
    QN_OUTPUT_COMPLETE, /* the arguments are complete */
    QN_OUTPUT_CUT,      /* the output ended: the arguments are a proper prefix of JSON, or "". Its text is no content */
    QN_OUTPUT_BROKEN /* the arguments are as those of QN_OUTPUT_CUT, but what follows is not part of a call. It comes as
                        content. A caller that has not passed the call on can drop it, and take its text as content */
} qn_output_call_end;

typedef struct qn_output_event {
    qn_output_event_kind kind;
    const char *text; /* [length] complete characters of UTF-8, not terminated, valid during the call */
    size_t length;
    size_t call;                 /* of events of calls: 0, 1, ... */
    qn_output_call_end call_end; /* of QN_OUTPUT_CALL_END */
} qn_output_event;

#ifdef __cplusplus
}
#endif
#endif
