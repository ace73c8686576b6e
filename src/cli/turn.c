/* Turns as tokens, for chat and for run --chat. The session holds the conversation, so only the new turn is evaluated;
 * qn_turn_tokens() explains how its tokens are found without the history. */
#include "cli/turn.h"

#include "base/memory.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of a short conversation: the system turn unless `system` is NULL; a user and an assistant turn with `history`;
 * the user's text and the opening of the answer unless `text` is NULL. */
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

qn_status qn_first_turn_tokens(const qn_model *model, const char *system, const char *text, qn_token **tokens, size_t *count)
{
    return render(model, system, false, text, tokens, count);
}

/* The place in with[] of the end token that closes the stand-in's answer, which is the last one of before[]: a template may
 * print the answer in another way when a turn follows it, so that it is found by its number among the end tokens. n_with if
 * there is none. */
static size_t closing_end(const qn_model *model, const qn_token *before, size_t n_before, const qn_token *with, size_t n_with)
{
    size_t n_ends = 0, at = 0;
    for (size_t i = 0; i < n_before; i++)
        n_ends += qn_token_is_end(model, before[i]);
    for (; at < n_with && n_ends > 0; at++)
        if (qn_token_is_end(model, with[at]) && --n_ends == 0)
            return at;
    return n_with;
}

/* The first turn is simply the conversation so far. For a later one the history itself is in the session and must not be made
 * again (its tokens are those that were generated, which need not be those of their text); what follows it is found on a
 * stand-in: the tokens of (user, assistant, new turn) after those of (user, assistant), preceded by what closes the
 * assistant's turn, from the last end token on. */
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
    const size_t close = closing_end(model, before, n_before, with, n_with);
    qn_free_tokens(before);
    if (close == n_with) {
        qn_free_tokens(with);
        return qn_fail(QN_ERR_UNSUPPORTED, "the chat template closes an answer in another way when a turn follows it");
    }
    /* Moved within with[], which is long enough: it holds the closing tokens before the new turn. A pending token replaces the
     * last token of the stand-in's text; one that ends a turn is one of the closing tokens. */
    size_t first = close;
    if (first > 0 && qn_session_pending(session, &pending) && !qn_token_is_end(model, pending))
        with[--first] = pending;
    memmove(with, with + first, (n_with - first) * sizeof *with);
    *tokens = with;
    *count = n_with - first;
    return QN_OK;
}

/* ---- The system's turn of a session ---- */

/* The text of tokens, special ones by their names, up to and with the first that ends a turn. */
static qn_status turn_text(const qn_model *model, const qn_token *tokens, size_t n, char **text)
{
    size_t length = 0, capacity = 0;
    *text = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *piece;
        size_t bytes;
        qn_status status = qn_token_piece(model, tokens[i], &piece, &bytes);
        if (status == QN_OK)
            status = qn_realloc_array(text, &capacity, length + bytes + 1, 1, "system turn");
        if (status) {
            free(*text);
            *text = NULL;
            return status;
        }
        memcpy(*text + length, piece, bytes);
        length += bytes;
        (*text)[length] = 0;
        if (qn_token_is_end(model, tokens[i]))
            break;
    }
    return QN_OK;
}

/* The first turn of a conversation with this system text. */
static qn_status system_turn_text(const qn_model *model, const char *system, char **text)
{
    qn_token *tokens;
    size_t count;
    *text = NULL;
    const qn_status status = qn_first_turn_tokens(model, system, ".", &tokens, &count);
    if (status)
        return status;
    const qn_status made = turn_text(model, tokens, count, text);
    qn_free_tokens(tokens);
    return made;
}

/* Two system turns with different texts share a prefix and a suffix: the template's. The session's first turn is compared with
 * both. */
qn_status qn_session_system(const qn_session *session, const qn_model *model, char **system)
{
    char *a = NULL, *b = NULL, *turn = NULL;
    *system = NULL;
    qn_status status = system_turn_text(model, "a", &a);
    if (status == QN_OK)
        status = system_turn_text(model, "b", &b);
    if (status == QN_OK)
        status = turn_text(model, qn_session_tokens(session), qn_session_length(session), &turn);
    if (status == QN_OK && a && b && turn) {
        size_t before = 0;
        while (a[before] && a[before] == b[before])
            before++;
        const size_t after = strlen(a + before) - 1, length = strlen(turn);
        if (length >= before + after && memcmp(turn, a, before) == 0 &&
            memcmp(turn + length - after, a + before + 1, after) == 0) {
            *system = strndup(turn + before, length - before - after);
            if (!*system)
                status = qn_fail(QN_ERR_MEMORY, "no memory for the system's turn");
        }
    }
    free(a);
    free(b);
    free(turn);
    return status;
}
