/* A vocabulary as tries, between vocab.c (preparing it), mask.c (walking it) and match.c. */
#ifndef QN_GRAMMAR_VOCAB_H
#define QN_GRAMMAR_VOCAB_H

#include "base/keyed_hash.h"
#include "grammar/automaton.h"

#include <pthread.h>

enum { QN_TOKEN_BYTES = 255, QN_SHORT_TEXTS = 16, QN_CACHE_WAYS = 8 };

/* Classes of texts, made of characters that DFAs often take alike. None has controls, line ends, or white space but U+0020.
 * Those of the classes up to QN_TEXT_ANY stay inside a JSON string. */
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

/* Tries that are walked apart from each other: of the tokens whose smallest class is this one, and of those of no class, without and
 * with line ends; and once more of the tokens that end a JSON string, from between two characters on. */
enum { QN_TRIE_OTHER = QN_TEXT_CLASSES, QN_TRIE_LINES, QN_TRIE_CLOSING, QN_TRIES, QN_TRIES_ALL = (1 << QN_TRIE_CLOSING) - 1 };

/* A node of a trie. Nodes are in preorder, without the root. */
typedef struct qn_trie_node {
    uint32_t end;        /* the first node behind its subtree */
    int32_t token;       /* the first token that ends here, or -1; of qn_closers the group */
    uint8_t byte, depth; /* 1: the first byte of tokens */
} qn_trie_node;

/* A node of a trie of shapes: bytes of one kind, on the same way from the root. Nodes are in preorder; one behind the last has the
 * ends of its lists. */
typedef struct qn_shape {
    uint64_t kinds;           /* of the node and of what is below it: bits of qn_text_kind */
    uint32_t end;             /* the first node behind its subtree */
    uint32_t tokens;          /* qn_shapes.tokens from here to the next node's end here */
    uint32_t members;         /* qn_shapes.members, too: nodes of the trie of bytes */
    int32_t own_set, all_set; /* qn_shapes.sets of its tokens, and of those of its subtree; -1: few */
    uint8_t kind, depth;      /* the number of the bit */
} qn_shape;

typedef struct qn_shapes {
    qn_shape *nodes; /* [n + 1] */
    uint32_t *members, *tokens;
    uint32_t *sets; /* [n_sets, n_words] */
    size_t n, n_members, n_tokens, n_sets;
} qn_shapes;

typedef struct qn_trie_text {
    const char *text;
    uint32_t length;
    int32_t value;
} qn_trie_text;

typedef struct qn_trie {
    qn_trie_node *nodes;
    size_t n;
    uint32_t roots[256]; /* by byte, the node of depth 1; n: none */
} qn_trie;

/* Tokens by how many characters they begin: each character needs its place. */
typedef struct qn_token_set {
    uint32_t *all;                 /* [n_words] */
    uint32_t *few[QN_SHORT_TEXTS]; /* [n_words] those of at most so many characters */
    uint32_t *longer;              /* [n_longer] tokens of more characters, ascending by characters */
    uint16_t *characters;          /* [n_longer] */
    size_t n_longer;
} qn_token_set;

/* The tokens that end a JSON string from between two characters on, by what follows the quote. */
typedef struct qn_closers {
    qn_trie trie;
    uint32_t *tokens, *begins; /* those of group i: tokens[begins[i]] to tokens[begins[i + 1] - 1] */
    size_t n_groups;           /* in the order of what follows */
    bool has_bare;             /* of group 0 nothing follows the quote */
    uint32_t most_characters;  /* of a token before its quote */
} qn_closers;

/* Kinds of bytes: qn_text_kind. */
enum { QN_TEXT_KINDS = 64 };

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
    uint32_t mark_lengths[QN_MARKS_END - QN_MARK_CALL_OPEN]; /* bytes of the texts of marks */
    qn_trie tries[QN_TRIES];
    qn_shapes shapes[QN_TRIE_CLOSING];    /* of tries */
    qn_token_set inside[QN_STRING_FORMS]; /* tokens that stay in a JSON string, from between two characters on */
    qn_closers closers[QN_STRING_FORMS];
    qn_token_set texts[QN_TEXT_CLASSES]; /* tokens of a class */
    uint64_t kind_of[256];               /* qn_text_kind */
    uint8_t kind_bytes[256];             /* all bytes, ascending by kind */
    uint16_t kind_begins[QN_TEXT_KINDS + 1];
    uint64_t foreign_kinds, inner_kinds; /* of bytes outside ASCII, and of those that do not begin a character */
    /* The cache: sets of QN_CACHE_WAYS masks. Of a set the longest unused is replaced. */
    pthread_mutex_t lock;
    qn_cached_mask *cached;
    uint32_t *cached_masks; /* [n_cached, n_words] */
    size_t n_cached;
    uint64_t n_uses;
};

/* qn_is_mark - whether a byte is a mark of grammars, which stands for a token. */
static inline bool qn_is_mark(char byte)
{
    return (uint8_t)byte >= QN_MARK_CALL_OPEN && (uint8_t)byte < QN_MARKS_END;
}

/* qn_state_hash - equal for states of one grammar that go on alike, as far as that is seen. */
qn_hash128 qn_state_hash(const qn_grammar_state *state);

static inline void qn_mask_set(uint32_t *mask, uint32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

/* qn_trie_make - a trie of texts that are not empty, all different, in the order of their bytes. Free it with qn_trie_free,
 * whatever the status. */
qn_status qn_trie_make(const qn_trie_text *texts, size_t n, qn_trie *trie);

/* qn_trie_find - the node of a text, which is not empty; trie->n: none. */
uint32_t qn_trie_find(const qn_trie *trie, const char *text, size_t length);

void qn_trie_free(qn_trie *trie);

/* qn_shapes_make - the shapes of a trie's tokens. Free them with qn_shapes_free, whatever the status. */
qn_status qn_shapes_make(const qn_grammar_vocab *v, const qn_trie *trie, qn_shapes *shapes);
void qn_shapes_free(qn_shapes *shapes);

/* qn_closers_make - the closers of a form. tokens: those with bytes, of equal ones the first. Free them with qn_closers_free,
 * whatever the status. */
qn_status qn_closers_make(const qn_grammar_vocab *v, const int32_t *tokens, size_t n, qn_string_form form, qn_closers *closers);
void qn_closers_free(qn_closers *closers);

/* What a token does in a JSON string. */
typedef enum qn_in_string { QN_IN_STRING_LEAVES, QN_IN_STRING_STAYS, QN_IN_STRING_CLOSES } qn_in_string;

/* qn_vocab_run_string - what a token does from between two characters on, how many characters it begins in the string, and how
 * many of its bytes are in the string, a closing quote included. */
qn_in_string qn_vocab_run_string(const qn_grammar_vocab *v, int32_t token, qn_string_form form, uint32_t *n_characters,
                                 uint32_t *n_bytes);

/* A text that a state goes on with. */
typedef struct qn_forced {
    char text[QN_GRAMMAR_FORCED];
    size_t length;
    qn_grammar_state *after; /* the state behind it; NULL without a text */
} qn_forced;

/* qn_state_forced - the text that must follow a state, which is scratch memory and unchanged at return. Free forced->after with
 * qn_grammar_state_free, whatever the status. */
qn_status qn_state_forced(qn_grammar_state *state, qn_forced *forced);

/* qn_forced_tokens - the canonical tokens of a forced text, as qn_grammar_match_forced_tokens says.
 *
 *   before   [n_before] the tokens before the text
 *   tokens   [QN_GRAMMAR_FORCED] */
qn_status qn_forced_tokens(const qn_grammar_vocab *v, const qn_tokenizer *tokenizer, const qn_forced *forced,
                           const qn_token *before, size_t n_before, qn_token *tokens, size_t *n);

/* How the texts of a class follow a state of a DFA. */
typedef struct qn_text_fit {
    uint32_t characters; /* all texts of at most so many characters follow; or QN_UNLIMITED */
    bool is_closed;      /* no longer one does */
    bool ends_within;    /* the DFA's text may end behind a character of them */
} qn_text_fit;

/* qn_text_fits - whether the texts of a class follow a state of a DFA, by the sets of states that they lead to. No
 * characters follow if it takes too many steps, which are added to *steps. */
qn_text_fit qn_text_fits(const qn_dfa *dfa, uint32_t state, qn_text_class kind, uint64_t *steps);

/* qn_text_bytes - the bytes of the texts of a class. */
void qn_text_bytes(qn_text_class kind, uint64_t bytes[4]);

/* qn_text_foreign_loops - whether all characters outside ASCII that are in classes lead back to a state. Steps as above. */
bool qn_text_foreign_loops(const qn_dfa *dfa, uint32_t state, uint64_t *steps);

/* qn_text_kind - a bit for the kind of a byte: lower and upper letters, digits, each other printable character of ASCII, tab, line
 * ends and other controls, and bytes outside ASCII by where they stand in characters and how many follow. */
uint64_t qn_text_kind(uint8_t byte);

/* qn_text_class_of - the smallest class of a text that may end inside a character; QN_TEXT_CLASSES for none. n_characters: how
 * many it begins. */
qn_text_class qn_text_class_of(const char *text, size_t length, uint32_t *n_characters);

/* qn_text_contains - the classes that are parts of a class, itself included: bits 1 << kind. */
unsigned qn_text_contains(qn_text_class kind);

#endif
