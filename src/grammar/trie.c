/* Tries of texts in the order of their bytes. */
#include "grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>

qn_status qn_trie_make(const qn_trie_text *texts, size_t n, qn_trie *trie)
{
    uint32_t open[QN_TOKEN_BYTES + 1];
    size_t capacity = 0, depth = 0;
    const char *last = NULL;
    for (size_t i = 0; i < n; i++) {
        const size_t length = texts[i].length;
        const char *text = texts[i].text;
        size_t shared = 0;
        while (shared < depth && shared < length && last[shared] == text[shared])
            shared++;
        while (depth > shared)
            trie->nodes[open[depth--]].end = (uint32_t)trie->n;
        QN_TRY(qn_realloc_array(&trie->nodes, &capacity, trie->n + length - depth, sizeof *trie->nodes, "trie"));
        while (depth < length) {
            const uint8_t byte = (uint8_t)text[depth++];
            open[depth] = (uint32_t)trie->n;
            trie->nodes[trie->n++] = (qn_trie_node){ .token = -1, .byte = byte, .depth = (uint8_t)depth };
        }
        trie->nodes[open[depth]].token = texts[i].value;
        last = text;
    }
    for (; depth > 0; depth--)
        trie->nodes[open[depth]].end = (uint32_t)trie->n;
    for (int byte = 0; byte < 256; byte++)
        trie->roots[byte] = (uint32_t)trie->n;
    for (uint32_t i = 0; i < trie->n; i = trie->nodes[i].end)
        trie->roots[trie->nodes[i].byte] = i;
    return QN_OK;
}

uint32_t qn_trie_find(const qn_trie *trie, const char *text, size_t length)
{
    uint32_t found = trie->roots[(uint8_t)*text];
    for (size_t i = 1; i < length && found < trie->n; i++) {
        const uint32_t end = trie->nodes[found].end;
        for (found++; found < end && trie->nodes[found].byte != (uint8_t)text[i];)
            found = trie->nodes[found].end;
        if (found >= end)
            found = (uint32_t)trie->n;
    }
    return found;
}

void qn_trie_free(qn_trie *trie)
{
    free(trie->nodes);
}
