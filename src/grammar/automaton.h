/* The automaton of a grammar, and its builder. A node may be a single byte, a whole DFA (deterministic finite
 * automaton), a JSON string or a key of an object. Nodes, DFAs, rules and all other parts of a grammar are named by
 * their indices in its arrays; indices stay valid, pointers only until the next part is added. A grammar is built by
 * one thread; after qn_grammar_finish all of it is constant but the count of its references.
 *
 * A rule is entered by a call at its entry node. The call pushes a frame: the node to return to, and the counters of
 * the rule's object or array (properties seen, number of items). */
#ifndef QN_GRAMMAR_AUTOMATON_H
#define QN_GRAMMAR_AUTOMATON_H

#include "grammar/grammar.h"

#include <stdatomic.h>

#define QN_UNLIMITED UINT32_MAX

enum {
    QN_GRAMMAR_NODES = 1 << 17,       /* limit of a grammar's nodes */
    QN_GRAMMAR_RULES = 1 << 15,       /* limit of its rules */
    QN_GRAMMAR_PROPERTIES = 256,      /* limit of an object's properties */
    QN_GRAMMAR_SPELLED = 1024,        /* limit of the bytes of a property's name, as JSON spells it */
    QN_GRAMMAR_WORDS = 65535,         /* limit of the words of a list */
    QN_GRAMMAR_ITEMS = 1024,          /* limit of the items of an array with schemas of their own */
    QN_GRAMMAR_STEPS = 3 << 20,       /* limit of the steps of a compilation; a step takes a few ns */
    QN_GRAMMAR_DFA_STEPS = 1 << 20,   /* limit of the steps of one DFA */
    QN_GRAMMAR_MASK_STEPS = 1 << 22,  /* limit of the steps of a mask */
    QN_GRAMMAR_QUICK_STEPS = 1 << 18, /* limit of the steps of a mask for which other requests wait */
    QN_GRAMMAR_TOKEN_STEPS = 1 << 18, /* limit of the steps of one token's bytes */
    QN_GRAMMAR_CHECK_STEPS = 1 << 16, /* limit of the steps of checking a token before a mask is made */
    QN_GRAMMAR_NESTED = 64,           /* limit of nested groups of a regular expression or GBNF rule */
    QN_NODE_NEVER = 0,                /* node 0: nothing follows */
    QN_NODE_FINAL = 1                 /* node 1: the output may end */
};

typedef enum qn_node_kind {
    QN_NEVER,
    QN_FINAL,
    QN_BYTE,   /* a byte from lo to hi, then next */
    QN_DFA,    /* a text that dfas[a] accepts, then next */
    QN_STRING, /* the rest of a JSON string of strings[a] and its quote, then next */
    QN_KEY,    /* the rest of a key of objects[a] and the byte after it */
    QN_REST,   /* next, for one more undeclared member of objects[a], if it may have one */
    QN_TEXT,  /* a text with the lengths and the DFA of strings[a], then next. The node before it, by index, is a QN_DFA
               of the same texts without lengths, for masks */
    QN_WORDS, /* a word of lists[a], then next */
    QN_ONCE,  /* next, if property lo of objects[a] may come, and then no more; hi: if one of the first lo + 1 may */
    QN_SPLIT, /* next or a */
    QN_CALL,  /* rule `a` with its indentation lo levels deeper, then next */
    QN_RETURN, /* to the node of the frame */
    QN_MEMBER, /* in objects[a]: `}` or a key; lo: 1 before the first member */
    QN_ITEM,   /* in arrays[a]: lo 1: `]` or the first item; 0: `]` or a comma; 2: an item */
    QN_INDENT  /* a line end, and two spaces for each level of the frame plus lo, then next */
} qn_node_kind;

typedef struct qn_node {
    uint8_t kind, lo, hi;
    bool productive; /* some text leads from here to the end of the rule */
    uint32_t next, a;
} qn_node;

/* A deterministic automaton. State 0 is dead, state 1 is the start; from every other state an accepting state can be
 * reached. */
typedef struct qn_dfa {
    uint32_t n_states, n_classes;
    uint8_t class_of[256];
    uint32_t *next;  /* [n_states, n_classes] */
    uint8_t *accept; /* [n_states] */
    /* Set by qn_dfa_prepare: */
    bool takes_line_ends; /* some state accepts U+000A or U+000D next */
    uint32_t *alike;      /* [n_states] the state that follows any character, as text_class.c says; NULL in small
                             DFAs, which are fast without */
} qn_dfa;

/* How a string may use escapes. A key must not spell a declared name in a second way, so each ASCII character has
 * one spelling. If declared names have characters outside ASCII (QN_STRING_KEY_UNICODE), a key has all its other
 * characters unescaped, or all as \uXXXX in lower case. */
typedef enum qn_string_form { QN_STRING_VALUE, QN_STRING_KEY, QN_STRING_KEY_UNICODE, QN_STRING_FORMS } qn_string_form;

typedef struct qn_string_rule {
    uint32_t min, max; /* characters */
    int32_t dfa;       /* pattern over the spelled string, or -1 */
    qn_string_form form;
} qn_string_rule;

typedef struct qn_spelling {
    char *text; /* as JSON spells it, without quotes */
    uint16_t length, property;
} qn_spelling;

typedef struct qn_object_rule {
    uint32_t n_properties;
    qn_spelling *spellings; /* [n_spellings] ascending */
    uint32_t n_spellings;
    uint32_t *values;                /* [n_properties] the node after the key's quote */
    uint32_t *value_rules;           /* [n_properties] the rule that this node calls */
    uint64_t required[4], usable[4]; /* a bit for each property; usable: some text is a value of it */
    uint32_t n_required, min, max;   /* min, max: members */
    bool additional;
    bool is_ordered;                      /* properties come in their order, then additional ones */
    uint8_t end;                          /* the byte after a key */
    uint32_t rest, rest_value, rest_rule; /* the QN_STRING node of an additional key, the node after it, its value's
                                             rule */
    uint32_t others;                      /* alternative to rest: the QN_REST node of such keys, */
    uint32_t *other_rules, n_other_rules; /* and the rules of their values */
    uint32_t close_empty, close;          /* nodes of `}`: in an empty object, and after a member */
    uint32_t first, more;                 /* nodes of the first key's quote; of a comma and a key */
} qn_object_rule;

typedef struct qn_array_rule {
    uint32_t min, max, n_prefix;
    uint32_t *items;      /* [n_prefix + 1] node of an item: it calls the item's rule and continues; the last is for
                      all further items */
    uint32_t *item_rules; /* [n_prefix + 1] */
    uint32_t close_empty, close; /* nodes of `]`: in an empty array, and after an item */
    uint32_t first, comma;       /* nodes that lead to the first item, and to the next */
} qn_array_rule;

/* Words of which none begins another, ascending: for more constants than a DFA holds. */
typedef struct qn_word_list {
    char *text;       /* one word after the other */
    uint32_t *begins; /* [n + 1] */
    size_t n;
} qn_word_list;

typedef struct qn_rule {
    uint32_t entry;
    char *name; /* for errors */
} qn_rule;

struct qn_grammar {
    uint64_t serial; /* unique in the process */
    atomic_uint n_references;
    qn_node *nodes;
    qn_dfa *dfas;
    qn_string_rule *strings;
    qn_object_rule *objects;
    qn_array_rule *arrays;
    qn_word_list *lists;
    qn_rule *rules;
    size_t n_nodes, n_dfas, n_strings, n_objects, n_arrays, n_lists, n_rules;
    size_t node_capacity, dfa_capacity, string_capacity, object_capacity, array_capacity, list_capacity, rule_capacity;
    uint32_t root;
    size_t bytes;
    uint64_t steps; /* of the compilation */
};

/* qn_string_machine - the transitions of JSON strings in a form: [state][byte] is the next state,
 * QN_STRING_REJECTED, or QN_STRING_END for the quote. State 0 is between two characters. */
enum { QN_STRING_STATES = 80, QN_STRING_REJECTED = 255, QN_STRING_END = 254 };
typedef uint8_t qn_string_table[QN_STRING_STATES][256];
const qn_string_table *qn_string_machine(qn_string_form form);

/* ---- Building ---- */

qn_status qn_grammar_begin(qn_grammar **out);
qn_status qn_grammar_add_node(qn_grammar *g, qn_node node, uint32_t *id);
qn_status qn_grammar_add_rule(qn_grammar *g, const char *name, uint32_t *rule);
qn_status qn_grammar_add_dfa(qn_grammar *g, qn_dfa *dfa, uint32_t *id); /* owns the DFA from here on */
qn_status qn_grammar_add_string(qn_grammar *g, qn_string_rule rule, uint32_t *id);
qn_status qn_grammar_add_object(qn_grammar *g, uint32_t *id); /* zeroed */
qn_status qn_grammar_add_array(qn_grammar *g, uint32_t *id);

/* qn_grammar_add_words - adds a list, which it sorts.
 *
 *   words     [n] at most QN_GRAMMAR_WORDS, NUL-terminated, not kept; sorted in place, and each once
 *   refused   words of which one begins another are QN_ERR_INVALID */
qn_status qn_grammar_add_words(qn_grammar *g, char **words, size_t n, const char *what, uint32_t *id);

/* qn_grammar_finish - checks and prepares a grammar: it refuses left recursion (QN_ERR_INVALID) and a root without
 * any text, and removes alternatives that cannot end. */
qn_status qn_grammar_finish(qn_grammar *g, uint32_t root_rule);

/* qn_grammar_rule_of - the name of the rule that a node belongs to, for errors. */
const char *qn_grammar_rule_of(const qn_grammar *g, uint32_t node);

/* qn_grammar_refuse_empty - QN_ERR_INVALID for a rule that derives no text; the message names the innermost rule
 * that causes it. */
qn_status qn_grammar_refuse_empty(const qn_grammar *g, uint32_t rule);

void qn_dfa_free(qn_dfa *dfa);

/* ---- Expressions ---- */

/* Regular expressions, GBNF rules and the scalars of schemas are parsed to expressions, from which DFAs are made. */
typedef enum qn_expr_kind {
    QN_EXPR_EMPTY,
    QN_EXPR_CLASS,
    QN_EXPR_BYTES,
    QN_EXPR_CAT,
    QN_EXPR_ALT,
    QN_EXPR_REPEAT,
    QN_EXPR_CALL,
    QN_EXPR_REST,    /* any text, up to the end: only at the end of an expression */
    QN_EXPR_BEGIN,   /* the empty text at the beginning */
    QN_EXPR_LOOK,    /* the empty text where the rest of the text is one of `child`; a: is not */
    QN_EXPR_BOUNDARY /* the empty text where a word begins or ends; a: where none does. child: the texts that begin with
                        a character of a word */
} qn_expr_kind;

typedef struct qn_expr {
    uint8_t kind;
    bool calls;              /* contains a QN_EXPR_CALL */
    uint32_t child, sibling; /* 0: none */
    uint32_t dfa;            /* its DFA in the grammar, + 1; 0: none yet */
    uint32_t a, b;           /* CLASS: ranges [a, a + b); BYTES: one byte a..b; REPEAT: from a to b times; CALL: rule
                                a, or `child` instead, with b as its weight */
} qn_expr;

typedef struct qn_range {
    uint32_t lo, hi;
} qn_range;

typedef struct qn_exprs {
    qn_expr *items; /* item 0 is no expression */
    qn_range *ranges;
    size_t n, capacity, n_ranges, range_capacity;
} qn_exprs;

void qn_exprs_free(qn_exprs *x);
qn_status qn_expr_add(qn_exprs *x, qn_expr expr, uint32_t *id);
/* Adds a class of code points. The ranges are sorted and merged in place. negated: all other code points except
 * surrogates. */
qn_status qn_expr_class(qn_exprs *x, qn_range *ranges, size_t n, bool negated, uint32_t *id);
/* Appends `child` to the children of a CAT or ALT. *last is the last child, 0 at first. */
void qn_expr_append(qn_exprs *x, uint32_t parent, uint32_t *last, uint32_t child);
qn_status qn_expr_literal(qn_exprs *x, const char *text, size_t length, uint32_t *id);
/* Adds the characters of a UTF-8 text. In a JSON string they may be spelled with escapes. */
qn_status qn_expr_characters(qn_exprs *x, const char *text, size_t length, uint32_t *id);
/* Adds one of two ASCII characters, which may be equal. */
qn_status qn_expr_either(qn_exprs *x, char a, char b, uint32_t *id);
/* Adds `child` repeated min to max times; max QN_UNLIMITED: no limit. */
qn_status qn_expr_repeat(qn_exprs *x, uint32_t child, uint32_t min, uint32_t max, uint32_t *id);
/* Adds any text of min to max code points, line ends included. */
qn_status qn_expr_any(qn_exprs *x, uint32_t min, uint32_t max, uint32_t *id);

/* qn_expr_weigh - estimates the number of NFA states of an expression, counting to `most` + 1 at most. */
uint64_t qn_expr_weigh(const qn_exprs *x, uint32_t id, uint64_t most);

/* qn_expr_regex - parses a regular expression.
 *
 *   search   true: it may match anywhere unless ^ and $ say otherwise, as a schema's pattern; false: it matches the
 *            whole text
 *   what     names it in errors */
qn_status qn_expr_regex(qn_exprs *x, const char *regex, size_t length, bool search, const char *what, uint32_t *id);

/* qn_dfa_compile - makes the DFA of an expression without calls.
 *
 *   in_string   true: characters as JSON strings spell them; false: UTF-8
 *   steps       is increased; QN_ERR_UNSUPPORTED above QN_GRAMMAR_STEPS, or after QN_GRAMMAR_DFA_STEPS in this call */
qn_status qn_dfa_compile(const qn_exprs *x, uint32_t expr, bool in_string, const char *what, uint64_t *steps,
                         qn_dfa *out);

/* qn_dfa_trim - redirects transitions to state 0 if no accepting state can be reached from their target.
 * QN_ERR_INVALID if nothing is accepted. */
qn_status qn_dfa_trim(qn_dfa *dfa, const char *what, uint64_t *steps);

/* qn_dfa_without_words - makes the DFA of all UTF-8 texts that contain none of the words.
 *
 *   words   [n_words] ASCII, not empty */
qn_status qn_dfa_without_words(const char *const *words, size_t n_words, const char *what, uint64_t *steps,
                               qn_dfa *out);

/* qn_dfa_meet - makes the DFA of the texts that `a` accepts and `b` accepts too, or with `without` does not.
 * QN_ERR_INVALID if there are none. */
qn_status qn_dfa_meet(const qn_dfa *a, const qn_dfa *b, bool without, const char *what, uint64_t *steps, qn_dfa *out);

/* qn_dfa_prepare - computes the data that masks need from a finished DFA. steps: as in qn_dfa_compile. */
qn_status qn_dfa_prepare(qn_dfa *dfa, uint64_t *steps);

/* qn_dfa_takes - whether a DFA accepts a text. */
bool qn_dfa_takes(const qn_dfa *dfa, const char *text, size_t length);

/* qn_dfa_count - restricts a DFA of JSON strings to min to max characters. After an error it is unchanged. */
qn_status qn_dfa_count(qn_dfa *dfa, uint32_t min, uint32_t max, const char *what, uint64_t *steps);

/* qn_expr_number - the expression of JSON's numbers from min to max. If there are bounds, a number other than 0 with
 * an exponent has one digit from 1 to 9 before the point, and is in the range of doubles. */
enum { QN_BOUND_DIGITS = 360 };
typedef struct qn_decimal { /* a magnitude: digits, without leading zeros, and without trailing zeros in the fraction */
    bool exclusive;
    char integer[QN_BOUND_DIGITS], fraction[QN_BOUND_DIGITS];
} qn_decimal;
typedef struct qn_bound {
    bool present, negative;
    qn_decimal plain, scientific; /* the bound for numbers without an exponent, and for numbers with one */
} qn_bound;
qn_status qn_expr_number(qn_exprs *x, bool integer, const qn_bound *min, const qn_bound *max, uint32_t *id);

/* qn_dfa_multiples - makes the DFA of the integers that are multiples of m, written as integers.
 *
 *   m   1 to QN_MULTIPLE */
enum { QN_MULTIPLE = 1 << 12 };
qn_status qn_dfa_multiples(uint32_t m, const char *what, uint64_t *steps, qn_dfa *out);

/* qn_grammar_add_expr - adds nodes that read a text of the expression and continue at `next`. */
qn_status qn_grammar_add_expr(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next,
                              uint32_t *entry);

/* ---- Running ---- */

/* Where the automaton is: at a node, in a frame. `sub` and `count` say how far the node was read; 0 for other kinds. */
typedef struct qn_config {
    uint32_t node, frame;
    uint32_t sub; /* DFA: state. WORDS: first | end << 16 of the words that begin so. STRING: machine state | DFA state
                     << 8. KEY: machine state | first << 8 | end << 20. INDENT: bytes read */
    uint32_t count; /* STRING, TEXT: characters, at most max, or min without max. KEY, WORDS: bytes read */
} qn_config;

/* An open call. Frames are shared by configurations, and are not changed once added. */
typedef struct qn_frame {
    uint32_t node, parent;
    uint16_t depth, level; /* level: number of open objects and arrays, as QN_CALL counts them */
    uint32_t count;
    uint64_t seen[4];
} qn_frame;

struct qn_grammar_state {
    const qn_grammar *grammar;
    qn_config *configs; /* [0, n_configs) are current; a look-ahead appends its own */
    qn_frame *frames;   /* frame 0 returns to QN_NODE_FINAL */
    size_t n_configs, n_frames, config_capacity, frame_capacity;
    uint64_t met[32];          /* bloom filter of the set in construction: one of 2048 bits for each configuration,
                                  by its hash */
    uint64_t steps, max_steps; /* of the current mask, or of the bytes being read */
    uint64_t mask_steps;       /* limit of a mask */
    bool failed;               /* out of memory, or too many steps */
    bool was_too_ambiguous;    /* the last bytes were refused because they took too many steps */
};

/* qn_state_begin - restarts the step counter, for a mask or for bytes to be read. */
static inline void qn_state_begin(qn_grammar_state *s, uint64_t max_steps)
{
    s->steps = 0;
    s->max_steps = max_steps;
    s->failed = false;
}

/* qn_state_pay - counts steps of a few ns each. All work whose length a request can influence must be counted. */
static inline void qn_state_pay(qn_grammar_state *s, uint64_t steps)
{
    s->steps += steps;
    s->failed |= s->steps > s->max_steps;
}

/* qn_state_step - computes the configurations after a byte. It reads [begin, end) of state->configs and writes the
 * new ones at `at`, at or after end. Returns their end, or `at` itself if the byte may not follow. It appends
 * frames: reset n_frames to undo. */
size_t qn_state_step(qn_grammar_state *state, size_t begin, size_t end, size_t at, uint8_t byte);

/* qn_state_takes - whether a byte may follow a configuration. True for some bytes of object keys that may not. */
bool qn_state_takes(qn_grammar_state *state, const qn_config *config, uint8_t byte);

/* qn_state_add_bytes - adds the bytes that may follow a configuration; for object keys it adds some that may not. */
void qn_state_add_bytes(qn_grammar_state *state, const qn_config *config, uint64_t bytes[4]);

/* qn_state_follow - the configurations after the nodes of [begin, end) have ended, before the next byte. Writes them
 * at `at`, at or after end; returns their end. */
size_t qn_state_follow(qn_grammar_state *state, size_t begin, size_t end, size_t at);

/* qn_state_adds_key - whether an undeclared key may begin at a QN_KEY configuration. */
bool qn_state_adds_key(const qn_grammar_state *state, const qn_config *config);

/* qn_state_additional_key - the QN_STRING configuration of a QN_KEY one, for a key that is not a declared name.
 * Appends a frame. */
qn_config qn_state_additional_key(qn_grammar_state *state, const qn_config *config);

/* qn_state_text_step - moves a QN_TEXT configuration over a byte; false if the byte may not follow. */
bool qn_state_text_step(const qn_grammar *g, qn_config *config, uint8_t byte);

/* qn_state_text_may_end - whether the text of a QN_TEXT configuration may end here. */
bool qn_state_text_may_end(const qn_grammar *g, const qn_config *config);

/* qn_state_declared_bytes - adds the bytes with which a key continues as a declared name, or ends as one. */
void qn_state_declared_bytes(qn_grammar_state *state, const qn_config *config, uint64_t bytes[4]);

/* qn_state_advance - qn_grammar_state_advance, with a limit of max_steps for each 256 bytes. */
bool qn_state_advance(qn_grammar_state *state, const char *bytes, size_t length, uint64_t max_steps);

/* qn_state_accepts - qn_grammar_state_accepts, without resetting the step counter. */
bool qn_state_accepts(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_state_has_final - whether [begin, end) contains a configuration at QN_NODE_FINAL. */
bool qn_state_has_final(const qn_grammar_state *state, size_t begin, size_t end);

#endif
