/* The compiler of JSON schemas, between schema.c (rules and combinations) and schema_types.c (types). */
#ifndef QN_GRAMMAR_SCHEMA_H
#define QN_GRAMMAR_SCHEMA_H

#include "grammar/automaton.h"
#include "grammar/schema_merge.h"
#include "chat/output_tools.h"

#include <stdio.h>

enum { QN_SCHEMA_SLOTS = 2 * QN_GRAMMAR_RULES, QN_SCHEMA_NUMBERS = 256 };

/* What a rule writes of its schema. In the form xml of calls: the parameters of a function, from behind its tag to behind its end; or
 * the value of one, from behind the line of its tag to behind its end. With a value come the types, QN_IS_..., whose texts the parser
 * reads as JSON where the value may be a string. */
typedef uint16_t qn_schema_form;
enum { QN_FORM_JSON = 0, QN_FORM_PARAMETERS = 1 << 8, QN_FORM_VALUE = 1 << 9, QN_FORM_READS = 255 };

typedef struct qn_schema_compiler {
    qn_grammar *grammar;
    qn_grammar_options options;
    qn_exprs exprs; /* of the current rule */
    char what[81];  /* names the schema in errors */
    json_t *root, *owned, *anything;
    struct qn_schema_place {
        json_t *schema; /* borrowed from root or owned */
        qn_schema_form form;
    } * places; /* of each rule */
    size_t capacity;
    uint32_t *slots; /* rules by schema, + 1 */
    uint32_t rule;   /* being compiled */
    uint32_t end, space;
    struct {
        uint64_t low, high; /* of the hash of the bounds, or of the pattern and the lengths */
        uint32_t dfa;       /* + 1; 0: none */
    } numbers[QN_SCHEMA_NUMBERS], patterns[QN_SCHEMA_NUMBERS];
    uint32_t words[3];            /* DFAs, + 1 */
    uint64_t merges, comparisons; /* steps of schema_merge.h */
    struct {
        const qn_output_tools *tools;
        const qn_output_tool *tool;        /* whose parameters are compiled */
        bool is_close_text;                /* the delimiter behind a call is no token */
        uint32_t texts[QN_FORM_READS + 1]; /* DFAs of texts without tags that are not read as JSON of types, + 1 */
    } xml;
} qn_schema_compiler;

/* qn_schema_begin, qn_schema_compile, qn_schema_end - compile schemas to rules of one grammar: begin, each schema, end, also after
 * an error.
 *
 *   what   names the schema in errors
 *   root   borrowed until the end; not changed
 *   part   what is compiled: the root, or a schema whose references are resolved in it
 *   form   of the rule
 *   out    the grammar, to be finished before the end (qn_grammar_finish); nothing unless status is QN_OK */
qn_status qn_schema_begin(qn_schema_compiler *c, const qn_grammar_options *options);
qn_status qn_schema_compile(qn_schema_compiler *c, const char *what, json_t *root, json_t *part, qn_schema_form form,
                            uint32_t *rule);
qn_status qn_schema_end(qn_schema_compiler *c, qn_status status, qn_grammar **out);

/* What is compiled, for errors: the schema's name and a JSON pointer into it, `schema: #/properties/a`. */
const char *qn_schema_path(const qn_schema_compiler *c);
qn_status qn_schema_own(qn_schema_compiler *c, json_t *schema);

/* qn_schema_rule - the rule of a schema in a form, which is compiled later if it is new.
 *
 *   keyword, key   where it stands: in this keyword, there under this key. NULL: it stands for the whole */
qn_status qn_schema_rule(qn_schema_compiler *c, json_t *schema, qn_schema_form form, const char *keyword, const char *key,
                         uint32_t *rule);
qn_status qn_schema_node(qn_schema_compiler *c, qn_node_kind kind, uint32_t a, uint32_t next, uint32_t *id);
qn_status qn_schema_byte(qn_schema_compiler *c, char byte, uint32_t next, uint32_t *id);
qn_status qn_schema_literal(qn_schema_compiler *c, const char *text, uint32_t next, uint32_t *id); /* the bytes of a text */

/* White space of the style before `next`. any_space: where only the style `any` has some. */
qn_status qn_schema_any_space(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_colon(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_comma(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_after_open(qn_schema_compiler *c, uint32_t next, uint32_t *id);
qn_status qn_schema_before_close(qn_schema_compiler *c, uint32_t next, uint32_t *id);

/* qn_schema_inner - a call of the rule of a member or item. */
qn_status qn_schema_inner(qn_schema_compiler *c, uint32_t rule, uint32_t next, uint32_t *id);
qn_status qn_schema_dfa(qn_schema_compiler *c, uint32_t expr, uint32_t *dfa);
qn_status qn_schema_or(qn_schema_compiler *c, uint32_t node, uint32_t *entry);

/* qn_schema_charge - count work that is no node and no automaton; QN_ERR_UNSUPPORTED above QN_GRAMMAR_STEPS. */
qn_status qn_schema_charge(qn_schema_compiler *c, uint64_t steps);

/* qn_schema_may_ignore - whether a keyword is ignored for this error: it is not supported, and the schema is not strict. */
bool qn_schema_may_ignore(const qn_schema_compiler *c, qn_status status);

/* The error of another function, with the place. */
qn_status qn_schema_at_place(const qn_schema_compiler *c, qn_status status);

/* qn_schema_check_keywords - refuse a keyword whose number is none, and with strict one that is not supported. */
qn_status qn_schema_check_keywords(const qn_schema_compiler *c, json_t *schema);

/* qn_schema_count - an integer keyword from 0 on, or its default.
 *
 * No output reaches INT32_MAX characters, items or properties: a larger maximum is QN_UNLIMITED, and a larger minimum
 * QN_ERR_UNSUPPORTED. What is no integer is QN_ERR_INVALID. */
qn_status qn_schema_count(const qn_schema_compiler *c, json_t *schema, const char *key, uint32_t otherwise, uint32_t *count);

/* qn_schema_is_note - whether a keyword is an annotation, which says nothing of what fits. */
bool qn_schema_is_note(const char *key);

/* qn_schema_types - the types of a schema, as QN_IS_...: those it names, or those that its keywords are about. */
qn_status qn_schema_types(const qn_schema_compiler *c, json_t *schema, unsigned *types);

/* qn_schema_excluded - the strings that `not` excludes, a new reference to a list; NULL: it has none, or says something else, which is not
 * supported. qn_schema_exclude - leaves them out of a DFA of strings. *is_none: nothing is left. */
json_t *qn_schema_excluded(json_t *schema);
qn_status qn_schema_exclude(qn_schema_compiler *c, json_t *schema, bool in_string, uint32_t *dfa, bool *is_none);

/* qn_schema_constants - those of an enum or const that are of the types and fit all other keywords of the schema. Borrowed. */
qn_status qn_schema_constants(qn_schema_compiler *c, json_t *schema, unsigned types, json_t **constants);

/* qn_schema_of_constant - an array or object as a schema that it alone fits. A new reference. */
json_t *qn_schema_of_constant(json_t *value);

/* qn_schema_pattern - the regular expression of a schema's pattern, or else of its format; *text NULL: it has none. */
qn_status qn_schema_pattern(const qn_schema_compiler *c, json_t *schema, const char **text, size_t *length);

/* qn_schema_format - the regular expression of a format; NULL: none is known. */
const char *qn_schema_format(const char *name);

/* The node at which a value of a type begins. */
qn_status qn_schema_string(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_number(qn_schema_compiler *c, json_t *schema, bool integer, uint32_t *entry);
qn_status qn_schema_array(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_object(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_enum(qn_schema_compiler *c, json_t *schema, unsigned types, uint32_t *entry);

/* ---- schema_names.c ---- */

/* qn_schema_match_properties - properties, each with the schemas of the patterns that its name matches. Owned by the compiler. */
qn_status qn_schema_match_properties(qn_schema_compiler *c, json_t *patterns, json_t **properties);

/* qn_schema_list_names - the schema of an object whose propertyNames are constants as one with these properties alone. Names that are said
 * otherwise are not supported: with strict an error, else any. */
qn_status qn_schema_list_names(qn_schema_compiler *c, json_t **schema);

/* qn_schema_find_names - names that an object does not name, by the patterns that they match: DFAs of the grammar, without a name in
 * common, and the schemas of their values.
 *
 *   patterns    NULL: none
 *   rest        the schema of names that match none; false: there are no such names
 *   in_string   names as JSON spells them
 *   all         the DFA of all such names, which is taken
 *   names       [QN_SCHEMA_NAMES] */
enum { QN_SCHEMA_NAMES = 64 };
typedef struct qn_schema_names {
    uint32_t dfa;
    json_t *schema;
} qn_schema_names;
qn_status qn_schema_find_names(qn_schema_compiler *c, json_t *patterns, json_t *rest, bool in_string, qn_dfa *all,
                               qn_schema_names *names, size_t *n_names);

/* qn_schema_other_rules - the rules of the values of such names, which the object keeps. */
qn_status qn_schema_other_rules(qn_schema_compiler *c, uint32_t object, const qn_schema_names *names, size_t n,
                                qn_schema_form form, const char *keyword);

/* qn_schema_members - the properties of an object's schema, the required ones, and the schema of others, which is there. Borrowed.
 * qn_schema_object_counts - sets how many members an object has, and whether they are in order. */
qn_status qn_schema_members(qn_schema_compiler *c, json_t *schema, json_t **properties, json_t **required, json_t **rest);
qn_status qn_schema_object_counts(const qn_schema_compiler *c, json_t *schema, qn_object_rule *o);

/* schema_xml.c: the same of parameters and of a value in the form xml. */
bool qn_schema_is_tag_name(const char *name); /* whether a name may stand in a tag */
qn_status qn_schema_parameters(qn_schema_compiler *c, json_t *schema, uint32_t *entry);
qn_status qn_schema_value(qn_schema_compiler *c, json_t *schema, unsigned types, qn_schema_form form, uint32_t *entry);

#endif
