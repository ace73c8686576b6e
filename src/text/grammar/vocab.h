/* A vocabulary as tries, between vocab.c (preparing it), mask.c (walking it) and match.c. */
#ifndef QN_TEXT_GRAMMAR_VOCAB_H
#define QN_TEXT_GRAMMAR_VOCAB_H

#include "text/grammar/automaton.h"

#include <pthread.h>

enum { QN_TOKEN_BYTES = 255, QN_SHORT_TEXTS = 16, QN_CACHE_WAYS = 8 };

/* Classes of texts, made of characters that DFAs often take alike. None has controls or line ends. Those of the classes up to
 * QN_TEXT_ANY stay inside a JSON string. */
typedef enum qn_text_class {
    QN_TEXT_LOWER,   /* a to z */
    QN_TEXT_LETTERS, /* and A to Z */
    QN_TEXT_WORDS,   /* and space as the first character */
    QN_TEXT_ASCII,   /* all printable ones */
    QN_TEXT_FOREIGN, /* QN_TEXT_WORDS, and characters outside ASCII */
    QN_TEXT_ANY,     /* all of these */
    QN_TEXT_LINE,    /* and quotes and backslashes */
    QN_TEXT_CLASSES
} qn_text_class;

/* Tries that are walked apart from each other: of the tokens whose smallest class is this one, and of those of no class; and once
 * more of the tokens that end a JSON string, from between two characters on. */
enum { QN_TRIE_OTHER = QN_TEXT_CLASSES, QN_TRIE_CLOSING, QN_TRIES, QN_TRIES_ALL = (1 << QN_TRIE_CLOSING) - 1 };

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

/* Tokens by how many characters they begin: each character needs its place. */
typedef struct qn_token_set {
    uint32_t *all;                 /* [n_words] */
    uint32_t *few[QN_SHORT_TEXTS]; /* [n_words] those of at most so many characters */
    uint32_t *longer;              /* [n_longer] tokens of more characters, ascending by characters */
    uint16_t *characters;          /* [n_longer] */
    size_t n_longer;
} qn_token_set;

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
    qn_trie tries[QN_TRIES];
    qn_token_set inside[QN_STRING_FORMS]; /* tokens that stay in a JSON string, from between two characters on */
    qn_token_set texts[QN_TEXT_CLASSES];  /* tokens of a class */
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

/* How the texts of a class follow a state of a DFA. */
typedef struct qn_text_fit {
    uint32_t characters; /* all texts of at most so many characters follow; or QN_UNLIMITED */
    bool is_closed;      /* no longer one does */
    bool ends_within;    /* the DFA's text may end behind a character of them */
} qn_text_fit;

/* qn_text_fits - whether the texts of a class follow a state of a DFA, by the sets of states that they lead to. */
qn_text_fit qn_text_fits(const qn_dfa *dfa, uint32_t state, qn_text_class kind);

/* qn_text_class_of - the smallest class of a text that may end inside a character; QN_TEXT_CLASSES for none. n_characters: how
 * many it begins. */
qn_text_class qn_text_class_of(const char *text, size_t length, uint32_t *n_characters);

/* qn_text_contains - the classes that are parts of a class, itself included: bits 1 << kind. */
unsigned qn_text_contains(qn_text_class kind);

#endif
