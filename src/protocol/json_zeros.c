/* Checks for U+0000 in strings of a body. Texts that the model reads have a length and may have it. All other strings,
 * such as names, ids, grammars and patterns, are read up to a terminating zero: "a\u0000b" would be the name "a". */
#include "protocol/json_body.h"

#include <string.h>

/* Whether the strings of a member, also those in arrays, are texts of a conversation or prompt. */
static bool is_text(const char *member)
{
    static const char *const names[] = {
        "content",   "text",         "prompt",      "input",     "instructions",      "system",
        "arguments", "thinking",     "output",      "reasoning", "reasoning_content", "refusal",
        "suffix",    "input_prefix", "input_suffix"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(member, names[i]))
            return true;
    return false;
}

/* Whether a member is the object of a call's arguments, which templates print: of Chats and of Messages. */
static bool is_values(const char *member, const json_t *value)
{
    return json_is_object(value) && (!strcmp(member, "arguments") || !strcmp(member, "input"));
}

static bool check_value(const char *member, const json_t *value, qn_refusal *refusal)
{
    const char *name;
    json_t *inner;
    size_t i;
    if (json_is_string(value) && !is_text(member) && memchr(json_string_value(value), 0, json_string_length(value)))
        return qn_refuse(refusal, 400, NULL, member,
                         "'%.60s' has U+0000, which only texts of messages and prompts may have", member);
    json_array_foreach(value, i, inner)
    {
        if (!check_value(member, inner, refusal))
            return false;
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, inner)
    {
        if (!is_values(name, inner) && !check_value(name, inner, refusal))
            return false;
    }
    return true;
}

bool qn_body_check_zeros(const json_t *body, qn_refusal *refusal)
{
    return check_value("", body, refusal);
}
