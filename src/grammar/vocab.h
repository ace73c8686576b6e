/* The vocabulary as tries. vocab.c prepares it; mask.c and match.c walk it. */
#ifndef QN_GRAMMAR_VOCAB_H
#define QN_GRAMMAR_VOCAB_H

#include "base/keyed_hash.h"
#include "grammar/automaton.h"

#include <pthread.h>

enum { QN_TOKEN_BYTES = 255, QN_SHORT_TEXTS = 16, QN_CACHE_WAYS = 8 };

/* Classes of texts: sets of characters that DFAs often treat alike. No class contains controls, line ends, or white
 * space other than U+0020. Texts of the classes up to QN_TEXT_ANY stay inside a JSON string. */
typedef enum qn_text_class {
    QN_TEXT_LOWER,   /* a to z */
    QN_TEXT_LETTERS, /* and A to Z */
    QN_TEXT_WORDS,   /* and a space as the first character */
    QN_TEXT_ASCII,   /* all printable ASCII characters */
    QN_TEXT_FOREIGN, /* QN_TEXT_WORDS and characters outside ASCII */
    QN_TEXT_ANY,     /* all classes above */
    QN_TEXT_LINE,    /* and quotes and backslashes */
    QN_TEXT_CLASSES
} qn_text_class;

/* Separate tries: one for each class, of the tokens whose smallest class it is; one of the tokens without a class
 * that have no line ends; one of those with line ends; and, again, one of the tokens that close a JSON string when
 * read from between two characters. */
enum {
    QN_TRIE_OTHER = QN_TEXT_CLASSES,
    QN_TRIE_LINES,
    QN_TRIE_CLOSING,
    QN_TRIES,
    QN_TRIES_ALL = (1 << QN_TRIE_CLOSING) - 1
};

/* A node of a trie. Nodes are in preorder, without the root. */
typedef struct qn_trie_node {
    uint32_t end;        /* the first node after its subtree */
    int32_t token;       /* the first token that ends here, or -1; in qn_closers, the group */
    uint8_t byte, depth; /* depth: 1 for the first byte of tokens */
} qn_trie_node;

/* A node of a trie of shapes: the nodes of a byte trie that have one kind of byte and one path of kinds from the
 * root. Nodes are in preorder; an extra node at the end holds the ends of the lists. */
typedef struct qn_shape {
    uint64_t kinds;           /* of the node and its subtree: bits of qn_text_kind */
    uint32_t end;             /* the first node after its subtree */
    uint32_t tokens;          /* begin in qn_shapes.tokens; the end is the next node's begin */
    uint32_t members;         /* begin in qn_shapes.members, likewise: nodes of the byte trie */
    int32_t own_set, all_set; /* in qn_shapes.sets: its own and its subtree's tokens; -1: too few for a set */
    uint8_t kind, depth;      /* kind: the number of its bit */
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
    uint32_t roots[256]; /* by byte: the node of depth 1, or n if there is none */
} qn_trie;

/* Tokens, sorted by the number of characters that begin in them: a string with a length limit has space for that
 * many. */
typedef struct qn_token_set {
    uint32_t *all;                 /* [n_words] */
    uint32_t *few[QN_SHORT_TEXTS]; /* [n_words] tokens with at most as many characters as the index */
    uint32_t *longer;              /* [n_longer] tokens with more characters, ascending by characters */
    uint16_t *characters;          /* [n_longer] */
    size_t n_longer;
} qn_token_set;

/* The tokens that close a JSON string when read from between two characters, grouped by their bytes after the quote. */
typedef struct qn_closers {
    qn_trie trie;
    uint32_t *tokens, *begins; /* group i is tokens[begins[i]] to tokens[begins[i + 1] - 1] */
    size_t n_groups;           /* ascending by the bytes after the quote */
    bool has_bare;             /* group 0 has no bytes after the quote */
    uint32_t most_characters;  /* most characters of a token before its quote */
} qn_closers;

/* Number of kinds of bytes (qn_text_kind). */
enum { QN_TEXT_KINDS = 64 };

typedef struct qn_cached_mask {
    uint64_t key[2];
    uint64_t used; /* 0: empty */
} qn_cached_mask;

struct qn_grammar_vocab {
    size_t n_tokens, n_words;
    char *bytes;       /* concatenated */
    uint32_t *offsets; /* [n_tokens + 1]; a token that never follows has no bytes */
    int32_t *same;     /* [n_tokens] the next token with the same bytes, or -1 */
    int32_t *ends;     /* [n_ends] end tokens */
    size_t n_ends;
    uint32_t mark_lengths[QN_MARKS_END - QN_MARK_CALL_OPEN]; /* number of bytes of each mark's text */
    qn_trie tries[QN_TRIES];
    qn_shapes shapes[QN_TRIE_CLOSING];    /* of each trie but the last */
    qn_token_set inside[QN_STRING_FORMS]; /* tokens that stay in a JSON string when read from between two characters */
    qn_closers closers[QN_STRING_FORMS];
    qn_token_set texts[QN_TEXT_CLASSES]; /* tokens of each class */
    uint64_t kind_of[256];               /* qn_text_kind */
    uint8_t kind_bytes[256];             /* all bytes, ascending by kind */
    uint16_t kind_begins[QN_TEXT_KINDS + 1];
    uint64_t foreign_kinds, inner_kinds; /* of bytes outside ASCII, and of those that do not begin a character */
    /* The cache: sets of QN_CACHE_WAYS masks. The least recently used of a set is replaced. `lock` protects it; all
     * other members are constant after qn_grammar_vocab_create. */
    pthread_mutex_t lock;
    qn_cached_mask *cached;
    uint32_t *cached_masks; /* [n_cached, n_words] */
    size_t n_cached;
    uint64_t n_uses;
};

/* qn_is_mark - whether a byte is a mark: it stands for a special token in a grammar. */
static inline bool qn_is_mark(char byte)
{
    return (uint8_t)byte >= QN_MARK_CALL_OPEN && (uint8_t)byte < QN_MARKS_END;
}

/* qn_state_hash - a hash of a state. Equal configurations of one grammar have equal hashes. */
qn_hash128 qn_state_hash(const qn_grammar_state *state);

static inline void qn_mask_set(uint32_t *mask, uint32_t token)
{
    mask[token / 32] |= 1u << (token % 32);
}

/* qn_trie_make - makes a trie of texts that are not empty, all different, and in byte order. Free it with
 * qn_trie_free, even after an error. */
qn_status qn_trie_make(const qn_trie_text *texts, size_t n, qn_trie *trie);

/* qn_trie_find - the node of a text, which must not be empty; trie->n if there is none. */
uint32_t qn_trie_find(const qn_trie *trie, const char *text, size_t length);

void qn_trie_free(qn_trie *trie);

/* qn_shapes_make - makes the shapes of a trie's tokens. Free them with qn_shapes_free, even after an error. */
qn_status qn_shapes_make(const qn_grammar_vocab *v, const qn_trie *trie, qn_shapes *shapes);
void qn_shapes_free(qn_shapes *shapes);

/* qn_closers_make - makes the closers of a form. Free them with qn_closers_free, even after an error.
 *
 *   texts   [n] the bytes after the quote of each token that closes, and the token, the first of those with equal
 *           bytes; sorted and changed */
qn_status qn_closers_make(const qn_grammar_vocab *v, qn_trie_text *texts, size_t n, qn_closers *closers);
void qn_closers_free(qn_closers *closers);

/* Where a token leads that begins in a JSON string. */
typedef enum qn_in_string { QN_IN_STRING_LEAVES, QN_IN_STRING_STAYS, QN_IN_STRING_CLOSES } qn_in_string;

/* qn_vocab_run_string - where a token leads from between two characters of a JSON string. n_characters: how many
 * characters it begins in the string; n_bytes: how many of its bytes are in the string, a closing quote included. */
qn_in_string qn_vocab_run_string(const qn_grammar_vocab *v, int32_t token, qn_string_form form, uint32_t *n_characters,
                                 uint32_t *n_bytes);

/* The text that must follow a state. */
typedef struct qn_forced {
    char text[QN_GRAMMAR_FORCED];
    size_t length;
    qn_grammar_state *after; /* the state after the text; NULL without a text */
} qn_forced;

/* qn_state_forced - finds the text that must follow a state. The state is scratch memory, unchanged at return. Free
 * forced->after with qn_grammar_state_free, even after an error. */
qn_status qn_state_forced(qn_grammar_state *state, qn_forced *forced);

/* qn_forced_tokens - the canonical tokens of a forced text; see qn_grammar_match_forced_tokens.
 *
 *   before   [n_before] the tokens before the text
 *   tokens   [QN_GRAMMAR_FORCED] */
qn_status qn_forced_tokens(const qn_grammar_vocab *v, const qn_tokenizer *tokenizer, const qn_forced *forced,
                           const qn_token *before, size_t n_before, qn_token *tokens, size_t *n);

/* How the texts of a class follow a state of a DFA. */
typedef struct qn_text_fit {
    uint32_t characters; /* all texts of at most this many characters follow, or QN_UNLIMITED */
    bool is_closed;      /* no longer text follows */
    bool ends_within;    /* the DFA may accept after a character of such a text */
} qn_text_fit;

/* qn_text_fits - whether the texts of a class follow a state of a DFA, found by following sets of states. 0
 * characters if it takes too many steps. The steps are added to *steps. */
qn_text_fit qn_text_fits(const qn_dfa *dfa, uint32_t state, qn_text_class kind, uint64_t *steps);

/* qn_text_bytes - the bytes of the texts of a class. */
void qn_text_bytes(qn_text_class kind, uint64_t bytes[4]);

/* qn_text_foreign_loops - whether every character outside ASCII that a class contains leads back to a state. steps:
 * as above. */
bool qn_text_foreign_loops(const qn_dfa *dfa, uint32_t state, uint64_t *steps);

/* qn_text_kind - a bit for the kind of a byte. Kinds are: lower-case letters, upper-case letters, digits, each other
 * printable ASCII character, tab, each line end, other controls, and bytes outside ASCII by their place in a
 * character and its length. */
uint64_t qn_text_kind(uint8_t byte);

/* qn_text_class_of - the smallest class that contains a text, which may end inside a character; QN_TEXT_CLASSES if
 * none does. n_characters: how many characters begin in it. */
qn_text_class qn_text_class_of(const char *text, size_t length, uint32_t *n_characters);

/* qn_text_contains - the classes that a class includes, itself too: bits 1 << class. */
unsigned qn_text_contains(qn_text_class kind);

#endif
