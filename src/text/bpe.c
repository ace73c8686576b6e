/* Byte-pair merging with a linked list of tokens and a heap of candidate pairs. */
#include "text/bpe.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct qn_bpe_links {
    int32_t prev, next; /* -1 at the ends */
};

/* A candidate pair. It is stale if `left` and `right` are no longer the tokens at its position. */
struct qn_bpe_pair {
    uint32_t rank;
    uint32_t at; /* position of the left token */
    uint32_t left, right;
    uint32_t token;
};

static size_t pair_slot(const qn_merges *merges, uint32_t left, uint32_t right)
{
    size_t slot = qn_keyed_hash_pair(&merges->words, left, right) & merges->slot_mask;
    while (merges->slots[slot].rank && (merges->slots[slot].left != left || merges->slots[slot].right != right))
        slot = (slot + 1) & merges->slot_mask;
    return slot;
}

static qn_status add_merge(qn_merges *merges, const qn_vocab *vocab, const qn_gguf *file, qn_string line, uint32_t rank,
                           char **merged, size_t *merged_capacity)
{
    const int shown = (int)(line.length < 80 ? line.length : 80);
    const char *space = line.length ? memchr(line.data, ' ', line.length) : NULL;
    const size_t n_left = space ? (size_t)(space - line.data) : 0;
    const size_t n_right = space ? line.length - n_left - 1 : 0;
    if (!n_left || !n_right || memchr(space + 1, ' ', n_right))
        return qn_fail(QN_ERR_FORMAT, "%s: merge %u is '%.*s', expected two tokens with a space between",
                       qn_gguf_path(file), rank - 1, shown, line.data);
    QN_TRY(qn_realloc_array(merged, merged_capacity, n_left + n_right, 1, "merge"));
    memcpy(*merged, line.data, n_left);
    memcpy(*merged + n_left, space + 1, n_right);
    const int32_t left = qn_vocab_find(vocab, line.data, n_left);
    const int32_t right = qn_vocab_find(vocab, space + 1, n_right);
    const int32_t token = qn_vocab_find(vocab, *merged, n_left + n_right);
    if (left < 0 || right < 0 || token < 0)
        return qn_fail(QN_ERR_FORMAT, "%s: merge %u is '%.*s', and its %s is not in the vocabulary", qn_gguf_path(file),
                       rank - 1, shown, line.data,
                       left < 0    ? "left part"
                       : right < 0 ? "right part"
                                   : "whole");
    if (qn_vocab_is_control(vocab, token))
        return QN_OK;
    qn_merge *slot = merges->slots + pair_slot(merges, (uint32_t)left, (uint32_t)right);
    if (!slot->rank)
        *slot = (qn_merge){ (uint32_t)left, (uint32_t)right, (uint32_t)token, rank };
    return QN_OK;
}

qn_status qn_merges_load(qn_merges *merges, const qn_vocab *vocab, const qn_gguf *file)
{
    static const char key[] = "tokenizer.ggml.merges";
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    if (!kv)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' is missing", qn_gguf_path(file), key);
    if (kv->type != QN_GGUF_ARRAY || kv->element_type != QN_GGUF_STRING || kv->count > INT32_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: '%s' must be an array of at most 2^31-1 strings", qn_gguf_path(file), key);
    const size_t n = (size_t)kv->count;
    size_t n_slots = 16;
    while (n_slots < n + n / 2)
        n_slots *= 2;
    QN_TRY(qn_alloc(&merges->slots, n_slots, sizeof *merges->slots, "merges"));
    merges->slot_mask = n_slots - 1;
    merges->words = qn_keyed_words_get();
    qn_string *lines;
    QN_TRY(qn_gguf_array_strings(file, kv, &lines));
    char *merged = NULL;
    size_t merged_capacity = 0;
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && status == QN_OK; i++)
        status = add_merge(merges, vocab, file, lines[i], (uint32_t)i + 1, &merged, &merged_capacity);
    free(merged);
    free(lines);
    return status;
}

void qn_merges_free(qn_merges *merges)
{
    qn_free(merges->slots);
    *merges = (qn_merges){ 0 };
}

void qn_bpe_scratch_free(qn_bpe_scratch *scratch)
{
    free(scratch->links);
    free(scratch->heap);
    *scratch = (qn_bpe_scratch){ 0 };
}

static bool has_priority(const struct qn_bpe_pair *a, const struct qn_bpe_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct qn_bpe_pair *heap, size_t n, size_t at)
{
    const struct qn_bpe_pair moving = heap[at];
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && has_priority(&heap[child + 1], &heap[child]))
            child++;
        if (!has_priority(&heap[child], &moving))
            break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

/* The inputs of one merge. */
struct merging {
    const qn_merges *merges;
    const bool *without;
    const int32_t *tokens;
};

/* Appends the pair at positions (at, next) to the heap's array if a merge exists for it; returns whether one does. */
static bool append_pair(const struct merging *m, qn_bpe_scratch *scratch, int32_t at, int32_t next)
{
    const uint32_t left = (uint32_t)m->tokens[at], right = (uint32_t)m->tokens[next];
    const qn_merge *merge = m->merges->slots + pair_slot(m->merges, left, right);
    if (!merge->rank || (m->without && m->without[merge->token]))
        return false;
    scratch->heap[scratch->n_heap++] = (struct qn_bpe_pair){ merge->rank, (uint32_t)at, left, right, merge->token };
    return true;
}

static void push_pair(const struct merging *m, qn_bpe_scratch *scratch, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || !append_pair(m, scratch, left, right))
        return;
    struct qn_bpe_pair *heap = scratch->heap;
    size_t at = scratch->n_heap - 1;
    const struct qn_bpe_pair moving = heap[at];
    for (; at && has_priority(&moving, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = moving;
}

qn_status qn_bpe_merge(const qn_merges *merges, qn_bpe_scratch *scratch, const bool *without, int32_t *tokens,
                       size_t *n)
{
    const struct merging m = { merges, without, tokens };
    if (*n < 2)
        return QN_OK;
    const int32_t count = (int32_t)*n;
    QN_TRY(qn_realloc_array(&scratch->links, &scratch->links_capacity, *n, sizeof *scratch->links, "merging"));
    /* A merge removes one pair from the heap and adds at most two, and there are fewer than n merges. */
    QN_TRY(qn_realloc_array(&scratch->heap, &scratch->heap_capacity, 2 * *n, sizeof *scratch->heap, "merging"));
    struct qn_bpe_links *links = scratch->links;
    scratch->n_heap = 0;
    for (int32_t i = 0; i < count; i++) {
        links[i] = (struct qn_bpe_links){ i - 1, i + 1 < count ? i + 1 : -1 };
        if (i)
            append_pair(&m, scratch, i - 1, i);
    }
    for (size_t i = scratch->n_heap / 2; i-- > 0;)
        sift_down(scratch->heap, scratch->n_heap, i);

    while (scratch->n_heap) {
        const struct qn_bpe_pair pair = scratch->heap[0];
        scratch->heap[0] = scratch->heap[--scratch->n_heap];
        sift_down(scratch->heap, scratch->n_heap, 0);
        const int32_t at = (int32_t)pair.at, next = links[at].next;
        if (next < 0 || tokens[at] != (int32_t)pair.left || tokens[next] != (int32_t)pair.right)
            continue;
        tokens[at] = (int32_t)pair.token;
        tokens[next] = -1;
        links[at].next = links[next].next;
        if (links[at].next >= 0)
            links[links[at].next].prev = at;
        push_pair(&m, scratch, links[at].prev, at);
        push_pair(&m, scratch, at, links[at].next);
    }
    size_t kept = 0;
    for (int32_t i = 0; i >= 0; i = links[i].next)
        tokens[kept++] = tokens[i];
    *n = kept;
    return QN_OK;
}
