/* Determines what a chat template supports, by rendering it with small conversations. */
#include "chat/adapt.h"

#include <stdlib.h>
#include <string.h>

const char *const qn_effort_levels[QN_EFFORT_LEVELS] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };

/* Words that no template contains. */
#define PROBE "qn9probe"
#define OTHER "qn8probe"

static const qn_jinja_limits probe_limits = { .steps = 200000, .memory = 16 << 20, .output = 1 << 20 };

/* Renders messages, with reasoning_effort unless `effort` is NULL, and with enable_thinking if `thinks`. NULL if the
 * template fails. Free it with free(). */
static char *text_of(const qn_jinja *jinja, const char *messages, const char *effort, bool thinks)
{
    const qn_jinja_variable variables[] = { { "messages", json_loads(messages, 0, NULL), false },
                                            { "bos_token", json_string(""), true },
                                            { "eos_token", json_string(""), true },
                                            { "tools", json_null(), false },
                                            { "documents", json_null(), false },
                                            { "add_generation_prompt", json_true(), false },
                                            { "reasoning_effort", effort ? json_string(effort) : NULL, false },
                                            { "enable_thinking", thinks ? json_true() : NULL, false } };
    enum { N = sizeof variables / sizeof *variables };
    qn_jinja_output output = { 0 };
    if (variables[0].value)
        (void)qn_jinja_render(jinja, variables, N, 0, &probe_limits, &output);
    for (size_t i = 0; i < N; i++)
        json_decref(variables[i].value);
    char *text = output.text;
    output.text = NULL;
    qn_jinja_output_free(&output);
    return text;
}

static bool accepts(const qn_jinja *jinja, const char *messages)
{
    char *text = text_of(jinja, messages, NULL, false);
    free(text);
    return text != NULL;
}

/* Whether the template accepts the messages and prints all of `words` and none of `not_words`; both lists end with
 * NULL. */
static bool prints(const qn_jinja *jinja, const char *messages, const char *const *words, const char *const *not_words)
{
    char *text = text_of(jinja, messages, NULL, false);
    bool does = text != NULL;
    for (; does && words && *words; words++)
        does = strstr(text, *words) != NULL;
    for (; does && not_words && *not_words; not_words++)
        does = strstr(text, *not_words) == NULL;
    free(text);
    return does;
}

#define MESSAGE(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"

static const char *const probe[] = { PROBE, NULL }, *const both[] = { PROBE, OTHER, NULL };
static const char *const in_quotes[] = { "'" PROBE, "\"" PROBE, NULL }, *const python[] = { "'" PROBE, NULL };

/* Whether the template reads contents in parts. One without support for them fails, prints nothing, or prints a Python
 * list. */
static bool reads_parts(const qn_jinja *jinja)
{
    return prints(jinja, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"" PROBE "\"}]}]", probe,
                  in_quotes) ||
           !accepts(jinja, "[" MESSAGE("user", PROBE) "]");
}

/* ---- Roles ---- */

/* Finds which roles are printed at their place. A template that rejects a role even at the beginning gets it
 * unchanged, so that its own error is reported. */
static void find_roles(const qn_jinja *jinja, qn_chat_traits *traits)
{
    const bool has_system = prints(jinja, "[" MESSAGE("system", PROBE) "," MESSAGE("user", "a") "]", probe, NULL);
    traits->merges_system =
        has_system &&
        !prints(jinja, "[" MESSAGE("system", PROBE) "," MESSAGE("system", OTHER) "," MESSAGE("user", "a") "]", both,
                NULL);
    traits->folds_system = has_system && !prints(jinja,
                                                 "[" MESSAGE("system", PROBE) "," MESSAGE("user", "a") "," MESSAGE(
                                                     "system", OTHER) "," MESSAGE("user", "b") "]",
                                                 both, NULL);
    traits->folds_developer = has_system && traits->has_developer &&
                              !prints(jinja,
                                      "[" MESSAGE("system", PROBE) "," MESSAGE("user", "a") "," MESSAGE(
                                          "developer", OTHER) "," MESSAGE("user", "b") "]",
                                      both, NULL);
}

/* ---- Calls ---- */

#define CALL_THEN(content, arguments, then)                                                                            \
    "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": " content                       \
    ", \"tool_calls\": [{\"type\": \"function\", \"id\": \"abcdefghi\", \"function\": {\"name\": \"f\", "              \
    "\"arguments\": " arguments "}}]}" then "]"
#define CALL(arguments) CALL_THEN("\"\"", arguments, "")
#define REST                                                                                                           \
    ", {\"role\": \"tool\", \"name\": \"f\", \"tool_call_id\": \"abcdefghi\", \"content\": \"b\"}," MESSAGE(           \
        "assistant", "c") "," MESSAGE("user", "d")
#define OBJECT "{\"" PROBE "\": 1}"
#define TEXT "\"{\\\"" PROBE "\\\": 1}\""

/* Whether the template fails on, or prints, a null content where it accepts an empty one. Some templates read the
 * content only in the last turns, or only in earlier ones. */
static bool refuses_null(const qn_jinja *jinja, bool as_text)
{
    static const char *const none[] = { "None", NULL };
    static const char *const conversations[][2] = {
        { CALL_THEN("\"\"", OBJECT, ""), CALL_THEN("null", OBJECT, "") },
        { CALL_THEN("\"\"", OBJECT, REST), CALL_THEN("null", OBJECT, REST) },
        { CALL_THEN("\"\"", TEXT, ""), CALL_THEN("null", TEXT, "") },
        { CALL_THEN("\"\"", TEXT, REST), CALL_THEN("null", TEXT, REST) },
    };
    for (size_t i = as_text ? 2 : 0, end = i + 2; i < end; i++)
        if (prints(jinja, conversations[i][0], NULL, none) && !prints(jinja, conversations[i][1], NULL, none))
            return true;
    return false;
}

/* Finds the form of arguments. If the template accepts both, objects are right, since tojson does not quote them,
 * unless it prints them in Python's syntax. */
static void find_calls(const qn_jinja *jinja, qn_chat_traits *traits)
{
    const bool reads_object = prints(jinja, CALL(OBJECT), probe, python);
    traits->reads_argument_text = accepts(jinja, CALL(TEXT)) || !accepts(jinja, CALL(OBJECT));
    traits->wants_argument_text = !reads_object && prints(jinja, CALL(TEXT), probe, NULL);
    traits->refuses_null = refuses_null(jinja, traits->wants_argument_text);
}

/* ---- The user's message ---- */

#define ASSISTANT_CALL(arguments)                                                                                      \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"id\": \"abcdefghi\", "   \
    "\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}, {\"role\": \"tool\", \"name\": \"f\", "         \
    "\"tool_call_id\": \"abcdefghi\", \"content\": \"" OTHER "\"}]"

/* Whether conversations without a message of the user fail, and print all of `words` with an empty one. */
static bool is_saved(const qn_jinja *jinja, const char *without, const char *with, const char *const *words)
{
    return !accepts(jinja, without) && prints(jinja, with, words, NULL);
}

static bool needs_user(const qn_jinja *jinja, bool as_text)
{
    static const char *const other[] = { OTHER, NULL };
    static const char system[] = "[" MESSAGE("system", PROBE) "]",
                      asked[] = "[" MESSAGE("system", PROBE) "," MESSAGE("user", "") "]";
    return is_saved(jinja, system, asked, probe) ||
           (as_text ? is_saved(jinja, "[" ASSISTANT_CALL(TEXT), "[" MESSAGE("user", "") "," ASSISTANT_CALL(TEXT), other)
                    : is_saved(jinja, "[" ASSISTANT_CALL(OBJECT), "[" MESSAGE("user", "") "," ASSISTANT_CALL(OBJECT),
                               other));
}

/* ---- Effort ---- */

/* Whether two texts are equal except for one word in either: then the template only prints its effort. */
static bool equal_but(const char *a, const char *b, const char *word)
{
    const size_t n = strlen(word), n_probe = sizeof PROBE - 1;
    while (*a || *b) {
        const size_t skip_a = strncmp(a, word, n) ? strncmp(a, PROBE, n_probe) ? 0 : n_probe : n,
                     skip_b = strncmp(b, word, n) ? strncmp(b, PROBE, n_probe) ? 0 : n_probe : n;
        if (!skip_a != !skip_b || (!skip_a && *a != *b))
            return false;
        a += skip_a ? skip_a : 1;
        b += skip_b ? skip_b : 1;
    }
    return true;
}

struct efforts {
    unsigned refused, known;
    bool is_strict;
};

/* Adds the template's reaction to each level in one mode, unless it prints nothing in that mode. */
static void add_efforts(const qn_jinja *jinja, bool thinks, struct efforts *found)
{
    static const char question[] = "[" MESSAGE("user", "a") "]";
    char *without = text_of(jinja, question, NULL, thinks), *invented = text_of(jinja, question, PROBE, thinks);
    unsigned refused = 0, known = 0;
    for (int i = 0; i < QN_EFFORT_LEVELS; i++) {
        char *text = text_of(jinja, question, qn_effort_levels[i], thinks);
        if (!text)
            refused |= 1u << i;
        else if (invented ? !equal_but(text, invented, qn_effort_levels[i]) : true)
            known |= 1u << i;
        free(text);
    }
    if (without || known) {
        found->refused |= refused;
        found->known |= known;
        found->is_strict |= !invented;
    }
    free(without);
    free(invented);
}

/* Finds the levels of effort. A strict template refuses unknown levels; its levels are those that it accepts. Other
 * templates distinguish the levels for which they print something else than for an invented word. */
static void find_efforts(const qn_jinja *jinja, qn_chat_traits *traits)
{
    struct efforts found = { 0 };
    add_efforts(jinja, false, &found);
    if (traits->has_thinking)
        add_efforts(jinja, true, &found);
    traits->is_strict = found.is_strict;
    traits->efforts = found.known & ~found.refused;
    for (int i = 0; i < QN_EFFORT_LEVELS; i++)
        if (traits->efforts >> i & 1)
            traits->names[traits->n_names++] = qn_effort_levels[i];
}

static bool is_developer(const char *text, size_t length, void *user)
{
    bool *found = user;
    *found = *found || (length == strlen("developer") && !memcmp(text, "developer", length));
    return !*found;
}

void qn_chat_traits_of(const qn_jinja *jinja, qn_chat_traits *traits)
{
    *traits = (qn_chat_traits){ .reads_parts = reads_parts(jinja),
                                .reads_reasoning = qn_jinja_uses(jinja, "reasoning"),
                                .has_thinking = qn_jinja_uses(jinja, "enable_thinking"),
                                .has_effort = qn_jinja_uses(jinja, "reasoning_effort") };
    qn_jinja_spells(jinja, is_developer, &traits->has_developer);
    find_roles(jinja, traits);
    find_calls(jinja, traits);
    traits->needs_user = needs_user(jinja, traits->wants_argument_text);
    if (traits->has_effort)
        find_efforts(jinja, traits);
}
