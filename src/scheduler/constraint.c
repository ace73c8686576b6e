/* Constraints: the start of a grammar, its match and sampling under a mask; also tokens held back by min_tokens. */
#include "scheduler/constraint.h"

#include "base/memory.h"
#include "base/splitmix.h"
#include "engine/events.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static qn_grammar_trigger_text trigger_of(const qn_output_delimiter *delimiter)
{
    if (delimiter->token >= 0)
        return (qn_grammar_trigger_text){ .token = delimiter->token };
    return (qn_grammar_trigger_text){ delimiter->text, strlen(delimiter->text), -1 };
}

/* Adds the end of reasoning to the triggers, unless there is none in the answer. */
static qn_status add_reasoning(const qn_model *model, const qn_output_params *output, const qn_token *prompt, size_t n,
                               qn_grammar_start *start)
{
    bool opens, closes;
    if (!output->think_open.text)
        return QN_OK;
    QN_TRY(qn_prompt_ends_with(model->tokenizer, prompt, n, &output->think_open, &opens));
    QN_TRY(qn_prompt_ends_with(model->tokenizer, prompt, n, &output->think_close, &closes));
    if (closes || (!opens && output->think_open.token < 0))
        return QN_OK;
    start->triggers[start->n_triggers++] = trigger_of(&output->think_close);
    start->opening_token = opens ? -1 : output->think_open.token;
    return QN_OK;
}

static qn_status find_start(const qn_model *model, const qn_output_params *output, const qn_grammar_trigger *trigger,
                            const qn_token *prompt, size_t n, qn_grammar_start *start)
{
    qn_output_params calls;
    *start = (qn_grammar_start){ .opening_token = -1 };
    if ((trigger->text != NULL) != (trigger->when == QN_GRAMMAR_AFTER_TEXT))
        return qn_fail(QN_ERR_INVALID, "grammar_trigger: %d %s text", (int)trigger->when,
                       trigger->text ? "with" : "without");
    switch (trigger->when) {
    case QN_GRAMMAR_AT_ONCE: return QN_OK;
    case QN_GRAMMAR_AFTER_REASONING: return add_reasoning(model, output, prompt, n, start);
    case QN_GRAMMAR_AT_CALL:
        QN_TRY(qn_model_calls(model, &calls));
        QN_TRY(add_reasoning(model, output, prompt, n, start));
        if (output->form != QN_OUTPUT_LLAMA3) /* whose grammar has the text */
            start->triggers[start->n_triggers++] = trigger_of(&output->call_open);
        return QN_OK;
    case QN_GRAMMAR_AFTER_TEXT:
        start->triggers[start->n_triggers++] =
            (qn_grammar_trigger_text){ trigger->text, strlen(trigger->text),
                                       qn_tokenizer_find(model->tokenizer, trigger->text) };
        return *trigger->text ? QN_OK : qn_fail(QN_ERR_INVALID, "grammar_trigger: the text is empty");
    }
    return qn_fail(QN_ERR_INVALID, "grammar_trigger: %d, expected 0 to %d", (int)trigger->when, QN_GRAMMAR_AT_CALL);
}

/* Takes ownership of the match. */
static qn_constraint of_match(qn_grammar_match *match, qn_grammar *grammar, const qn_sampling *sampling)
{
    return (qn_constraint){ .accepts = qn_grammar_match_check_first(sampling) ? qn_grammar_match_accepts : NULL,
                            .user = match,
                            .grammar = qn_grammar_share(grammar),
                            .match = match };
}

qn_status qn_constraint_create(qn_model *model, qn_grammar *grammar, const qn_grammar_trigger *trigger, bool repeats,
                               const qn_token *prompt, size_t n, const qn_sampling *sampling, qn_constraint *out)
{
    const qn_tokenizer *tok;
    qn_grammar_vocab *vocab;
    qn_grammar_start start;
    qn_grammar_match *match;
    qn_output_params output;
    *out = (qn_constraint){ 0 };
    if (!grammar)
        return QN_OK;
    QN_TRY(qn_model_tokenizer(model, &tok));
    qn_model_output(model, &output);
    QN_TRY(find_start(model, &output, trigger, prompt, n, &start));
    start.repeats = repeats;
    QN_TRY(qn_grammars_vocab(model->grammars, tok, &output, &vocab));
    QN_TRY(qn_grammar_match_create(vocab, grammar, &start, &match));
    *out = of_match(match, grammar, sampling);
    return QN_OK;
}

qn_status qn_constraint_copy(const qn_constraint *of, const qn_sampling *sampling, qn_constraint *out)
{
    qn_grammar_match *match;
    *out = (qn_constraint){ 0 };
    QN_TRY(qn_grammar_match_clone(of->match, &match));
    *out = of_match(match, of->grammar, sampling);
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
    /* The random number of a rejected token is no longer uniform. */
    if (c->accepts)
        request->random = qn_splitmix(&request->random);
}

/* Compares the expected costs of checking first and of masking. A mask costs as much as some tens of checks. A rejected
 * token costs a mask and another sample, and its request has no rows in the steps meanwhile. */
bool qn_constraint_checks_first(const qn_constraint *c)
{
    return c->accepts && c->rejected < 0.1f;
}

void qn_constraint_count_check(qn_constraint *c, bool is_rejected)
{
    c->rejected += 0.25f * ((float)is_rejected - c->rejected);
}

void qn_constraint_count_mask(qn_constraint *c)
{
    c->rejected *= 0.98f;
}

qn_status qn_constraint_mask(const qn_constraint *c, const qn_token *answer, size_t n, size_t n_vocab,
                             uint32_t *allowed)
{
    memset(allowed, 0, qn_sample_mask_words(n_vocab) * sizeof *allowed);
    if (c->match)
        return qn_grammar_match_mask(c->match, answer, n, allowed);
    c->mask(c->user, answer, n, allowed);
    return QN_OK;
}

bool qn_constraint_quick_mask(const qn_constraint *c, const qn_token *answer, size_t n, size_t n_vocab,
                              uint32_t *allowed)
{
    memset(allowed, 0, qn_sample_mask_words(n_vocab) * sizeof *allowed);
    return qn_grammar_match_quick_mask(c->match, answer, n, allowed);
}

/* ---- Tokens that are held back ---- */

qn_status qn_held_biases(const qn_model *model, int64_t min_tokens, bool ignore_end, const qn_token *stop_tokens,
                         size_t n_stop_tokens, const qn_logit_bias *bias, size_t n_bias, qn_logit_bias **out,
                         size_t *n_held)
{
    const size_t n_vocab = min_tokens > 0 && !ignore_end ? model->hparams.n_vocab : 0;
    size_t n = min_tokens > 0 ? n_stop_tokens : 0;
    for (size_t token = 0; token < n_vocab; token++)
        n += qn_token_is_end(model, (qn_token)token);
    QN_TRY(qn_alloc(out, n_bias + n, sizeof **out, "biases"));
    if (n_bias)
        memcpy(*out, bias, n_bias * sizeof **out);
    *n_held = 0;
    qn_logit_bias *held = *out + n_bias;
    for (size_t i = 0; i < n_stop_tokens && min_tokens > 0; i++)
        held[(*n_held)++] = (qn_logit_bias){ stop_tokens[i], -INFINITY };
    for (size_t token = 0; token < n_vocab; token++)
        if (qn_token_is_end(model, (qn_token)token))
            held[(*n_held)++] = (qn_logit_bias){ (qn_token)token, -INFINITY };
    return QN_OK;
}

static bool holds(const qn_logit_bias *held, size_t n, size_t token)
{
    for (size_t i = 0; i < n; i++)
        if ((size_t)held[i].token == token)
            return true;
    return false;
}

void qn_constraint_release(const uint32_t *allowed, size_t n_vocab, size_t n_held, qn_sample_request *request)
{
    const qn_logit_bias *held = request->bias + (request->n_bias - n_held);
    for (size_t i = 0; n_held && i < qn_sample_mask_words(n_vocab); i++)
        for (uint32_t left = allowed[i]; left; left &= left - 1) {
            const size_t token = 32 * i + (size_t)__builtin_ctz(left);
            if (token < n_vocab && !holds(held, n_held, token))
                return;
        }
    request->n_bias -= n_held;
}
