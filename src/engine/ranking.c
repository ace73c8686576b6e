/* What a model that ranks documents has: the prompt of its file, its head, and the scores that this computes. */
#include "engine/ranking.h"

#include "base/memory.h"
#include "model/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Finds the only occurrence of a word; NULL: there is none, or another one. */
static const char *find_once(qn_string text, const char *word)
{
    const size_t length = strlen(word);
    const char *found = NULL;
    for (size_t i = 0; i + length <= text.length; i++)
        if (memcmp(text.data + i, word, length) == 0) {
            if (found)
                return NULL;
            found = text.data + i;
        }
    return found;
}

/* Keeps the parts of the prompt around {query} and {document}. Files store it next to the chat template, as llama.cpp
 * does (conversion/qwen.py). */
static qn_status find_prompt(const qn_gguf *file, const qn_tokenizer *tok, qn_ranking *r)
{
    static const char query_word[] = "{query}", document_word[] = "{document}";
    qn_string text = { 0 };
    QN_TRY(qn_gguf_get_string(file, "tokenizer.chat_template.rerank", false, &text));
    const char *query = find_once(text, query_word), *document = find_once(text, document_word);
    if (!query || !document) {
        r->missing = text.length ? "its prompt, the key tokenizer.chat_template.rerank, has not one {query} and one "
                                   "{document}"
                                 : "its file has no prompt for it, the key tokenizer.chat_template.rerank";
        return QN_OK;
    }
    r->query_first = query < document;
    const size_t first = (size_t)((r->query_first ? query : document) - text.data),
                 second = (size_t)((r->query_first ? document : query) - text.data),
                 first_word = r->query_first ? sizeof query_word - 1 : sizeof document_word - 1,
                 second_word = sizeof query_word + sizeof document_word - 2 - first_word;
    QN_TRY(qn_alloc(&r->text, text.length, 1, "a prompt"));
    QN_TRY(qn_alloc(&r->structural, qn_tokenizer_n_vocab(tok), sizeof *r->structural, "a prompt"));
    r->ends[0] = first;
    r->ends[1] = second - first_word;
    r->ends[2] = text.length - first_word - second_word;
    memcpy(r->text, text.data, first);
    memcpy(r->text + first, text.data + first + first_word, second - first - first_word);
    memcpy(r->text + r->ends[1], text.data + second + second_word, text.length - second - second_word);
    for (size_t i = 0, begin = 0; i < QN_RANKING_PARTS; begin = r->ends[i++])
        qn_tokenizer_mark_structural(tok, r->text + begin, r->ends[i] - begin, r->structural);
    return QN_OK;
}

static qn_status decode_head(const qn_gguf *file, const qn_matrix *head, qn_ranking *r)
{
    const qn_type_info *type = head->type;
    r->n_labels = head->n_rows;
    r->n_embd = head->n_cols;
    QN_TRY(qn_alloc(&r->head, r->n_labels * r->n_embd, sizeof *r->head, "the head that ranks documents"));
    for (size_t i = 0; i < r->n_labels; i++)
        type->to_float(head->data + i * head->row_bytes, head->row_bytes / type->block_bytes, r->head + i * r->n_embd);
    for (size_t i = 0; i < r->n_labels * r->n_embd; i++)
        if (!isfinite(r->head[i]))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor 'cls.output.weight' has a value that is not finite, in row %zu",
                           qn_gguf_path(file), i / r->n_embd);
    return QN_OK;
}

qn_status qn_ranking_find(const qn_gguf *file, const qn_plan *plan, const qn_tokenizer *tok, qn_ranking *r)
{
    *r = (qn_ranking){ 0 };
    if (!plan->rank_head.n_rows) {
        r->missing = "it has no head that ranks documents, a tensor cls.output.weight with pooling_type 4";
        return QN_OK;
    }
    QN_TRY(decode_head(file, &plan->rank_head, r));
    if (tok)
        return find_prompt(file, tok, r);
    r->missing = "its tokeniser is not supported";
    return QN_OK;
}

void qn_ranking_free(qn_ranking *r)
{
    qn_free(r->head);
    qn_free(r->text);
    qn_free(r->structural);
    *r = (qn_ranking){ 0 };
}

qn_status qn_ranking_check(const qn_ranking *r)
{
    /* Without the path: clients of a server read this text. */
    return r->missing ? qn_fail(QN_ERR_UNSUPPORTED, "the model does not rank documents: %s", r->missing) : QN_OK;
}

float qn_ranking_score(const qn_ranking *r, const float *state)
{
    double logits[QN_RANK_MAX_LABELS], largest = -INFINITY, total = 0;
    for (size_t i = 0; i < r->n_labels; i++) {
        logits[i] = 0;
        for (size_t k = 0; k < r->n_embd; k++)
            logits[i] += (double)r->head[i * r->n_embd + k] * (double)state[k];
        largest = fmax(largest, logits[i]);
    }
    for (size_t i = 0; i < r->n_labels; i++)
        total += exp(logits[i] - largest);
    return (float)(exp(logits[0] - largest) / total);
}
