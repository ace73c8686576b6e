/* Generates an answer in chat: the session evaluates the part of the prompt that it does not hold yet; the output is
 * parsed into reasoning and content and shown as it arrives. */
#ifndef QN_CLI_ANSWER_H
#define QN_CLI_ANSWER_H

#include "cli/args.h"
#include "cli/conversation.h"

typedef enum qn_reasoning_view {
    QN_REASONING_SHOW, /* dimmed on a terminal; elsewhere text between the template's delimiters */
    QN_REASONING_FOLD, /* on a terminal one line that counts its tokens */
    QN_REASONING_HIDE
} qn_reasoning_view;

typedef struct qn_cli_answer {
    char *content, *reasoning;                 /* zero-terminated; NULL: none */
    size_t n_prompt, n_reused;                 /* tokens of the prompt, and how many of them the session already held */
    size_t n_generated, n_drafted, n_accepted; /* the last two as in qn_request_result */
    double prompt_seconds, generate_seconds;   /* until the first token; after it */
    qn_finish finish;
    bool broken; /* standard output cannot be written any more */
} qn_cli_answer;

/* qn_cli_answer_generate - generate and show an answer to a prompt.
 *
 *   session   keeps the longest prefix of the prompt that it holds and can be truncated to, and evaluates the rest;
 *             gets a checkpoint after the messages of the prompt
 *   params    sampling, limits and stop strings; callbacks are set here
 *   answer    free it with qn_cli_answer_free, whatever the status; after an error it has the text generated so far
 *
 * QN_ERR_CANCELLED: Ctrl-C before the first token. */
qn_status qn_cli_answer_generate(qn_session *session, const qn_model *model, const qn_cli_prompt *prompt,
                                 const qn_request_params *params, qn_reasoning_view view, qn_cli_answer *answer);
void qn_cli_answer_free(qn_cli_answer *answer);

#endif
