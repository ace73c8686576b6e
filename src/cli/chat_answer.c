/* An answer of quern chat: makes the prompt of the whole conversation, generates, and adds the answer to the
 * messages. */
#include "cli/chat.h"

#include "cli/cli.h"
#include "cli/draft.h"

/* Returns the tokens kept for an answer: a quarter of the context, or -n if that is less. */
static size_t reserve(const qn_chat *chat)
{
    const size_t quarter = qn_session_capacity(chat->session) / 4;
    const int64_t limit = chat->args->n_predict;
    return limit >= 0 && (uint64_t)limit < quarter ? (size_t)limit : quarter;
}

static void note_dropped(const qn_chat *chat, size_t n_turns)
{
    if (n_turns && !chat->args->quiet)
        qn_cli_error("note: the context of %u tokens is full: the oldest %zu turn%s dropped",
                     qn_session_capacity(chat->session), n_turns, n_turns == 1 ? " was" : "s were");
}

static qn_status generate(qn_chat *chat, const qn_cli_prompt *prompt, qn_cli_answer *answer)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.sampling = chat->args->sampling;
    params.sampling.seed = chat->seed++;
    params.max_tokens = chat->args->n_predict;
    params.stop = chat->args->stop.at;
    params.n_stop = chat->args->stop.count;
    params.draft = qn_find_draft(chat->args);
    params.reasoning_budget = chat->args->reasoning_budget;
    return qn_cli_answer_generate(chat->session, chat->model, prompt, &params, chat->view, answer);
}

/* Makes the generated text a message, also if Ctrl-C or the end of the context ended it. */
static bool keep(qn_chat *chat, const qn_cli_answer *answer)
{
    if (qn_conversation_add(&chat->conversation, "assistant", answer->content ? answer->content : "",
                            answer->reasoning)) {
        qn_cli_fail();
        return false;
    }
    if (answer->finish == QN_FINISH_CONTEXT)
        qn_cli_error("note: the answer ends here: the context of %u tokens is full; a larger -c holds more",
                     qn_session_capacity(chat->session));
    return true;
}

bool qn_chat_answer(qn_chat *chat, size_t n_before)
{
    qn_cli_prompt prompt;
    qn_cli_answer answer = { 0 };
    qn_status status =
        qn_conversation_prompt(&chat->conversation, qn_session_capacity(chat->session), reserve(chat), &prompt);
    if (status) { /* the template refuses the message, or it is too long */
        qn_conversation_truncate(&chat->conversation, n_before);
        qn_cli_fail();
        return status != QN_ERR_MEMORY;
    }
    note_dropped(chat, prompt.n_turns);
    qn_line_quiet(chat->lines);
    status = generate(chat, &prompt, &answer);
    qn_cli_prompt_free(&prompt);
    bool go_on = !answer.broken;
    if (go_on && status && status != QN_ERR_CANCELLED) {
        qn_cli_fail();
        go_on = false;
    }
    if (!go_on || status || !answer.n_generated)
        qn_conversation_truncate(&chat->conversation, n_before);
    else
        go_on = keep(chat, &answer);
    chat->last = answer;
    chat->last.content = chat->last.reasoning = NULL;
    qn_cli_answer_free(&answer);
    return go_on;
}

bool qn_chat_ask(qn_chat *chat, const char *text)
{
    const size_t n_before = json_array_size(chat->conversation.messages);
    if (qn_conversation_add(&chat->conversation, "user", text, NULL)) {
        qn_cli_fail();
        return false;
    }
    return qn_chat_answer(chat, n_before);
}
