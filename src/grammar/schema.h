/* The compiler of JSON schemas, between schema.c (rules and combinations) and schema_types.c (types).
 *
 * Nodes are made from the end of a text to its beginning. So a function that adds nodes gets `next`, the node after the
 * text that they read, and returns `node` or `entry`, the node before it. Where it says so, a function adds an
 * alternative: *entry becomes a split of its old value and the new node (qn_schema_or); QN_NODE_NEVER is no alternative
 * yet.
 *
 * JSON. A json_t that a function is given is borrowed; it is not changed unless the comment says so. "Owned by the
 * compiler": a reference that qn_schema_own took, valid until qn_schema_end. "Borrowed": valid as long as the schema
 * that it comes from. A compilation has one thread. */
#ifndef QN_GRAMMAR_SCHEMA_H
#define QN_GRAMMAR_SCHEMA_H

#include "base/keyed_hash.h"
#include "grammar/automaton.h"
#include "grammar/schema_merge.h"
#include "chat/output_tools.h"

#include <stdio.h>

enum { QN_SCHEMA_SLOTS = 2 * QN_GRAMMAR_RULES, QN_SCHEMA_NUMBERS = 256 };

/* The form in which a rule writes its schema. QN_FORM_PARAMETERS: the parameters of a function in the form xml, from
 * after its tag to after its end tag. QN_FORM_VALUE: the value of one parameter, from after the line of its tag to
 * after its end tag; it is combined with the types (QN_IS_...) that the parser tries to read as JSON before it takes
 * a string. */
typedef uint16_t qn_schema_form;
enum { QN_FORM_JSON = 0, QN_FORM_PARAMETERS = 1 << 8, QN_FORM_VALUE = 1 << 9, QN_FORM_READS = 255 };

typedef struct qn_schema_compiler {
    qn_grammar *grammar; /* that is made; owned until qn_schema_end */
    qn_grammar_options options;
    qn_exprs exprs; /* of the current rule */
    char what[81];  /* names the schema in errors */
    json_t *root, *owned, *anything;
    struct qn_schema_place {
        json_t *schema; /* borrowed from root or owned */
        qn_schema_form form;
    } * places; /* [capacity] one for each rule */
    size_t capacity;
    uint32_t *slots;     /* rules by schema, + 1 */
    uint32_t rule;       /* the rule being compiled */
    uint32_t end, space; /* the node QN_RETURN; the DFA of white space */
    struct {
        uint64_t low, high; /* hash of the bounds, or of the pattern and the lengths */
        uint32_t dfa;       /* + 1; 0: none */
    } numbers[QN_SCHEMA_NUMBERS], patterns[QN_SCHEMA_NUMBERS];
    uint32_t words[3];            /* DFAs, + 1 */
    uint64_t merges, comparisons; /* step counters of schema_merge.h */
    struct {
        const qn_output_tools *tools;
        const qn_output_tool *tool;        /* the tool whose parameters are being compiled */
        bool is_close_text;                /* call_close is text, not a token */
        uint32_t texts[QN_FORM_READS + 1]; /* DFAs, + 1, of texts without tags that are not read as these types */
    } xml;
} qn_schema_compiler;

/* qn_schema_begin - begins to compile schemas to rules of one new grammar. Call qn_schema_end even after an error. */
qn_status qn_schema_begin(qn_schema_compiler *c, const qn_grammar_options *options);

/* qn_schema_compile - compiles a schema and all schemas that it refers to.
 *
 *   what   names the schema in errors
 *   root   references are resolved in it; borrowed until qn_schema_end; not changed
 *   part   the schema to compile: the root or a part of it
 *   form   of the rule
 *   rule   the rule that reads a value of the schema */
qn_status qn_schema_compile(qn_schema_compiler *c, const char *what, json_t *root, json_t *part, qn_schema_form form,
                            uint32_t *rule);

/* qn_schema_end - frees the compiler and returns `status`. Call qn_grammar_finish on its grammar before.
 *
 *   status   QN_OK: *out is the grammar. Else the grammar is freed */
qn_status qn_schema_end(qn_schema_compiler *c, qn_status status, qn_grammar **out);

/* The place being compiled, for errors: the schema's name and a JSON pointer, `schema: #/properties/a`. */
const char *qn_schema_path(const qn_schema_compiler *c);

/* qn_schema_own - gives the compiler the reference to a schema, which it drops in qn_schema_end; dropped at once after
 * an error. QN_ERR_MEMORY for NULL. */
qn_status qn_schema_own(qn_schema_compiler *c, json_t *schema);

/* qn_schema_rule - the rule of a schema in a form. A new rule is queued and compiled later.
 *
 *   keyword, key   where the schema stands: under this key of this keyword. NULL: it is the whole schema */
qn_status qn_schema_rule(qn_schema_compiler *c, json_t *schema, qn_schema_form form, const char *keyword,
                         const char *key, uint32_t *rule);
/* Add a node of a kind; one that reads a byte; those that read a text. *id: the first. */
qn_status qn_schema_node(qn_schema_compiler *c, qn_node_kind kind, uint32_t a, uint32_t next, uint32_t *id);
qn_status qn_schema_byte(qn_schema_compiler *c, char byte, uint32_t next, uint32_t *id);
qn_status qn_schema_literal(qn_schema_compiler *c, const char *text, uint32_t next, uint32_t *id);

/* Add white space of the style, before `next`. any_space: only the style QN_JSON_SPACE_ANY has any there. */
qn_status qn_schema_any_space(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_colon(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_comma(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_open(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_before_close(qn_schema_compiler *c, uint32_t next, uint32_t *id);

/* qn_schema_inner - adds a call of the rule of a member or item, one level deeper. */
qn_status qn_schema_inner(qn_schema_compiler *c, uint32_t rule, uint32_t next, uint32_t *id);

/* qn_schema_dfa - adds the DFA of an expression of c->exprs, over UTF-8. *dfa: its index in the grammar. */
qn_status qn_schema_dfa(qn_schema_compiler *c, uint32_t expr, uint32_t *dfa);

/* qn_schema_or - adds an alternative: *entry becomes a split of its old value and the node. */
qn_status qn_schema_or(qn_schema_compiler *c, uint32_t node, uint32_t *entry);

/* qn_schema_charge - counts work other than nodes and automata; QN_ERR_UNSUPPORTED above QN_GRAMMAR_STEPS. */
qn_status qn_schema_charge(qn_schema_compiler *c, uint64_t steps);

/* qn_schema_may_ignore - whether a keyword with this error is ignored: it is unsupported, and the schema is not
 * strict. */
bool qn_schema_may_ignore(const qn_schema_compiler *c, qn_status status);

/* Puts the place in front of another function's error text. Returns the status. */
qn_status qn_schema_at_place(const qn_schema_compiler *c, qn_status status);

/* qn_schema_check_keywords - refuses a keyword that needs a number and has none, and in strict mode an unsupported
 * keyword. */
qn_status qn_schema_check_keywords(const qn_schema_compiler *c, json_t *schema);

/* ---- schema_keywords.c ---- */

/* qn_schema_is_unsupported - whether a keyword restricts values and is not supported, but for what schema_expand.c
 * rewrites. */
bool qn_schema_is_unsupported(const char *key);

/* qn_schema_meant_keyword - the keyword of which an unknown one is a misspelling, or NULL. */
const char *qn_schema_meant_keyword(const char *key);

/* qn_schema_count - reads a keyword that is an integer from 0 on, or gives its default.
 *
 * No output reaches INT32_MAX characters, items or properties: a larger maximum becomes QN_UNLIMITED, a larger
 * minimum is QN_ERR_UNSUPPORTED. A value that is not an integer is QN_ERR_INVALID. */
qn_status qn_schema_count(const qn_schema_compiler *c, json_t *schema, const char *key, uint32_t otherwise,
                          uint32_t *count);

/* qn_schema_types - the types of a schema, as QN_IS_...: those it names, or those to which its keywords apply. */
qn_status qn_schema_types(const qn_schema_compiler *c, json_t *schema, unsigned *types);

/* qn_schema_exclude - removes the strings that `not` excludes from a DFA of strings. *is_none: no string is left. */
qn_status qn_schema_exclude(qn_schema_compiler *c, json_t *schema, bool in_string, uint32_t *dfa, bool *is_none);

/* qn_schema_constants - the values of an enum or const that have one of the types and fit all other keywords.
 * Borrowed. */
qn_status qn_schema_constants(qn_schema_compiler *c, json_t *schema, unsigned types, json_t **constants);

/* From this number of strings on, those of an enum are a list of words instead of a DFA. */
enum { QN_SCHEMA_MANY = 128 };

/* qn_schema_of_constant - the schema that only this array or object fits. A new reference; NULL without memory. */
json_t *qn_schema_of_constant(json_t *value);

/* ---- schema_string.c ---- */

/* Regular expressions that a string has to match, or must not match. Borrowed from the schema. */
enum { QN_SCHEMA_PATTERNS = 16 };
typedef struct qn_schema_patterns {
    struct {
        const char *text;
        size_t length;
        bool is_excluded;
    } items[QN_SCHEMA_PATTERNS];
    size_t n;
} qn_schema_patterns;

/* qn_schema_find_patterns - the regular expressions of a schema's pattern and format, and of those joined to it. */
qn_status qn_schema_find_patterns(const qn_schema_compiler *c, json_t *schema, qn_schema_patterns *patterns);
qn_hash128 qn_schema_hash_patterns(const qn_schema_patterns *patterns);

/* qn_schema_compile_pattern - the DFA of the texts that match a pattern. *is_none: there are none, and no DFA. */
qn_status qn_schema_compile_pattern(qn_schema_compiler *c, const char *regex, size_t length, bool in_string,
                                    qn_dfa *out, bool *is_none);

/* qn_schema_meet_patterns - the DFA of the texts that match the patterns.
 *
 *   in_string   true: as JSON strings spell them; false: UTF-8
 *   texts       the texts to choose from; NULL: all
 *   is_none     there is no such text, and `out` is not set */
qn_status qn_schema_meet_patterns(qn_schema_compiler *c, const qn_schema_patterns *patterns, bool in_string,
                                  const qn_dfa *texts, qn_dfa *out, bool *is_none);

/* qn_schema_keep_strings - keeps of a DFA's texts those that fit a schema of strings: its lengths, patterns, format,
 * constants and exclusions. *is_none: none is left. After an error or with none the DFA is freed. */
qn_status qn_schema_keep_strings(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *dfa, bool *is_none);

/* qn_schema_format - the regular expression of a format; NULL if it has none. */
const char *qn_schema_format(const char *name);

/* Each gives the node at which a value of its type begins. */
qn_status qn_schema_string(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_number(qn_schema_compiler *c, json_t *schema, bool integer, uint32_t *entry);
qn_status qn_schema_array(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_object(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_enum(qn_schema_compiler *c, json_t *schema, unsigned types, uint32_t *entry);

/* qn_schema_unique - an array whose items differ, if they are constants. *is_done: false if the schema does not ask for
 * that, or no array has two items. Other items are unsupported: an error in strict mode, else their differing is
 * ignored. */
qn_status qn_schema_unique(qn_schema_compiler *c, json_t *schema, uint32_t *entry, bool *is_done);

/* qn_schema_spell - a text as JSON spells it, without quotes; with `ascii`, characters outside ASCII are escaped.
 * free() it; NULL without memory. */
char *qn_schema_spell(const char *text, size_t length, bool ascii, size_t *n);

/* qn_schema_spellings - adds the spellings of a name to an object, which has room for two of each name. */
qn_status qn_schema_spellings(qn_schema_compiler *c, uint32_t object, const char *key, size_t length,
                              uint32_t property);
void qn_schema_sort_spellings(qn_object_rule *o);

/* qn_schema_scalar - the node that reads a number, a boolean or null. */
qn_status qn_schema_scalar(qn_schema_compiler *c, json_t *value, uint32_t next, uint32_t *node);

/* ---- schema_names.c ---- */

/* qn_schema_match_properties - the properties, each joined with the schemas of the patterns that its name matches.
 * Required names that are not declared become properties, with the schema `rest` if they match no pattern. Owned by the
 * compiler. */
qn_status qn_schema_match_properties(qn_schema_compiler *c, json_t *schema, json_t *required, json_t *rest,
                                     json_t **properties);

/* qn_schema_list_names - if propertyNames lists constants, replaces the schema of an object by one that has only
 * these properties. */
qn_status qn_schema_list_names(qn_schema_compiler *c, json_t **schema);

/* qn_schema_restrict_properties - properties whose names do not fit propertyNames get the schema false; required names
 * that fit become properties with the schema `rest`. Owned by the compiler. A propertyNames of other than strings'
 * keywords is unsupported: an error in strict mode, else ignored. */
qn_status qn_schema_restrict_properties(qn_schema_compiler *c, json_t *schema, json_t *required, json_t *rest,
                                        json_t **properties);

/* qn_schema_restrict_names - keeps of a DFA of names those that fit propertyNames. QN_ERR_INVALID if none does. The DFA
 * is freed after an error. */
qn_status qn_schema_restrict_names(qn_schema_compiler *c, json_t *schema, bool in_string, qn_dfa *names);

/* qn_schema_find_names - the undeclared names of an object, grouped by the patterns that they match: disjoint DFAs of
 * the grammar, each with the schema of its values.
 *
 *   patterns    NULL: none
 *   rest        the schema of names that match no pattern; false: they are not allowed
 *   in_string   true: names as JSON spells them
 *   all         the DFA of all undeclared names; the function frees it
 *   names       [QN_SCHEMA_NAMES] */
enum { QN_SCHEMA_NAMES = 64 };
typedef struct qn_schema_names {
    uint32_t dfa;
    json_t *schema;
} qn_schema_names;
qn_status qn_schema_find_names(qn_schema_compiler *c, json_t *patterns, json_t *rest, bool in_string, qn_dfa *all,
                               qn_schema_names *names, size_t *n_names);

/* qn_schema_other_rules - makes the rules of the values of such names; the object keeps their list. */
qn_status qn_schema_other_rules(qn_schema_compiler *c, uint32_t object, const qn_schema_names *names, size_t n,
                                qn_schema_form form, const char *keyword);

/* qn_schema_members - the properties of an object's schema, its required names, and the schema of additional
 * members, which is never NULL. Borrowed. */
qn_status qn_schema_members(qn_schema_compiler *c, json_t *schema, json_t **properties, json_t **required,
                            json_t **rest);

/* qn_schema_object_counts - sets the object's limits of members, and whether they are in order. */
qn_status qn_schema_object_counts(const qn_schema_compiler *c, json_t *schema, qn_object_rule *o);

/* schema_xml.c: parameters and values in the form xml. */
bool qn_schema_is_tag_name(const char *name); /* whether a name may stand in a tag */
qn_status qn_schema_parameters(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_value(qn_schema_compiler *c, json_t *schema, unsigned types, qn_schema_form form, uint32_t *entry);

#endif
