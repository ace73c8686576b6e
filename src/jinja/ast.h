/* The syntax tree of a template. Nodes live in the template's arena; names are interned: equal names are equal
 * pointers. The tree is constant after parsing; any thread may read it. */
#ifndef QN_JINJA_AST_H
#define QN_JINJA_AST_H

#include "jinja/arena.h"
#include "jinja/value.h"

typedef enum qn_node_kind {
    /* Expressions */
    QN_NODE_CONST,     /* value */
    QN_NODE_NAME,      /* name */
    QN_NODE_ATTRIBUTE, /* a.name */
    QN_NODE_ITEM,      /* a[b] */
    QN_NODE_SLICE,     /* a[b:c:d], each may be NULL */
    QN_NODE_CALL,      /* a(args) */
    QN_NODE_FILTER,    /* a | name(args); a is NULL in a filter block */
    QN_NODE_TEST,      /* a is name(args) */
    QN_NODE_NOT,
    QN_NODE_NEGATE,
    QN_NODE_PLUS,
    QN_NODE_BINARY,  /* a op b */
    QN_NODE_COMPARE, /* a, then items with their ops */
    QN_NODE_AND,
    QN_NODE_OR,
    QN_NODE_CONCAT,  /* items */
    QN_NODE_IF_ELSE, /* a if b else c; c may be NULL */
    QN_NODE_LIST,
    QN_NODE_TUPLE,
    QN_NODE_DICT, /* items: key, value, key, value */
    /* Statements */
    QN_NODE_TEXT,         /* value */
    QN_NODE_PRINT,        /* a */
    QN_NODE_IF,           /* a; body; otherwise */
    QN_NODE_FOR,          /* target a, iterable b, condition c or NULL; body; otherwise */
    QN_NODE_SET,          /* target a, value b */
    QN_NODE_SET_BLOCK,    /* target a, filters b or NULL; body */
    QN_NODE_MACRO,        /* name; args: parameters with defaults; body */
    QN_NODE_CALL_BLOCK,   /* call a; args: parameters; body */
    QN_NODE_FILTER_BLOCK, /* filters a; body */
    QN_NODE_WITH,         /* items: target, value, ...; body */
    QN_NODE_BLOCK,        /* body, in its own scope: generation */
    QN_NODE_BREAK,
    QN_NODE_CONTINUE,
} qn_node_kind;

typedef enum qn_operator {
    QN_OP_ADD,
    QN_OP_SUBTRACT,
    QN_OP_MULTIPLY,
    QN_OP_DIVIDE,
    QN_OP_FLOOR_DIVIDE,
    QN_OP_MODULO,
    QN_OP_POWER,
    QN_OP_EQUAL,
    QN_OP_NOT_EQUAL,
    QN_OP_LESS,
    QN_OP_LESS_EQUAL,
    QN_OP_GREATER,
    QN_OP_GREATER_EQUAL,
    QN_OP_IN,
    QN_OP_NOT_IN,
} qn_operator;

typedef struct qn_node qn_node;

/* An argument of a call, or a parameter of a macro with its default (value may be NULL). */
typedef struct qn_argument {
    const char *name; /* NULL: positional */
    qn_node *value;
    uint8_t stars; /* 1: *value, 2: **value */
} qn_argument;

/* Statements that are executed in order. */
typedef struct qn_body {
    qn_node **nodes;
    uint32_t n;
    const char **locals; /* [n_locals] in a body with its own scope: names that are undefined at its start (frames.h) */
    uint32_t n_locals;
} qn_body;

struct qn_node {
    qn_node_kind kind;
    uint32_t line;
    uint32_t begin, end; /* bytes of the source */
    qn_operator op;
    const char *name;
    qn_value value;
    qn_node *a, *b, *c, *d;
    qn_node **items;
    uint8_t *ops; /* [n_items] of a comparison */
    uint32_t n_items;
    qn_argument *args;
    uint32_t n_args;
    qn_body body, otherwise;
    bool is_elif; /* an if whose `otherwise` is its elif */
    /* In a macro or call block: whether its body reads these names. */
    bool uses_varargs, uses_kwargs, uses_caller;
    qn_node *outer; /* the macro around it */
};

/* Interned names, each stored once. */
typedef struct qn_names {
    const char **names;
    uint32_t n, capacity;
} qn_names;

/* A template. Constant after qn_jinja_compile. */
struct qn_jinja {
    qn_arena arena;
    char *source; /* with newlines normalised, [length] */
    size_t length;
    qn_names names;
    qn_body body;
    qn_node **texts; /* [n_texts] string constants and text */
    uint32_t n_texts;
};

/* qn_intern - the interned copy of a name of `length` bytes, in the template's arena. While it is parsed only. */
qn_status qn_intern(struct qn_jinja *jinja, const char *name, size_t length, const char **out);

/* qn_shown_bytes - the number of bytes of a text that an error shows: complete characters, at most `most` bytes. */
enum { QN_SHOWN_BYTES = 60 };
int qn_shown_bytes(const char *text, size_t length, size_t most);

/* qn_interned - the interned name that equals `name`, or NULL if the template does not contain it. */
const char *qn_interned(const struct qn_jinja *jinja, const char *name);

#endif
