/* Turns of a conversation as tokens. */
#ifndef QN_CLI_TURN_H
#define QN_CLI_TURN_H

#include "quern/quern.h"

/* qn_turn_tokens - the tokens that a user's turn adds to what the session holds, up to the opening of the answer; of an empty
 * session the system's turn first, where `system` is not NULL. Tokens as for qn_tokenize; QN_ERR_UNSUPPORTED for a model whose
 * chat format is not known. */
qn_status qn_turn_tokens(const qn_session *session, const qn_model *model, const char *system, const char *text,
                         qn_token **tokens, size_t *count);

/* qn_first_turn_tokens - the same of a conversation that begins with this turn, whatever a session holds. */
qn_status qn_first_turn_tokens(const qn_model *model, const char *system, const char *text, qn_token **tokens, size_t *count);

/* qn_session_system - the text of the system's turn with which the session's conversation begins, the caller's to free(); NULL
 * where it begins otherwise. */
qn_status qn_session_system(const qn_session *session, const qn_model *model, char **system);

#endif
