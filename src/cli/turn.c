/* Turns as tokens, for chat and for run --chat: the session keeps the conversation, so that a turn costs the evaluation of that
 * turn alone; how its tokens are found without the history is explained at qn_turn_tokens(). */
#include "cli/turn.h"

#include <string.h>

/* Tokens of a short conversation: the system's turn, then `history` (a user's and an assistant's turn, when asked for), then
 * the user's text with the opening of the answer, when there is one. */
static qn_status render(const qn_model *model, const char *system, bool history, const char *text, qn_token **tokens,
                        size_t *count)
{
    qn_chat_message messages[4];
    size_t n = 0;
    if (system)
        messages[n++] = (qn_chat_message){ "system", system };
    if (history) {
        messages[n++] = (qn_chat_message){ "user", "." };
        messages[n++] = (qn_chat_message){ "assistant", "." };
    }
    if (text)
        messages[n++] = (qn_chat_message){ "user", text };
    return qn_chat_tokens(model, messages, n, text != NULL, tokens, count);
}

/* The first turn is simply the conversation so far. For a later one the history itself is in the session and must not be made
 * again (its tokens are those that were generated, which need not be those of their text); what follows it is found on a
 * stand-in: the tokens of (user, assistant, new turn) after those of (user, assistant), preceded by what closes the assistant's
 * turn, from the last end token on. */
qn_status qn_turn_tokens(const qn_session *session, const qn_model *model, const char *system, const char *text,
                         qn_token **tokens, size_t *count)
{
    if (!qn_session_length(session))
        return render(model, system, false, text, tokens, count);
    qn_token *before, *with, pending;
    size_t n_before, n_with;
    qn_status status = render(model, system, true, NULL, &before, &n_before);
    if (status)
        return status;
    status = render(model, system, true, text, &with, &n_with);
    if (status) {
        qn_free_tokens(before);
        return status;
    }
    size_t close = n_before;
    for (size_t i = n_before; i-- > 0;)
        if (qn_token_is_end(model, before[i])) {
            close = i;
            break;
        }
    /* In place: with[] has room, since the closing tokens stand in it before the new turn. A pending token takes the slot of
     * the stand-in's text before them; one that ends a turn is among those that close it. */
    size_t first = close;
    if (first > 0 && qn_session_pending(session, &pending) && !qn_token_is_end(model, pending))
        with[--first] = pending;
    memmove(with, with + first, (n_with - first) * sizeof *with);
    qn_free_tokens(before);
    *tokens = with;
    *count = n_with - first;
    return QN_OK;
}
