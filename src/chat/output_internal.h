/* Shared by the files of the output parser: output_parser.c (text, delimiters, events), output_json.c and output_xml.c (one
 * call each), output_value.c (values by their schemas).
 *
 * The parser handles one symbol at a time: a byte of valid UTF-8, or a mark, a byte that UTF-8 does not use, which stands for
 * a delimiter that came as a token. Symbols that are not decided are in `held`; marks become their delimiter's text when they
 * leave the parser. */
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
    size_t begin; /* of the key or value in `held` */
    bool has_name, has_arguments;
} qn_json_call;

typedef struct qn_xml_call {
    enum { XML_OPEN, XML_NAME, XML_BODY, XML_KEY, XML_VALUE_BEGIN, XML_VALUE } state;
    size_t begin;  /* of the tag, name or key in `held` */
    size_t cursor; /* the first symbol of the value that is not decided */
    size_t n_arguments;
    qn_value_types types;
    bool may_be_other; /* the value may be a string, and what came of it may be of a type before that: none of it went out */
    bool is_scanned;   /* the value is the beginning of JSON so far, as `scan` has it */
    qn_json_scan scan;
    uint64_t given[8];          /* a bit for each of the tool's arguments that came, as far as there are bits */
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
    qn_status status; /* of the first allocation that failed */

    qn_utf8_stream utf8;
    qn_symbols queue; /* to be handled, from queue_head on */
    size_t queue_head;
    qn_symbols held;
    qn_symbols out; /* the piece of text or arguments that will be the next event */
    qn_output_event_kind out_kind;
    qn_symbols scratch;

    enum { STATE_TEXT, STATE_CALL, STATE_AFTER_CALL } state;
    /* Text. `held` is a run of space, then from `candidate` on what could become a delimiter. */
    bool reasoning;
    bool reasoning_cut; /* a call ended the reasoning, so that think_close may follow it */
    bool at_start;      /* no text has come since the beginning, the end of reasoning or the last call */
    bool strip;         /* newlines here belong to the format */
    bool in_block;      /* after a call without call_close: another may follow */
    char last;          /* byte of the text */
    size_t candidate;

    /* A call. `held` is the space before it, then from `raw` on the call. */
    size_t raw;
    bool needs_known; /* the name must be one of the tools' */
    bool begun;
    size_t n_calls;
    qn_symbols name, arguments;
    size_t after; /* the end of the call in `held`, in STATE_AFTER_CALL */
    union {
        qn_json_call json;
        qn_xml_call xml;
    } call;

    size_t n_reasoning, reasoning_budget; /* n_reasoning: of all blocks */
    bool is_spent;                        /* the budget has ended a block */
    bool is_ending;                       /* the words that end this one have been given */
    char *reasoning_end;
};

/* ---- output_parser.c ---- */

/* Appends bytes; on failure sets the parser's status. */
void qn_output_append(qn_output_parser *p, qn_symbols *symbols, const char *bytes, size_t n);

/* Appends symbols with marks replaced by their delimiters' text. */
void qn_output_expand(qn_output_parser *p, qn_symbols *to, const char *symbols, size_t n);

/* Compares symbols with a delimiter, which may be cut at their end. */
qn_match qn_output_match(const qn_output_parser *p, qn_delimiter which, const char *symbols, size_t n);
qn_match qn_output_match_text(const char *text, size_t length, const char *symbols, size_t n);

/* Whether a call of the name in p->name is accepted here; begins it. */
bool qn_output_accepts_name(const qn_output_parser *p);
void qn_output_begin_call(qn_output_parser *p);

/* A piece of arguments: symbols, and JSON as it is. */
void qn_output_arguments(qn_output_parser *p, const char *symbols, size_t n);

/* The call is complete: held[p->raw .. end). What follows in `held` is handled again, maybe as the call's end. */
void qn_output_call_complete(qn_output_parser *p, size_t end);

/* The symbols from held[at] on are not what the call needs: it is text, or broken, or complete if its arguments are. */
void qn_output_call_failed(qn_output_parser *p, size_t at);

/* Handles held[at ..) again. */
void qn_output_unread(qn_output_parser *p, size_t at);

/* ---- One symbol of a call, the last of p->held ---- */

void qn_output_json_step(qn_output_parser *p);
void qn_output_xml_step(qn_output_parser *p);

/* The output ends inside the call: begins a call whose name is known. */
void qn_output_json_finish(qn_output_parser *p);

/* ---- output_value.c ---- */

/* Whether a text may begin a value of a type that is tried before a string. */
bool qn_output_may_be_other(const qn_value_types *types, const char *text, size_t n);

/* Appends a value as JSON: as the first of its types that it is an instance of, else as a string. */
void qn_output_value(qn_output_parser *p, qn_symbols *to, const qn_value_types *types, const char *text, size_t n);

/* Appends text as the inside of a JSON string. */
void qn_output_escape(qn_output_parser *p, qn_symbols *to, const char *text, size_t n);

#endif
