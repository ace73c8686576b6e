/* Tokens that close a JSON string, grouped by their bytes after the quote. Where a string may end anywhere, each
 * group is checked once for all its tokens. */
#include "grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static int compare_texts(const void *a, const void *b)
{
    const qn_trie_text *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order                    ? order
           : x->length != y->length ? (x->length > y->length) - (x->length < y->length)
                                    : x->value - y->value;
}

static bool have_equal_bytes(const qn_trie_text *a, const qn_trie_text *b)
{
    return a->length == b->length && !memcmp(a->text, b->text, a->length);
}

/* The bytes after the quote of each token that closes. texts: [n]. Returns their number. */
static size_t find_texts(const qn_grammar_vocab *v, const int32_t *tokens, size_t n, qn_string_form form,
                         qn_closers *closers, qn_trie_text *texts)
{
    size_t n_texts = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t n_characters, n_bytes;
        size_t length;
        const char *text = qn_grammar_vocab_bytes(v, tokens[i], &length);
        if (qn_vocab_run_string(v, tokens[i], form, &n_characters, &n_bytes) != QN_IN_STRING_CLOSES)
            continue;
        if (closers->most_characters < n_characters)
            closers->most_characters = n_characters;
        texts[n_texts++] = (qn_trie_text){ text + n_bytes, (uint32_t)length - n_bytes, tokens[i] };
    }
    qsort(texts, n_texts, sizeof *texts, compare_texts);
    return n_texts;
}

static size_t count_tokens(const qn_grammar_vocab *v, const qn_trie_text *texts, size_t n)
{
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++)
        for (int32_t t = texts[i].value; t >= 0; t = v->same[t])
            n_tokens++;
    return n_tokens;
}

/* Fills the groups. `texts` is reduced to one text for each group, with the group as its value. */
static void make_groups(const qn_grammar_vocab *v, qn_trie_text *texts, size_t n, qn_closers *closers)
{
    uint32_t n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        const qn_trie_text text = texts[i];
        if (!closers->n_groups || !have_equal_bytes(&text, &texts[closers->n_groups - 1])) {
            closers->begins[closers->n_groups] = n_tokens;
            texts[closers->n_groups] = (qn_trie_text){ text.text, text.length, (int32_t)closers->n_groups };
            closers->n_groups++;
        }
        for (int32_t t = text.value; t >= 0; t = v->same[t])
            closers->tokens[n_tokens++] = (uint32_t)t;
    }
    closers->begins[closers->n_groups] = n_tokens;
    closers->has_bare = closers->n_groups > 0 && texts[0].length == 0;
}

qn_status qn_closers_make(const qn_grammar_vocab *v, const int32_t *tokens, size_t n, qn_string_form form,
                          qn_closers *closers)
{
    qn_trie_text *texts;
    QN_TRY(qn_alloc(&texts, n, sizeof *texts, "grammar vocabulary"));
    const size_t n_texts = find_texts(v, tokens, n, form, closers, texts);
    qn_status status =
        qn_alloc(&closers->tokens, count_tokens(v, texts, n_texts), sizeof *closers->tokens, "grammar vocabulary");
    if (status == QN_OK)
        status = qn_alloc(&closers->begins, n_texts + 1, sizeof *closers->begins, "grammar vocabulary");
    if (status == QN_OK) {
        make_groups(v, texts, n_texts, closers);
        status = qn_trie_make(texts + closers->has_bare, closers->n_groups - closers->has_bare, &closers->trie);
    }
    qn_free(texts);
    return status;
}

void qn_closers_free(qn_closers *closers)
{
    qn_trie_free(&closers->trie);
    qn_free(closers->tokens);
    qn_free(closers->begins);
}
