/* An answer of chat: the session evaluates what it does not hold of a prompt, and what is generated is parsed into reasoning and
 * content and shown as it comes. */
#ifndef QN_CLI_ANSWER_H
#define QN_CLI_ANSWER_H

#include "cli/args.h"
#include "cli/conversation.h"

typedef enum qn_reasoning_view {
    QN_REASONING_SHOW, /* dimmed on a terminal; elsewhere text between the template's delimiters */
    QN_REASONING_FOLD, /* on a terminal one line that counts its tokens */
    QN_REASONING_HIDE
} qn_reasoning_view;

typedef struct qn_answer {
    char *content, *reasoning; /* zero-terminated; NULL: none */
    size_t n_prompt, n_reused; /* tokens of the prompt, and those of them that the session held */
    size_t n_generated;
    double prompt_seconds, generate_seconds; /* until the first token, and from it on */
    qn_finish finish;
    bool broken; /* standard output takes no more */
} qn_answer;

/* qn_answer_generate - generate and show an answer to a prompt.
 *
 *   session   evaluated from the longest prefix on that it holds of the prompt and can be truncated to; gets a checkpoint
 *             after the messages of the prompt
 *   params    sampling, limits and stop strings; callbacks are set here
 *   answer    free it with qn_answer_free, whatever the status; of an error it has what was generated
 *
 * QN_ERR_CANCELLED after Ctrl-C before the first token. */
qn_status qn_answer_generate(qn_session *session, const qn_model *model, const qn_prompt *prompt,
                             const qn_request_params *params, qn_reasoning_view view, qn_answer *answer);
void qn_answer_free(qn_answer *answer);

#endif
