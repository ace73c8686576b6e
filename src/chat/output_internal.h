/* Shared by the files of the output parser: output_parser.c (text, delimiters, events), output_json.c and output_xml.c
 * (one call each), output_value.c (values by their schemas).
 *
 * The parser handles one symbol at a time: a byte of valid UTF-8, or a mark, which is a byte that UTF-8 does not use
 * and stands for a delimiter that came as a token. `held` holds the symbols whose meaning is not decided. When a
 * mark leaves the parser, it becomes its delimiter's text.
 *
 * A parser is used by one thread at a time. */
#ifndef QN_CHAT_OUTPUT_INTERNAL_H
#define QN_CHAT_OUTPUT_INTERNAL_H

#include "chat/output_parser.h"
#include "chat/output_tools.h"
#include "text/json_scan.h"
#include "base/utf8.h"
#include "text/utf8_stream.h"

enum { FIRST_MARK = 0xf8, MAX_UNDECIDED = 256 << 10 };

typedef enum qn_delimiter {
    THINK_OPEN,
    THINK_CLOSE,
    CALL_OPEN,
    CALL_CLOSE,
    N_MARKS,
    FUNCTION = N_MARKS, /* "<function=" without CALL_OPEN */
    BRACE,              /* "{" without CALL_OPEN */
    N_DELIMITERS
} qn_delimiter;

typedef enum qn_match { MATCH_NO, MATCH_PARTIAL, MATCH_FULL } qn_match;

typedef struct qn_symbols {
    char *data;
    size_t n, capacity;
} qn_symbols;

typedef struct qn_json_call {
    enum { JSON_OPEN, JSON_FIRST_KEY, JSON_KEY, JSON_IN_KEY, JSON_COLON, JSON_VALUE, JSON_IN_VALUE, JSON_AFTER } state;
    enum { KEY_OTHER, KEY_NAME, KEY_ARGUMENTS } key;
    qn_json_scan scan;
    size_t begin; /* of the key or value, in `held` */
    bool has_name, has_arguments;
} qn_json_call;

typedef struct qn_xml_call {
    enum { XML_OPEN, XML_NAME, XML_BODY, XML_KEY, XML_VALUE_BEGIN, XML_VALUE } state;
    size_t begin;  /* of the tag, name or key, in `held` */
    size_t cursor; /* the first undecided symbol of the value */
    size_t n_arguments;
    qn_value_types types;
    bool may_be_other; /* the value may be a string, but its text so far may begin another type that is tried first:
                          nothing was emitted */
    bool is_scanned;   /* the value is a prefix of JSON so far; `scan` has its state */
    qn_json_scan scan;
    uint64_t given[8];          /* a bit for each argument of the tool that has occurred, for the first 512 */
    const qn_output_tool *tool; /* NULL: unknown */
} qn_xml_call;

struct qn_output_parser {
    qn_output_form form;
    struct {
        char *text; /* NULL: none */
        size_t length;
        int32_t token;
    } delimiters[N_DELIMITERS];
    bool has_delimiters;
    const qn_output_tools *tools;
    void (*on_event)(const qn_output_event *event, void *user);
    void *user;
    size_t max_call;
    qn_status status; /* of the first failed allocation */

    qn_utf8_stream utf8;
    qn_symbols queue; /* symbols to be handled, from queue_head on */
    size_t queue_head;
    qn_symbols held;
    qn_symbols out; /* text or arguments that become the next event */
    qn_output_event_kind out_kind;
    qn_symbols scratch;
    qn_symbols literal; /* a value that Python prints in another way than JSON */

    enum { STATE_TEXT, STATE_CALL, STATE_AFTER_CALL } state;
    /* Text. `held` is a run of space, and from `candidate` on a possible delimiter. */
    bool reasoning;
    bool reasoning_cut; /* a call ended the reasoning; think_close may still follow it */
    bool at_start;      /* no text yet since the beginning, the end of reasoning or the last call */
    bool strip;         /* newlines here belong to the format */
    bool in_block;      /* after a call without call_close: another call may follow */
    char last;          /* last byte of the text */
    size_t candidate;

    /* A call. `held` is the space before it, and from `raw` on the call. */
    size_t raw;
    bool needs_known; /* the name must be that of a tool */
    bool begun;
    size_t n_calls;
    qn_symbols name, arguments;
    size_t after; /* in STATE_AFTER_CALL: the end of the call in `held` */
    union {
        qn_json_call json;
        qn_xml_call xml;
    } call;

    size_t n_reasoning, reasoning_budget; /* n_reasoning: tokens of all reasoning so far */
    bool is_spent;                        /* the budget has ended a reasoning block */
    bool is_ending;                       /* the words that end the current block have been returned */
    char *reasoning_end;
};

/* ---- output_parser.c ---- */

/* Appends bytes; on failure sets the parser's status. */
void qn_output_append(qn_output_parser *p, qn_symbols *symbols, const char *bytes, size_t n);

/* Appends symbols. Marks are replaced by their delimiters' text. */
void qn_output_expand(qn_output_parser *p, qn_symbols *to, const char *symbols, size_t n);

/* Compares symbols with a delimiter. MATCH_PARTIAL: they are the beginning of it. */
qn_match qn_output_match(const qn_output_parser *p, qn_delimiter which, const char *symbols, size_t n);
qn_match qn_output_match_text(const char *text, size_t length, const char *symbols, size_t n);

/* Whether a call of the tool p->name is accepted here. */
bool qn_output_accepts_name(const qn_output_parser *p);

/* Begins the call of p->name. */
void qn_output_begin_call(qn_output_parser *p);

/* Appends a piece of arguments: symbols that are JSON already. */
void qn_output_arguments(qn_output_parser *p, const char *symbols, size_t n);

/* Ends a complete call: held[p->raw .. end). The symbols after it are handled again; they may be the call's end
 * delimiter. */
void qn_output_call_complete(qn_output_parser *p, size_t end);

/* Ends a call that the symbols from held[at] on do not continue: it becomes text or a broken call, or a complete one
 * if its arguments are complete. */
void qn_output_call_failed(qn_output_parser *p, size_t at);

/* Handles held[at ..) again. */
void qn_output_unread(qn_output_parser *p, size_t at);

/* ---- One symbol of a call, the last of p->held ---- */

void qn_output_json_step(qn_output_parser *p);
void qn_output_xml_step(qn_output_parser *p);

/* Handles the end of the output inside a call: begins a call whose name is known. */
void qn_output_json_finish(qn_output_parser *p);

/* ---- output_value.c ---- */

/* Whether a text may begin a value of a type that is tried before string. */
bool qn_output_may_be_other(const qn_value_types *types, const char *text, size_t n);

/* Appends a value as JSON: of the first of its types that fits, else as a string. */
void qn_output_value(qn_output_parser *p, qn_symbols *to, const qn_value_types *types, const char *text, size_t n);

/* Appends text with JSON's escapes, without quotes. */
void qn_output_escape(qn_output_parser *p, qn_symbols *to, const char *text, size_t n);

#endif
