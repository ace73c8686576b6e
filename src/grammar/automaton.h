/* The automaton of a grammar: nodes, of which some are whole DFAs, JSON strings or keys of an object; and its builder.
 *
 * A rule is a node at which a call begins. A call pushes a frame with the node to which it returns and with what an object or
 * an array of the rule counts: the properties seen, the number of items. */
#ifndef QN_GRAMMAR_AUTOMATON_H
#define QN_GRAMMAR_AUTOMATON_H

#include "grammar/grammar.h"

#include <stdatomic.h>

#define QN_UNLIMITED UINT32_MAX

enum {
    QN_GRAMMAR_NODES = 1 << 17,       /* most nodes of a grammar */
    QN_GRAMMAR_RULES = 1 << 15,       /* most rules */
    QN_GRAMMAR_PROPERTIES = 256,      /* most properties of an object */
    QN_GRAMMAR_SPELLED = 1024,        /* most bytes of a property's name, as JSON spells it */
    QN_GRAMMAR_ITEMS = 1024,          /* most items of an array that have schemas of their own */
    QN_GRAMMAR_STEPS = 3 << 20,       /* most steps of a compilation: some ns each */
    QN_GRAMMAR_DFA_STEPS = 1 << 20,   /* most steps of a DFA */
    QN_GRAMMAR_MASK_STEPS = 1 << 22,  /* most steps of a mask */
    QN_GRAMMAR_QUICK_STEPS = 1 << 18, /* most steps of a mask for which others wait */
    QN_GRAMMAR_TOKEN_STEPS = 1 << 18, /* most steps of the bytes that are read at once */
    QN_GRAMMAR_CHECK_STEPS = 1 << 16, /* most steps of a token that is checked before a mask is made */
    QN_GRAMMAR_NESTED = 64,           /* most nested groups of a regular expression or GBNF rule */
    QN_NODE_NEVER = 0,                /* node 0: nothing follows */
    QN_NODE_FINAL = 1                 /* node 1: the output may end */
};

typedef enum qn_node_kind {
    QN_NEVER,
    QN_FINAL,
    QN_BYTE,   /* one byte of lo..hi, then next */
    QN_DFA,    /* a text of dfa `a`, then next */
    QN_STRING, /* the rest of a JSON string by strings[a], its quote included, then next */
    QN_KEY,    /* the rest of a key of objects[a], the byte behind it included */
    QN_REST,   /* next, for one more member of objects[a] that it does not name, if there may be one */
    QN_TEXT, /* a text of the characters and of the dfa of strings[a], then next. The node before it is a QN_DFA that does not count */
    QN_SPLIT,  /* next or a */
    QN_CALL,   /* rule `a`, lo levels deeper, then next */
    QN_RETURN, /* to the frame's node */
    QN_MEMBER, /* of objects[a]: `}` or a key; lo: 1 before the first member */
    QN_ITEM,   /* of arrays[a]: lo 1: `]` or the first item; 0: `]` or a comma; 2: an item */
    QN_INDENT  /* a line end and two spaces for each level of the frame, and lo more levels, then next */
} qn_node_kind;

typedef struct qn_node {
    uint8_t kind, lo, hi;
    bool productive; /* some text leads from here to the end of the rule */
    uint32_t next, a;
} qn_node;

/* A deterministic automaton. State 0 is dead, 1 the start. From every other state some text is accepted. */
typedef struct qn_dfa {
    uint32_t n_states, n_classes;
    uint8_t class_of[256];
    uint32_t *next;  /* [n_states, n_classes] */
    uint8_t *accept; /* [n_states] */
    /* Of a finished grammar: */
    bool takes_line_ends; /* U+000A or U+000D follows some state */
    uint32_t *alike;      /* [n_states] qn_dfa_alike; NULL: of few states, which are soon followed */
} qn_dfa;

/* How escapes may be used in a string. A key must not spell a declared name differently: ASCII has one spelling. Where
 * declared names are outside ASCII (QN_STRING_KEY_UNICODE) all other characters of a key are as they are, or all are escapes
 * in lower case. */
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
    uint32_t *values;      /* [n_properties] nodes after the key's quote */
    uint32_t *value_rules; /* [n_properties] what those nodes call */
    uint64_t required[4], usable[4];
    uint32_t n_required, min, max;
    bool additional;
    bool is_ordered;                      /* properties come in their order, then additional ones */
    uint8_t end;                          /* the byte behind a key */
    uint32_t rest, rest_value, rest_rule; /* the QN_STRING node of an additional key, the node behind it, and its rule */
    uint32_t others;                      /* or in its place the QN_REST node of such keys, */
    uint32_t *other_rules, n_other_rules; /* and the rules of their values */
    uint32_t close_empty, close;          /* nodes of `}`: at once, or behind a member */
    uint32_t first, more;                 /* nodes of the first key's quote; of a comma and a key */
} qn_object_rule;

typedef struct qn_array_rule {
    uint32_t min, max, n_prefix;
    uint32_t *items;      /* [n_prefix + 1] nodes of items, each calls its rule and continues; the last is for the rest */
    uint32_t *item_rules; /* [n_prefix + 1] */
    uint32_t close_empty, close; /* nodes of `]`: at once, or behind an item */
    uint32_t first, comma;       /* nodes that lead to the first item, and to the next */
} qn_array_rule;

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
    qn_rule *rules;
    size_t n_nodes, n_dfas, n_strings, n_objects, n_arrays, n_rules;
    size_t node_capacity, dfa_capacity, string_capacity, object_capacity, array_capacity, rule_capacity;
    uint32_t root;
    size_t bytes;
    uint64_t steps; /* of the compilation */
};

/* The machine of JSON strings: string_next(form)[state][byte] is the next state, QN_STRING_REJECTED, or QN_STRING_END at the
 * quote. State 0 is between characters. */
enum { QN_STRING_STATES = 80, QN_STRING_REJECTED = 255, QN_STRING_END = 254 };
typedef uint8_t qn_string_table[QN_STRING_STATES][256];
const qn_string_table *qn_string_machine(qn_string_form form);

/* ---- Building ---- */

qn_status qn_grammar_begin(qn_grammar **out);
qn_status qn_grammar_add_node(qn_grammar *g, qn_node node, uint32_t *id);
qn_status qn_grammar_add_rule(qn_grammar *g, const char *name, uint32_t *rule);
qn_status qn_grammar_add_dfa(qn_grammar *g, qn_dfa *dfa, uint32_t *id); /* takes the DFA */
qn_status qn_grammar_add_string(qn_grammar *g, qn_string_rule rule, uint32_t *id);
qn_status qn_grammar_add_object(qn_grammar *g, uint32_t *id); /* zeroed */
qn_status qn_grammar_add_array(qn_grammar *g, uint32_t *id);

/* qn_grammar_finish - check and prepare: no left recursion, the root derives a text, dead alternatives are closed. */
qn_status qn_grammar_finish(qn_grammar *g, uint32_t root_rule);

/* qn_grammar_rule_of - the name of the rule that has a node, for errors. */
const char *qn_grammar_rule_of(const qn_grammar *g, uint32_t node);

/* qn_grammar_refuse_empty - QN_ERR_INVALID for a rule without texts, with the rule that it needs and that has none itself. */
qn_status qn_grammar_refuse_empty(const qn_grammar *g, uint32_t rule);

void qn_dfa_free(qn_dfa *dfa);

/* ---- Expressions ---- */

/* What regular expressions, GBNF rules and the scalars of schemas are read to, and DFAs are made of. */
typedef enum qn_expr_kind {
    QN_EXPR_EMPTY,
    QN_EXPR_CLASS,
    QN_EXPR_BYTES,
    QN_EXPR_CAT,
    QN_EXPR_ALT,
    QN_EXPR_REPEAT,
    QN_EXPR_CALL
} qn_expr_kind;

typedef struct qn_expr {
    uint8_t kind;
    bool calls;              /* it contains a QN_EXPR_CALL */
    uint32_t child, sibling; /* 0: none */
    uint32_t dfa;            /* its DFA in the grammar, + 1; 0: none yet */
    uint32_t a, b;           /* CLASS: ranges [a, a + b); BYTES: one byte a..b; REPEAT: from a to b times; CALL: rule a,
                                or `child` in its place, of weight b */
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
/* A class of code points; sorted and merged. Negated: all others but surrogates. */
qn_status qn_expr_class(qn_exprs *x, qn_range *ranges, size_t n, bool negated, uint32_t *id);
/* Appends `child` to the children of a CAT or ALT; *last is the last child, 0 at first. */
void qn_expr_append(qn_exprs *x, uint32_t parent, uint32_t *last, uint32_t child);
qn_status qn_expr_literal(qn_exprs *x, const char *text, size_t length, uint32_t *id);
/* The characters of a text in UTF-8, which a JSON string may spell differently. */
qn_status qn_expr_characters(qn_exprs *x, const char *text, size_t length, uint32_t *id);
/* One of two characters, which may be the same. */
qn_status qn_expr_either(qn_exprs *x, char a, char b, uint32_t *id);
/* `child` from min to max times; QN_UNLIMITED: any number of times from min on. */
qn_status qn_expr_repeat(qn_exprs *x, uint32_t child, uint32_t min, uint32_t max, uint32_t *id);
/* Texts of min to max code points, line ends among them. */
qn_status qn_expr_any(qn_exprs *x, uint32_t min, uint32_t max, uint32_t *id);

/* About how many NFA states an expression has, at most `most` + 1. */
uint64_t qn_expr_weigh(const qn_exprs *x, uint32_t id, uint64_t most);

/* qn_expr_regex - read a regular expression.
 *
 *   search   it may match anywhere unless ^ and $ say otherwise (a schema's pattern); else it matches the whole
 *   what     names it in errors */
qn_status qn_expr_regex(qn_exprs *x, const char *regex, size_t length, bool search, const char *what, uint32_t *id);

/* qn_dfa_compile - the DFA of an expression without calls.
 *
 *   in_string   characters as JSON strings spell them; else UTF-8
 *   steps       counted up, QN_ERR_UNSUPPORTED above QN_GRAMMAR_STEPS, or QN_GRAMMAR_DFA_STEPS more than before */
qn_status qn_dfa_compile(const qn_exprs *x, uint32_t expr, bool in_string, const char *what, uint64_t *steps, qn_dfa *out);

/* qn_dfa_trim - lead to state 0 what leads to nothing that is accepted. QN_ERR_INVALID if nothing is. */
qn_status qn_dfa_trim(qn_dfa *dfa, const char *what, uint64_t *steps);

/* qn_dfa_without_words - the DFA of UTF-8 texts that contain none of some words.
 *
 *   words   [n_words] ASCII, not empty */
qn_status qn_dfa_without_words(const char *const *words, size_t n_words, const char *what, uint64_t *steps, qn_dfa *out);

/* qn_dfa_meet - the DFA of the texts of `a` that are texts of `b` too, or that are not. QN_ERR_INVALID if there is none. */
qn_status qn_dfa_meet(const qn_dfa *a, const qn_dfa *b, bool without, const char *what, uint64_t *steps, qn_dfa *out);

/* qn_dfa_prepare - find what masks need of a DFA that is finished. steps: as in qn_dfa_compile. */
qn_status qn_dfa_prepare(qn_dfa *dfa, uint64_t *steps);

/* qn_dfa_takes - whether a text is one of a DFA. */
bool qn_dfa_takes(const qn_dfa *dfa, const char *text, size_t length);

/* qn_dfa_count - make a DFA of JSON strings accept only those of min to max characters. Unchanged after an error. */
qn_status qn_dfa_count(qn_dfa *dfa, uint32_t min, uint32_t max, const char *what, uint64_t *steps);

/* qn_expr_number - the expression of JSON's numbers from min to max. With bounds a number other than 0 that has an exponent has
 * one digit from 1 to 9 before the point, and is one that a double can hold. */
enum { QN_BOUND_DIGITS = 360 };
typedef struct qn_decimal { /* a magnitude: digits without leading, and without trailing zeros */
    bool exclusive;
    char integer[QN_BOUND_DIGITS], fraction[QN_BOUND_DIGITS];
} qn_decimal;
typedef struct qn_bound {
    bool present, negative;
    qn_decimal plain, scientific; /* the bound of numbers without exponent, and of those with one */
} qn_bound;
qn_status qn_expr_number(qn_exprs *x, bool integer, const qn_bound *min, const qn_bound *max, uint32_t *id);

/* qn_grammar_add_expr - nodes that read a text of the expression and go on to `next`. */
qn_status qn_grammar_add_expr(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next, uint32_t *entry);

/* ---- Running ---- */

typedef struct qn_config {
    uint32_t node, frame;
    uint32_t sub;   /* DFA: state. STRING: machine state | DFA state << 8. KEY: machine state | first << 8 | end << 20.
                       INDENT: bytes read */
    uint32_t count; /* STRING, TEXT: characters, at most max, or min without max. KEY: bytes read */
} qn_config;

typedef struct qn_frame {
    uint32_t node, parent;
    uint16_t depth, level; /* level: objects and arrays that are open, where QN_CALL counts them */
    uint32_t count;
    uint64_t seen[4];
} qn_frame;

struct qn_grammar_state {
    const qn_grammar *grammar;
    qn_config *configs; /* the current ones are [0, n_configs); those of a look-ahead are behind them */
    qn_frame *frames;   /* frame 0 returns to QN_NODE_FINAL */
    size_t n_configs, n_frames, config_capacity, frame_capacity;
    uint64_t met[32];          /* a bit of 2048 for each configuration of the set that is being made, by its hash */
    uint64_t steps, max_steps; /* of the mask, or of the bytes that are read at once */
    uint64_t mask_steps;       /* the most of a mask */
    bool failed;               /* no memory, or too many steps */
    bool was_too_ambiguous;    /* the bytes that were read last were refused for that */
};

/* qn_state_begin - begin to count the steps of a mask, or of bytes that are read. */
static inline void qn_state_begin(qn_grammar_state *s, uint64_t max_steps)
{
    s->steps = 0;
    s->max_steps = max_steps;
    s->failed = false;
}

/* qn_state_pay - count steps, of a few ns each. What a request can make longer pays for its length. */
static inline void qn_state_pay(qn_grammar_state *s, uint64_t steps)
{
    s->steps += steps;
    s->failed |= s->steps > s->max_steps;
}

/* qn_state_step - the configurations after a byte: reads [begin, end) of state->configs, appends them at `at`, from end on.
 * Returns their end; `at` itself if the byte may not follow. Frames are appended; truncate n_frames to undo. */
size_t qn_state_step(qn_grammar_state *state, size_t begin, size_t end, size_t at, uint8_t byte);

/* qn_state_takes - whether a byte may follow a configuration. True for some of an object's keys that may not. */
bool qn_state_takes(qn_grammar_state *state, const qn_config *config, uint8_t byte);

/* qn_state_add_bytes - adds the bytes that may follow a configuration, and for an object's keys some that may not. */
void qn_state_add_bytes(qn_grammar_state *state, const qn_config *config, uint64_t bytes[4]);

/* qn_state_follow - the configurations behind the nodes of [begin, end), before their first byte: appends them at `at`, from
 * end on, returns their end. */
size_t qn_state_follow(qn_grammar_state *state, size_t begin, size_t end, size_t at);

/* qn_state_adds_key - whether a key that the object does not name may begin at a QN_KEY configuration. */
bool qn_state_adds_key(const qn_grammar_state *state, const qn_config *config);

/* qn_state_additional_key - the QN_STRING configuration of a QN_KEY one if what follows is of no declared name. Appends a frame. */
qn_config qn_state_additional_key(qn_grammar_state *state, const qn_config *config);

/* qn_state_text_step - a QN_TEXT configuration after a byte; false: it may not follow. qn_state_text_may_end - whether the text may. */
bool qn_state_text_step(const qn_grammar *g, qn_config *config, uint8_t byte);
bool qn_state_text_may_end(const qn_grammar *g, const qn_config *config);

/* qn_state_declared_bytes - adds the bytes with which the key continues as a declared name, or ends as one. */
void qn_state_declared_bytes(qn_grammar_state *state, const qn_config *config, uint64_t bytes[4]);

/* qn_state_advance - qn_grammar_state_advance, with at most so many steps for each 256 bytes. */
bool qn_state_advance(qn_grammar_state *state, const char *bytes, size_t length, uint64_t max_steps);

/* qn_state_accepts - qn_grammar_state_accepts, with steps that are counted to those before. */
bool qn_state_accepts(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_state_has_final - whether a configuration of [begin, end) is QN_NODE_FINAL. */
bool qn_state_has_final(const qn_grammar_state *state, size_t begin, size_t end);

#endif
