/* Drafts (speculative decoding), from the options of run, chat, serve, batch and bench. */
#ifndef QN_CLI_DRAFT_H
#define QN_CLI_DRAFT_H

#include "cli/args.h"

/* qn_find_draft - returns the value of --draft. */
qn_draft_kind qn_find_draft(const qn_args *args);

/* qn_check_draft - check that the drafter is there. Returns QN_EXIT_DONE, or QN_EXIT_USAGE after an error line. */
int qn_check_draft(const qn_args *args);

/* qn_draft_text - returns ", 1.84 tokens/step (120 of 160 drafted)", or "" if nothing was drafted. n_jumped: as in
 * qn_request_result. `buffer`: of QN_DRAFT_TEXT bytes. */
enum { QN_DRAFT_TEXT = 96 };
const char *qn_draft_text(size_t n_generated, size_t n_jumped, size_t n_drafted, size_t n_accepted, char *buffer);

/* qn_tokens_per_step - returns the average number of tokens that a step gave, if n_accepted of them needed no step of
 * their own. */
double qn_tokens_per_step(size_t n_generated, size_t n_accepted);

#endif
