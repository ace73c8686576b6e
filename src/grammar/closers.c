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

qn_status qn_closers_make(const qn_grammar_vocab *v, qn_trie_text *texts, size_t n, qn_closers *closers)
{
    qsort(texts, n, sizeof *texts, compare_texts);
    QN_TRY(qn_alloc(&closers->tokens, count_tokens(v, texts, n), sizeof *closers->tokens, "grammar vocabulary"));
    QN_TRY(qn_alloc(&closers->begins, n + 1, sizeof *closers->begins, "grammar vocabulary"));
    make_groups(v, texts, n, closers);
    return qn_trie_make(texts + closers->has_bare, closers->n_groups - closers->has_bare, &closers->trie);
}

void qn_closers_free(qn_closers *closers)
{
    qn_trie_free(&closers->trie);
    qn_free(closers->tokens);
    qn_free(closers->begins);
}
