/* Constraints: where a grammar begins, its match, and the sample under a mask. */
#include "engine/constraint.h"

#include "base/memory.h"
#include "base/splitmix.h"

#include <stdlib.h>
#include <string.h>

/* Tokens at the end of a prompt that are searched for the beginning or end of reasoning. */
enum { PROMPT_END = 64 };

static qn_status end_of_prompt(const qn_tokenizer *tok, const qn_token *prompt, size_t n, char **text, size_t *length)
{
    size_t capacity = 0;
    *text = NULL;
    *length = 0;
    for (size_t i = n < PROMPT_END ? 0 : n - PROMPT_END; i < n; i++) {
        const char *bytes;
        size_t n_bytes;
        if (prompt[i] < 0 || (size_t)prompt[i] >= qn_tokenizer_n_vocab(tok))
            continue;
        qn_status status = qn_tokenizer_piece(tok, prompt[i], &bytes, &n_bytes);
        if (status == QN_OK)
            status = qn_realloc_array(text, &capacity, *length + n_bytes + 1, 1, "prompt");
        if (status != QN_OK) {
            free(*text);
            *text = NULL;
            return status;
        }
        memcpy(*text + *length, bytes, n_bytes);
        *length += n_bytes;
    }
    return QN_OK;
}

/* Sets start to what follows reasoning. *at_once: there is none in the answer. */
static qn_status start_after_reasoning(const qn_model *model, const qn_token *prompt, size_t n, qn_grammar_start *start,
                                       bool *at_once)
{
    qn_output_params output;
    char *text;
    size_t length;
    *at_once = true;
    if (!model->chat || (qn_chat_template_output(model->chat, &output), !output.think_open.text))
        return QN_OK;
    QN_TRY(end_of_prompt(model->tokenizer, prompt, n, &text, &length));
    const bool opens = qn_output_prompt_opens_reasoning(&output, text ? text : "", length);
    const qn_output_delimiter open = output.think_open;
    output.think_open = output.think_close;
    const bool closes = qn_output_prompt_opens_reasoning(&output, text ? text : "", length);
    free(text);
    if (closes || (!opens && open.token < 0))
        return QN_OK;
    *at_once = false;
    start->trigger_token = output.think_close.token;
    if (output.think_close.token < 0) {
        start->trigger = output.think_close.text;
        start->n_trigger = strlen(output.think_close.text);
    }
    start->opening_token = opens ? -1 : open.token;
    return QN_OK;
}

static qn_status find_start(const qn_model *model, const qn_grammar_trigger *trigger, const qn_token *prompt, size_t n,
                            qn_grammar_start *start, bool *at_once)
{
    *start = (qn_grammar_start){ .trigger_token = -1, .opening_token = -1 };
    *at_once = true;
    if ((trigger->text != NULL) != (trigger->when == QN_GRAMMAR_AFTER_TEXT))
        return qn_fail(QN_ERR_INVALID, "grammar_trigger: %d %s text", (int)trigger->when, trigger->text ? "with" : "without");
    switch (trigger->when) {
    case QN_GRAMMAR_AT_ONCE: return QN_OK;
    case QN_GRAMMAR_AFTER_REASONING: return start_after_reasoning(model, prompt, n, start, at_once);
    case QN_GRAMMAR_AFTER_TEXT:
        start->trigger = trigger->text;
        start->n_trigger = strlen(trigger->text);
        *at_once = false;
        return start->n_trigger ? QN_OK : qn_fail(QN_ERR_INVALID, "grammar_trigger: the text is empty");
    }
    return qn_fail(QN_ERR_INVALID, "grammar_trigger: %d, expected 0 to %d", (int)trigger->when, QN_GRAMMAR_AFTER_TEXT);
}

qn_status qn_constraint_create(qn_model *model, qn_grammar *grammar, const qn_grammar_trigger *trigger, const qn_token *prompt,
                               size_t n, const qn_sampling *sampling, qn_constraint *out)
{
    const qn_tokenizer *tok;
    qn_grammar_vocab *vocab;
    qn_grammar_start start;
    qn_grammar_match *match;
    bool at_once;
    *out = (qn_constraint){ 0 };
    if (!grammar)
        return QN_OK;
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(find_start(model, trigger, prompt, n, &start, &at_once));
    QN_TRY(qn_grammars_vocab(model->grammars, tok, &vocab));
    QN_TRY(qn_grammar_match_create(vocab, grammar, at_once ? NULL : &start, &match));
    *out = (qn_constraint){ .accepts = qn_grammar_match_check_first(sampling) ? qn_grammar_match_accepts : NULL,
                            .mask = qn_grammar_match_mask,
                            .user = match,
                            .grammar = qn_grammar_share(grammar),
                            .match = match };
    return QN_OK;
}

void qn_constraint_free(qn_constraint *c)
{
    qn_grammar_match_free(c->match);
    qn_grammar_free(c->grammar);
}

void qn_constraint_again(const qn_constraint *c, const uint32_t *allowed, qn_sample_request *request)
{
    request->check = NULL;
    request->allowed = allowed;
    /* The random number of a rejected token is not uniform any more. */
    if (c->accepts)
        request->random = qn_splitmix(&request->random);
}

void qn_constraint_mask(const qn_constraint *c, const qn_token *answer, size_t n, size_t n_vocab, uint32_t *allowed)
{
    memset(allowed, 0, qn_sample_mask_words(n_vocab) * sizeof *allowed);
    c->mask(c->user, answer, n, allowed);
}
