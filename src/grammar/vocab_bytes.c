/* The bytes of tokens, and where they lead in a JSON string. */
#include "grammar/vocab.h"

const char *qn_grammar_vocab_bytes(const qn_grammar_vocab *v, qn_token token, size_t *length)
{
    *length = 0;
    if (token < 0 || (size_t)token >= v->n_tokens)
        return NULL;
    *length = v->offsets[token + 1] - v->offsets[token];
    return *length ? v->bytes + v->offsets[token] : NULL;
}

qn_in_string qn_vocab_run_string(const qn_grammar_vocab *v, int32_t token, qn_string_form form, uint32_t *n_characters,
                                 uint32_t *n_bytes)
{
    const qn_string_table *table = qn_string_machine(form);
    size_t length;
    const char *text = qn_grammar_vocab_bytes(v, token, &length);
    uint8_t state = 0;
    *n_characters = 0;
    for (*n_bytes = 0; *n_bytes < length;) {
        const uint8_t before = state;
        state = (*table)[state][(uint8_t)text[(*n_bytes)++]];
        if (state == QN_STRING_REJECTED)
            return QN_IN_STRING_LEAVES;
        if (state == QN_STRING_END)
            return QN_IN_STRING_CLOSES;
        *n_characters += !before;
    }
    return QN_IN_STRING_STAYS;
}
