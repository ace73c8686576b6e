/* The names of tools and the types of their arguments, kept while an answer is generated. The parser of answers and
 * the compiler of call grammars read them. */
#ifndef QN_CHAT_OUTPUT_TOOLS_H
#define QN_CHAT_OUTPUT_TOOLS_H

#include "chat/output_parser.h"

/* Limit of the bytes of a tool's or argument's name in the form xml. */
enum { QN_OUTPUT_MAX_NAME = 256 };

typedef enum qn_value_type {
    VALUE_STRING,
    VALUE_INTEGER,
    VALUE_NUMBER,
    VALUE_BOOLEAN,
    VALUE_NULL,
    VALUE_ARRAY,
    VALUE_OBJECT,
    N_VALUE_TYPES
} qn_value_type;

/* The types of a value, in the order in which they are tried, each at most once. */
typedef struct qn_value_types {
    qn_value_type types[N_VALUE_TYPES];
    size_t n;
} qn_value_types;

typedef struct qn_output_tool qn_output_tool;

/* qn_output_tool_schema - the schema of a tool's arguments, borrowed; NULL if it has none. */
const json_t *qn_output_tool_schema(const json_t *tool);

/* qn_output_value_types - finds the types of an argument.
 *
 *   schema   of all arguments; NULL: none */
void qn_output_value_types(const json_t *schema, const char *key, size_t length, qn_value_types *types);

/* qn_output_find_tool - the tool with a name, or NULL. */
const qn_output_tool *qn_output_find_tool(const qn_output_tools *tools, const char *name, size_t length);

/* qn_output_find_argument - the index of a tool's argument, or -1. */
int64_t qn_output_find_argument(const qn_output_tools *tools, const qn_output_tool *tool, const char *key,
                                size_t length);

/* qn_output_argument_name - the name of argument i of a tool; NULL after the last.
 *
 *   tool   NULL: i counts the arguments of all tools */
const char *qn_output_argument_name(const qn_output_tools *tools, const qn_output_tool *tool, size_t i, size_t *length);

/* qn_output_argument_types - finds the types of a tool's argument.
 *
 *   tool   NULL: unknown */
void qn_output_argument_types(const qn_output_tools *tools, const qn_output_tool *tool, const char *key, size_t length,
                              qn_value_types *types);

#endif
