/* A vocabulary as tries, between vocab.c (preparing it), mask.c (walking it) and match.c. */
#ifndef QN_TEXT_GRAMMAR_VOCAB_H
#define QN_TEXT_GRAMMAR_VOCAB_H

#include "text/grammar/automaton.h"

#include <pthread.h>

enum { QN_TOKEN_BYTES = 255, QN_SHORT_STRINGS = 16, QN_CACHE_WAYS = 8 };

/* A node of a trie. Nodes are in preorder, without the root. */
typedef struct qn_trie_node {
    uint32_t end;        /* the first node behind its subtree */
    int32_t token;       /* the first token that ends here, or -1 */
    uint8_t byte, depth; /* 1: the first byte of tokens */
} qn_trie_node;

typedef struct qn_trie {
    qn_trie_node *nodes;
    size_t n;
} qn_trie;

typedef struct qn_cached_mask {
    uint64_t key[2];
    uint64_t used; /* 0: empty */
} qn_cached_mask;

struct qn_grammar_vocab {
    size_t n_tokens, n_words;
    char *bytes;       /* concatenated */
    uint32_t *offsets; /* [n_tokens + 1]; a token that never follows has no bytes */
    int32_t *same;     /* [n_tokens] the next token of the same bytes, or -1 */
    int32_t *ends;     /* [n_ends] end tokens */
    size_t n_ends;
    qn_trie all;
    /* Tokens inside a JSON string, from between two characters on. */
    qn_trie closing;                          /* those that end it */
    uint32_t *inside[QN_STRING_FORMS];        /* [n_words] those that stay in it */
    uint32_t *inside_short[QN_SHORT_STRINGS]; /* [n_words] those of at most so many characters, by QN_STRING_VALUE */
    uint32_t *inside_long;                    /* [n_long] tokens of more characters, ascending by characters */
    uint16_t *long_characters;                /* [n_long] */
    size_t n_long;
    /* The cache: sets of QN_CACHE_WAYS masks. Of a set the longest unused is replaced. */
    pthread_mutex_t lock;
    qn_cached_mask *cached;
    uint32_t *cached_masks; /* [n_cached, n_words] */
    size_t n_cached;
    uint64_t n_uses;
};

static inline void qn_mask_set(uint32_t *mask, uint32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

#endif
