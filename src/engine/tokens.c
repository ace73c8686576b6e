/* Conversion between text and tokens with a model's tokeniser. */
#include "engine/internal.h"

#include <stdlib.h>

qn_status qn_model_tokenizer(const qn_model *model, const qn_tokenizer **tok)
{
    *tok = model->tokenizer;
    return *tok ? QN_OK : qn_fail(QN_ERR_UNSUPPORTED, "%s", model->no_tokenizer);
}

qn_status qn_tokenize(const qn_model *model, const char *text, size_t length, bool parse_special, bool add_bos,
                      qn_token **tokens, size_t *count)
{
    const qn_tokenizer *tok;
    QN_TRY(qn_model_tokenizer(model, &tok));
    return qn_tokenizer_encode(tok, text, length, parse_special, add_bos, tokens, count);
}

size_t qn_least_tokens(const qn_model *model, size_t length)
{
    return model->tokenizer ? qn_tokenizer_least_tokens(model->tokenizer, length) : 0;
}

void qn_free_tokens(qn_token *tokens)
{
    free(tokens);
}

qn_status qn_token_piece(const qn_model *model, qn_token token, const char **bytes, size_t *length)
{
    const qn_tokenizer *tok;
    QN_TRY(qn_model_tokenizer(model, &tok));
    return qn_tokenizer_piece(tok, token, bytes, length);
}

bool qn_token_is_special(const qn_model *model, qn_token token)
{
    return model->tokenizer && qn_tokenizer_is_special(model->tokenizer, token);
}

qn_status qn_model_check_tokens(const qn_model *model, const char *what, const qn_token *tokens, size_t n)
{
    const size_t n_vocab = model->hparams.n_vocab;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= n_vocab)
            return qn_fail(QN_ERR_INVALID, "%s %zu: id %d is outside the vocabulary, expected 0 to %zu", what, i,
                           (int)tokens[i], n_vocab - 1);
    return QN_OK;
}

bool qn_token_is_end(const qn_model *model, qn_token token)
{
    return model->tokenizer && qn_tokenizer_is_eog(model->tokenizer, token);
}
