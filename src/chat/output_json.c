/* One tool call as a JSON object: its name, its arguments (or parameters), in any order; other keys are ignored.
 * Once the name is known, the model's own bytes of the arguments are passed on. */
#include "chat/output_internal.h"

#include <string.h>

static bool is_key(const qn_symbols *held, size_t begin, size_t end, const char *key)
{
    const size_t length = strlen(key);
    return end - begin == length + 2 && !memcmp(held->data + begin + 1, key, length);
}

static void fail_here(qn_output_parser *p)
{
    qn_output_call_failed(p, p->held.n - 1);
}

/* Whether enough of a call is known to begin it. In a doubtful place it needs arguments, too. */
static bool may_begin(const qn_output_parser *p)
{
    const qn_json_call *json = &p->call.json;
    return json->has_name && (json->has_arguments || !p->needs_known);
}

static void begin_with_arguments(qn_output_parser *p)
{
    qn_output_begin_call(p);
    qn_output_arguments(p, p->arguments.data, p->arguments.n);
}

/* Decodes the name, or a string that holds arguments. False if Jansson refuses it. */
static bool decode(qn_output_parser *p, size_t end, qn_symbols *to)
{
    const qn_json_call *json = &p->call.json;
    p->scratch.n = to->n = 0;
    qn_output_expand(p, &p->scratch, p->held.data + json->begin, end - json->begin);
    if (p->status != QN_OK)
        return false;
    json_t *string = json_loadb(p->scratch.data, p->scratch.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (json_is_string(string))
        qn_output_append(p, to, json_string_value(string), json_string_length(string));
    const bool is = json_is_string(string);
    json_decref(string);
    return is;
}

/* Keeps arguments that came before the name, or that are not an object: the text of an object, or null. */
static bool keep_arguments(qn_output_parser *p, size_t end)
{
    const qn_json_call *json = &p->call.json;
    const char first = p->held.data[json->begin];
    p->arguments.n = 0;
    if (first == '{')
        qn_output_expand(p, &p->arguments, p->held.data + json->begin, end - json->begin);
    else if (first == 'n')
        qn_output_append(p, &p->arguments, "{}", 2);
    else if (first != '"' || !decode(p, end, &p->arguments))
        return false;
    return p->arguments.n && *p->arguments.data == '{' && qn_json_is_value(p->arguments.data, p->arguments.n);
}

/* Handles the end of the value held[begin .. end). */
static bool value_ended(qn_output_parser *p, size_t end)
{
    qn_json_call *json = &p->call.json;
    json->state = JSON_AFTER;
    if (json->key == KEY_NAME) {
        if (!decode(p, end, &p->name) || p->name.n > QN_OUTPUT_MAX_NAME || !qn_output_accepts_name(p))
            return false;
        json->has_name = true;
    } else if (json->key == KEY_ARGUMENTS) {
        if (!p->begun && !keep_arguments(p, end))
            return false;
        json->has_arguments = true;
    }
    if (!p->begun && json->has_name && json->has_arguments)
        begin_with_arguments(p);
    return true;
}

static void key_ended(qn_output_parser *p)
{
    qn_json_call *json = &p->call.json;
    const qn_symbols *held = &p->held;
    json->state = JSON_COLON;
    if (is_key(held, json->begin, held->n, "name"))
        json->key = KEY_NAME;
    else if (is_key(held, json->begin, held->n, "arguments") || is_key(held, json->begin, held->n, "parameters"))
        json->key = KEY_ARGUMENTS;
    else
        json->key = KEY_OTHER;
    /* JSON that is not a call must not be held back for long. */
    const bool of_calls = is_key(held, json->begin, held->n, "type") || is_key(held, json->begin, held->n, "id");
    if ((json->key == KEY_OTHER && p->needs_known && !of_calls) || (json->key == KEY_NAME && json->has_name) ||
        (json->key == KEY_ARGUMENTS && json->has_arguments))
        fail_here(p);
}

static void object_ended(qn_output_parser *p)
{
    if (!p->begun) {
        if (!may_begin(p)) {
            fail_here(p);
            return;
        }
        qn_output_append(p, &p->arguments, "{}", 2);
        begin_with_arguments(p);
    }
    qn_output_call_complete(p, p->held.n);
}

static void value_step(qn_output_parser *p)
{
    qn_json_call *json = &p->call.json;
    const char c = p->held.data[p->held.n - 1];
    const bool first = json->begin == p->held.n - 1;
    const qn_json_step step = qn_json_scan_feed(&json->scan, c);
    if (step == QN_JSON_ERROR) {
        fail_here(p);
        return;
    }
    if (json->key == KEY_ARGUMENTS && first && c == '{' && json->has_name && !p->begun)
        qn_output_begin_call(p);
    if (json->key == KEY_ARGUMENTS && p->begun)
        qn_output_arguments(p, &c, 1);
    const size_t end = step == QN_JSON_END ? p->held.n : p->held.n - 1;
    if (step == QN_JSON_MORE)
        return;
    if (!value_ended(p, end))
        fail_here(p);
    else
        qn_output_unread(p, end);
}

static void begin_string_or_value(qn_output_parser *p)
{
    p->call.json.begin = p->held.n - 1;
    p->call.json.scan = (qn_json_scan){ .state = 0 };
}

static void key_step(qn_output_parser *p)
{
    qn_json_call *json = &p->call.json;
    switch (qn_json_scan_feed(&json->scan, p->held.data[p->held.n - 1])) {
    case QN_JSON_MORE: break;
    case QN_JSON_END: key_ended(p); break;
    default: fail_here(p); break;
    }
}

void qn_output_json_step(qn_output_parser *p)
{
    qn_json_call *json = &p->call.json;
    const char c = p->held.data[p->held.n - 1];
    const bool inside = json->state == JSON_IN_KEY || json->state == JSON_IN_VALUE;
    if (!inside && qn_json_is_space(c))
        return;
    switch (json->state) {
    case JSON_OPEN:
        json->state = JSON_FIRST_KEY;
        if (c != '{')
            fail_here(p);
        break;
    case JSON_FIRST_KEY:
    case JSON_KEY:
        if (c == '"') {
            json->state = JSON_IN_KEY;
            begin_string_or_value(p);
            key_step(p);
        } else {
            fail_here(p);
        }
        break;
    case JSON_IN_KEY: key_step(p); break;
    case JSON_COLON:
        json->state = JSON_VALUE;
        if (c != ':')
            fail_here(p);
        break;
    case JSON_VALUE:
        json->state = JSON_IN_VALUE;
        begin_string_or_value(p);
        value_step(p);
        break;
    case JSON_IN_VALUE: value_step(p); break;
    case JSON_AFTER:
        if (c == ',')
            json->state = JSON_KEY;
        else if (c == '}')
            object_ended(p);
        else
            fail_here(p);
        break;
    }
}

void qn_output_json_finish(qn_output_parser *p)
{
    if (!p->begun && may_begin(p))
        qn_output_begin_call(p);
}
