/* Between dfa.c, which makes the DFA of an expression from an NFA (nondeterministic finite automaton), look.c, which
 * does so if the expression has assertions, and subsets.c, which keeps the DFA that is being made. */
#ifndef QN_GRAMMAR_DFA_H
#define QN_GRAMMAR_DFA_H

#include "base/status.h"
#include "grammar/automaton.h"

/* Single bytes of an expression are symbols after the code points. */
enum { QN_BYTE_SYMBOLS = 0x110000 };

/* What has to hold where an empty edge is passed: nothing, that the text begins here, that the rest of the text is in
 * a language (or is not), that a word begins or ends here (or that none does). */
typedef enum qn_assertion { QN_ASSERT_NOTHING, QN_ASSERT_BEGIN, QN_ASSERT_LOOK, QN_ASSERT_BOUNDARY } qn_assertion;

typedef struct qn_nfa_edge {
    uint32_t target;
    int32_t next;    /* index of the next edge of the same state, or QN_NO_EDGE */
    uint32_t lo, hi; /* symbols. LOOK: the index of its language, and whether it is negated. BOUNDARY: the index of the
                        texts that begin with a word's character, and whether it is negated */
    uint32_t first_class, last_class;
    bool is_empty;
    uint8_t asserts;
} qn_nfa_edge;

enum { QN_NO_EDGE = -1 };

/* Ends of characters that lead to a state, whatever their value: 1 to 3 bytes of UTF-8, or 1 to 3 hexadecimal
 * digits. */
enum { QN_TAIL_BYTES = 3, QN_TAIL_DIGITS = 3, QN_TAILS = QN_TAIL_BYTES + QN_TAIL_DIGITS };

typedef struct qn_nfa_state {
    int32_t first;            /* index of an edge, or QN_NO_EDGE */
    uint32_t tails[QN_TAILS]; /* the states before its tails, shortest first; 0: not made yet */
} qn_nfa_state;

/* A part of a character's spelling: a byte, or a hexadecimal digit by its value. */
typedef struct qn_unit {
    bool is_digit;
    uint8_t lo, hi;
} qn_unit;

/* The states after the first units of the spelling that was added last, as far as each is one byte or digit. */
enum { QN_PATH_UNITS = 12 };
typedef struct qn_path {
    uint32_t from, to;
    size_t n;
    qn_unit units[QN_PATH_UNITS];
    uint32_t states[QN_PATH_UNITS];
} qn_path;

/* The language of a look-ahead: what the rest of the text may be. */
typedef struct qn_look {
    uint32_t expr;
    qn_dfa dfa;       /* over symbols, without class_of; n_states 0: no text */
    uint32_t *bounds; /* [n_classes + 1] the first symbols of the classes */
    uint8_t *holds;   /* [n_states] whether any text may follow a state */
} qn_look;

enum { QN_LOOKS = 16 }; /* limit of the look-aheads of an expression */

typedef struct qn_nfa {
    const qn_exprs *x;
    const char *what;
    qn_nfa_state *states;
    qn_nfa_edge *edges;
    size_t n, capacity, n_edges, edge_capacity;
    uint64_t *steps, limit;
    bool in_string;
    qn_path paths[2]; /* of UTF-8, and of escapes */
    uint32_t rest;    /* the state from which any text is accepted; 0: none */
    bool has_assertions, has_boundaries;
    qn_look *looks; /* [QN_LOOKS], or NULL */
    size_t n_looks;
} qn_nfa;

/* The subset construction: a DFA over symbols while it is made. */
typedef struct qn_subsets {
    qn_nfa *m;
    qn_dfa dfa;       /* without class_of */
    uint32_t *bounds; /* [n_classes + 1] the first symbols of the classes */
    uint32_t *sets;   /* concatenated, for each DFA state: its elements, ascending */
    size_t set_capacity;
    uint32_t *set_of; /* [n_states + 1] offsets */
    size_t set_of_capacity, next_capacity, accept_capacity;
    uint32_t *slots;
    size_t slot_mask;
    uint32_t *marks, mark, *stack; /* [m->n] */
    uint32_t *targets, *target_of; /* by class */
    size_t target_capacity;
    uint32_t accept;
} qn_subsets;

static inline qn_status qn_nfa_too_large(const char *what)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: too large or too ambiguous for an automaton", what);
}

/* ---- subsets.c ---- */

/* qn_nfa_count - counts steps; QN_ERR_UNSUPPORTED above the limit. */
qn_status qn_nfa_count(const qn_nfa *m, uint64_t n);

/* qn_subsets_add - appends an element to the set that will be interned. end: the number of its elements so far */
qn_status qn_subsets_add(qn_subsets *b, size_t end, uint32_t element);

/* qn_subsets_intern - the DFA state of the set of `count` elements that was appended; 0 for an empty set.
 *
 *   is_new   the state was made: it accepts nothing and has no transitions yet */
qn_status qn_subsets_intern(qn_subsets *b, size_t count, uint32_t *state, bool *is_new);

void qn_subsets_free(qn_subsets *b);

/* qn_class_of - the class of a symbol between two bounds. */
static inline uint32_t qn_class_of(const uint32_t *bounds, uint32_t n_classes, uint32_t symbol)
{
    uint32_t low = 0, high = n_classes;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (bounds[middle] <= symbol)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- look.c ---- */

/* The bounds of a word's characters: 0-9, A-Z, _, a-z. */
enum { QN_WORD_BOUNDS = 8 };
extern const uint32_t qn_word_bounds[QN_WORD_BOUNDS];

/* qn_look_prepare - computes which states of a look-ahead hold whatever follows. */
qn_status qn_look_prepare(qn_look *look, const qn_nfa *m);

/* qn_look_determinize - the subset construction for an NFA with assertions, from the state `start` on. The classes are
 * set. */
qn_status qn_look_determinize(qn_subsets *b, uint32_t start);

#endif
