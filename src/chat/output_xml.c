/* One tool call as tags: <function=NAME>, then <parameter=KEY>, a value and </parameter> for each argument, then
 * </function>. Arguments become JSON: strings are passed on as they come, other values once they are complete. */
#include "chat/output_internal.h"

#include <string.h>

enum { MAX_GAP = 64 }; /* limit of the space between </parameter> and the tag that confirms it */

static const char function_open[] = "<function=", function_close[] = "</function>";
static const char parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

static qn_match match_tag(const char *tag, const char *symbols, size_t n)
{
    return qn_output_match_text(tag, strlen(tag), symbols, n);
}

static void begin_text(qn_output_parser *p, int state)
{
    p->call.xml.state = state;
    p->call.xml.begin = p->held.n;
}

static void open_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    if (xml->begin == p->held.n - 1 && qn_json_is_space(p->held.data[xml->begin])) {
        xml->begin++;
        return;
    }
    switch (match_tag(function_open, p->held.data + xml->begin, p->held.n - xml->begin)) {
    case MATCH_NO: qn_output_call_failed(p, p->held.n - 1); break;
    case MATCH_PARTIAL: break;
    case MATCH_FULL: begin_text(p, XML_NAME); break;
    }
}

/* Whether the name continues. *ended: '>' ends it. A name that is too long fails at the beginning of a character. */
static bool name_continues(qn_output_parser *p, bool *ended)
{
    const qn_xml_call *xml = &p->call.xml;
    const unsigned char c = (unsigned char)p->held.data[p->held.n - 1];
    const size_t n = p->held.n - 1 - xml->begin;
    *ended = c == '>' && n > 0 && n <= QN_OUTPUT_MAX_NAME;
    return *ended ||
           (c >= 0x20 && c < FIRST_MARK && c != '<' && c != '>' && (n < QN_OUTPUT_MAX_NAME || (c & 0xc0) == 0x80));
}

/* Whether the last held byte completes a name. A byte that a name cannot contain fails the call. */
static bool completes_name(qn_output_parser *p)
{
    bool ended;
    if (name_continues(p, &ended))
        return ended;
    qn_output_call_failed(p, p->held.n - 1);
    return false;
}

static void name_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    if (!completes_name(p))
        return;
    qn_output_append(p, &p->name, p->held.data + xml->begin, p->held.n - 1 - xml->begin);
    if (p->status != QN_OK)
        return;
    if (!qn_output_accepts_name(p)) {
        qn_output_call_failed(p, p->held.n - 1);
        return;
    }
    xml->tool = qn_output_find_tool(p->tools, p->name.data, p->name.n);
    qn_output_begin_call(p);
    begin_text(p, XML_BODY);
}

static void end_function(qn_output_parser *p, size_t end)
{
    if (p->call.xml.n_arguments)
        qn_output_arguments(p, "}", 1);
    else
        qn_output_arguments(p, "{}", 2);
    qn_output_call_complete(p, end);
}

/* Handles a symbol between arguments. A second </parameter> is skipped; </function> may be missing. */
static void body_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    const char *tag = p->held.data + xml->begin;
    const size_t n = p->held.n - xml->begin;
    if (n == 1 && qn_json_is_space(*tag)) {
        xml->begin++;
        return;
    }
    const qn_match open = match_tag(parameter_open, tag, n), again = match_tag(parameter_close, tag, n);
    const qn_match close = match_tag(function_close, tag, n), end = qn_output_match(p, CALL_CLOSE, tag, n);
    if (open == MATCH_FULL)
        begin_text(p, XML_KEY);
    else if (again == MATCH_FULL)
        begin_text(p, XML_BODY);
    else if (close == MATCH_FULL)
        end_function(p, p->held.n);
    else if (end == MATCH_FULL)
        end_function(p, xml->begin);
    else if (open == MATCH_NO && again == MATCH_NO && close == MATCH_NO && end == MATCH_NO)
        qn_output_call_failed(p, xml->begin);
}

/* Appends the key, which is emitted together with its value. */
static void append_key(qn_output_parser *p)
{
    const qn_xml_call *xml = &p->call.xml;
    p->scratch.n = 0;
    qn_output_append(p, &p->scratch, xml->n_arguments ? ", \"" : "{\"", xml->n_arguments ? 3 : 2);
    qn_output_append(p, &p->scratch, p->arguments.data, p->arguments.n);
    qn_output_append(p, &p->scratch, "\": ", 3);
}

/* Whether the value may be a string, which is emitted as it comes. */
static bool is_streamed(const qn_output_parser *p)
{
    const qn_value_types *types = &p->call.xml.types;
    for (size_t i = 0; i < types->n; i++)
        if (types->types[i] == VALUE_STRING)
            return true;
    return false;
}

/* Emits the key, a quote, and the first symbols of the value. */
static void begin_string(qn_output_parser *p, size_t n)
{
    append_key(p);
    qn_output_append(p, &p->scratch, "\"", 1);
    if (n)
        qn_output_escape(p, &p->scratch, p->held.data + p->call.xml.begin, n);
    qn_output_arguments(p, p->scratch.data, p->scratch.n);
    p->call.xml.may_be_other = p->call.xml.is_scanned = false;
}

static void mark_given(qn_output_parser *p, const char *key, size_t length)
{
    qn_xml_call *xml = &p->call.xml;
    const int64_t i = qn_output_find_argument(p->tools, xml->tool, key, length);
    if (i >= 0 && (size_t)i < 8 * sizeof xml->given)
        xml->given[i / 64] |= UINT64_C(1) << (i % 64);
}

static void key_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    if (!completes_name(p))
        return;
    const char *key = p->held.data + xml->begin;
    const size_t length = p->held.n - 1 - xml->begin;
    qn_output_argument_types(p->tools, xml->tool, key, length, &xml->types);
    p->arguments.n = 0;
    qn_output_escape(p, &p->arguments, key, length);
    mark_given(p, key, length);
    xml->may_be_other = is_streamed(p) && xml->types.types[0] != VALUE_STRING;
    xml->is_scanned = true;
    xml->scan = (qn_json_scan){ 0 };
    if (is_streamed(p) && !xml->may_be_other)
        begin_string(p, 0);
    begin_text(p, XML_VALUE_BEGIN);
}

/* Whether symbols are the tag of a declared parameter that has not occurred yet. */
static qn_match match_next_parameter(const qn_output_parser *p, const char *symbols, size_t n)
{
    const qn_xml_call *xml = &p->call.xml;
    const size_t n_open = sizeof parameter_open - 1;
    const qn_match open = match_tag(parameter_open, symbols, n);
    qn_match best = MATCH_NO;
    const char *name;
    size_t length;
    if (open != MATCH_FULL || !xml->tool)
        return xml->tool ? open : MATCH_NO;
    for (size_t i = 0; best != MATCH_FULL && (name = qn_output_argument_name(p->tools, xml->tool, i, &length)); i++) {
        const size_t have = n - n_open, same = have < length ? have : length;
        if ((i < 8 * sizeof xml->given && xml->given[i / 64] >> (i % 64) & 1) ||
            memcmp(symbols + n_open, name, same) != 0)
            continue;
        if (have <= length)
            best = MATCH_PARTIAL;
        else if (length && symbols[n_open + length] == '>')
            best = MATCH_FULL;
    }
    return best;
}

/* Whether these symbols end the value: the first *length of them, a newline and </parameter>. Since a value may
 * contain </parameter>, a tag of the format must follow. Without </parameter>, the tag of another parameter ends the
 * value, or </function> followed by call_close. */
static qn_match match_end(const qn_output_parser *p, const char *symbols, size_t n, size_t *length)
{
    const size_t newline = *symbols == '\n', n_parameter = sizeof parameter_close - 1,
                 n_function = sizeof function_close - 1;
    const qn_match parameter = match_tag(parameter_close, symbols + newline, n - newline);
    const qn_match function = match_tag(function_close, symbols + newline, n - newline);
    if (parameter != MATCH_FULL && function != MATCH_FULL) {
        const qn_match next = match_next_parameter(p, symbols + newline, n - newline);
        *length = newline;
        return next == MATCH_NO && (parameter == MATCH_PARTIAL || function == MATCH_PARTIAL) ? MATCH_PARTIAL : next;
    }
    size_t at = newline + (parameter == MATCH_FULL ? n_parameter : n_function), gap = 0;
    *length = at;
    for (; at < n && qn_json_is_space(symbols[at]) && gap < MAX_GAP; gap++)
        at++;
    qn_match best = qn_output_match(p, CALL_CLOSE, symbols + at, n - at);
    const char *const tags[] = { parameter_open, parameter_close, function_close };
    for (size_t i = 0; i < 3 && parameter == MATCH_FULL; i++) {
        const qn_match match = match_tag(tags[i], symbols + at, n - at);
        best = match > best ? match : best;
    }
    return best;
}

static void end_value(qn_output_parser *p, size_t length)
{
    qn_xml_call *xml = &p->call.xml;
    const size_t n = xml->cursor - xml->begin;
    if (is_streamed(p) && !xml->may_be_other) {
        qn_output_arguments(p, "\"", 1);
    } else {
        p->name.n = 0;
        qn_output_expand(p, &p->name, p->held.data + xml->begin, n);
        append_key(p);
        if (p->status == QN_OK)
            qn_output_value(p, &p->scratch, &xml->types, p->name.n ? p->name.data : "", p->name.n);
        qn_output_arguments(p, p->scratch.data, p->scratch.n);
    }
    xml->n_arguments++;
    qn_output_unread(p, xml->cursor + length);
    begin_text(p, XML_BODY);
}

/* Whether a symbol of a value begins no tag: inside a JSON string there are none, except after a line end, which such a
 * string cannot contain. */
static bool hides_tags(const qn_output_parser *p, char symbol)
{
    return p->call.xml.is_scanned && symbol != '\n' && qn_json_scan_in_string(&p->call.xml.scan);
}

static void value_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    while (xml->cursor < p->held.n && p->status == QN_OK) {
        const char *symbols = p->held.data + xml->cursor;
        size_t length;
        switch (hides_tags(p, *symbols) ? MATCH_NO : match_end(p, symbols, p->held.n - xml->cursor, &length)) {
        case MATCH_PARTIAL: return;
        case MATCH_FULL: end_value(p, length); return;
        case MATCH_NO:
            xml->is_scanned = xml->is_scanned && qn_json_scan_feed(&xml->scan, *symbols) == QN_JSON_MORE;
            if (xml->may_be_other) {
                const size_t n = xml->cursor + 1 - xml->begin;
                if (!qn_output_may_be_other(&xml->types, p->held.data + xml->begin, n))
                    begin_string(p, n);
            } else if (is_streamed(p)) {
                p->scratch.n = 0;
                qn_output_escape(p, &p->scratch, symbols, 1);
                qn_output_arguments(p, p->scratch.data, p->scratch.n);
            }
            xml->cursor++;
            break;
        }
    }
}

void qn_output_xml_step(qn_output_parser *p)
{
    qn_xml_call *xml = &p->call.xml;
    switch (xml->state) {
    case XML_OPEN: open_step(p); break;
    case XML_NAME: name_step(p); break;
    case XML_BODY: body_step(p); break;
    case XML_KEY: key_step(p); break;
    case XML_VALUE_BEGIN:
        begin_text(p, XML_VALUE);
        if (p->held.data[p->held.n - 1] != '\n')
            xml->begin--;
        xml->cursor = xml->begin;
        value_step(p);
        break;
    case XML_VALUE: value_step(p); break;
    }
}
