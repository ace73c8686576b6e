/* The output parser: symbols from bytes and tokens, text and its delimiters, events. output_json.c and output_xml.c
 * parse calls. */
#include "chat/output_internal.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SPACE = 4096 }; /* limit of held space */

/* ---- Symbols ---- */

void qn_output_append(qn_output_parser *p, qn_symbols *symbols, const char *bytes, size_t n)
{
    if (p->status != QN_OK || !n)
        return;
    size_t need;
    if (!qn_add_size(symbols->n, n, &need))
        p->status = qn_fail(QN_ERR_MEMORY, "output: it does not fit in memory");
    else
        p->status = qn_realloc_array(&symbols->data, &symbols->capacity, need, 1, "output");
    if (p->status != QN_OK)
        return;
    memcpy(symbols->data + symbols->n, bytes, n);
    symbols->n = need;
}

static bool is_mark(char symbol)
{
    return (unsigned char)symbol >= FIRST_MARK;
}

void qn_output_expand(qn_output_parser *p, qn_symbols *to, const char *symbols, size_t n)
{
    for (size_t i = 0, plain; i < n; i += plain) {
        for (plain = 0; i + plain < n && !is_mark(symbols[i + plain]);)
            plain++;
        qn_output_append(p, to, symbols + i, plain);
        if (!plain) {
            const unsigned which = (unsigned char)symbols[i] - FIRST_MARK;
            qn_output_append(p, to, p->delimiters[which].text, p->delimiters[which].length);
            plain = 1;
        }
    }
}

void qn_output_unread(qn_output_parser *p, size_t at)
{
    const size_t n = p->held.n - at;
    if (p->queue_head < n) {
        const size_t n_queue = p->queue.n, shift = n - p->queue_head;
        qn_output_append(p, &p->queue, p->held.data + at, shift); /* ensures the capacity */
        if (p->status != QN_OK)
            return;
        memmove(p->queue.data + n, p->queue.data + p->queue_head, n_queue - p->queue_head);
        p->queue_head = n;
    }
    p->queue_head -= n;
    if (n)
        memcpy(p->queue.data + p->queue_head, p->held.data + at, n);
    p->held.n = at;
}

qn_match qn_output_match_text(const char *text, size_t length, const char *symbols, size_t n)
{
    if (memcmp(text, symbols, n < length ? n : length) != 0)
        return MATCH_NO;
    return n < length ? MATCH_PARTIAL : MATCH_FULL;
}

qn_match qn_output_match(const qn_output_parser *p, qn_delimiter which, const char *symbols, size_t n)
{
    if (!p->delimiters[which].text || !n)
        return p->delimiters[which].text ? MATCH_PARTIAL : MATCH_NO;
    if (p->delimiters[which].token >= 0)
        return (unsigned char)*symbols == FIRST_MARK + which ? MATCH_FULL : MATCH_NO;
    return qn_output_match_text(p->delimiters[which].text, p->delimiters[which].length, symbols, n);
}

/* ---- Events ---- */

/* Emits the text or arguments collected in p->out, if there are any. */
static void flush(qn_output_parser *p)
{
    if (!p->out.n || p->status != QN_OK)
        return;
    const qn_output_event event = {
        .kind = p->out_kind, .text = p->out.data, .length = p->out.n, .call = p->n_calls ? p->n_calls - 1 : 0
    };
    p->on_event(&event, p->user);
    p->out.n = 0;
}

/* Collects symbols of an event of a kind; emits what was collected of another kind. */
static void put(qn_output_parser *p, qn_output_event_kind kind, const char *symbols, size_t n)
{
    if (p->out_kind != kind)
        flush(p);
    p->out_kind = kind;
    qn_output_expand(p, &p->out, symbols, n);
}

/* Collects symbols as reasoning or content. */
static void put_text(qn_output_parser *p, const char *symbols, size_t n)
{
    if (!n)
        return;
    put(p, p->reasoning ? QN_OUTPUT_REASONING : QN_OUTPUT_CONTENT, symbols, n);
    p->at_start = p->in_block = p->strip = false;
    p->last = symbols[n - 1];
}

void qn_output_arguments(qn_output_parser *p, const char *symbols, size_t n)
{
    put(p, QN_OUTPUT_ARGUMENTS, symbols, n);
}

/* ---- Text ---- */

/* Begins a new section of text. strip: newlines here belong to the format. */
static void begin_section(qn_output_parser *p, bool strip)
{
    p->state = STATE_TEXT;
    p->at_start = true;
    p->strip = strip;
    p->in_block = false;
    p->last = '\0';
    p->held.n = p->candidate = 0;
}

/* Whether the candidate is at the beginning of a line of the text. */
static bool at_line_start(const qn_output_parser *p)
{
    return p->at_start || p->last == '\n' || (p->candidate && memchr(p->held.data, '\n', p->candidate));
}

/* Whether a delimiter may begin at the candidate. */
static bool enabled(const qn_output_parser *p, qn_delimiter which)
{
    const bool by_token = p->delimiters[which].token >= 0;
    switch (which) {
    case THINK_OPEN: return p->at_start || (by_token && !p->reasoning);
    case THINK_CLOSE: return p->reasoning || (p->reasoning_cut && p->at_start);
    case CALL_OPEN: return !p->reasoning || by_token || at_line_start(p);
    case FUNCTION: return p->form == QN_OUTPUT_XML && !p->reasoning && at_line_start(p);
    case BRACE:
        return !p->reasoning && p->at_start &&
               (p->form == QN_OUTPUT_LLAMA3 || (p->form == QN_OUTPUT_JSON && p->in_block));
    default: return false;
    }
}

/* Collects the space before the candidate as text, without newlines that belong to the format. */
static void put_space(qn_output_parser *p)
{
    size_t skip = 0;
    while (p->strip && skip < p->candidate && (p->held.data[skip] == '\n' || p->held.data[skip] == '\r'))
        skip++;
    put_text(p, p->held.data + skip, p->candidate - skip);
}

/* Decides that the candidate is no delimiter: its space and its first symbol are text, the rest is handled again. */
static void reject(qn_output_parser *p)
{
    p->state = STATE_TEXT;
    put_space(p);
    put_text(p, p->held.data + p->candidate, 1);
    qn_output_unread(p, p->candidate + 1);
    p->held.n = p->candidate = 0;
}

/* Begins to parse a call, whose first symbols are the candidate. */
static void open_call(qn_output_parser *p, qn_delimiter which)
{
    const bool by_token = p->delimiters[which].token >= 0;
    p->needs_known = p->reasoning || (!p->in_block && (which != CALL_OPEN || !(by_token || at_line_start(p))));
    p->state = STATE_CALL;
    p->raw = p->candidate;
    p->begun = false;
    p->name.n = p->arguments.n = 0;
    if (p->form == QN_OUTPUT_XML)
        p->call.xml = (qn_xml_call){ .state = which == FUNCTION ? XML_NAME : XML_OPEN, .begin = p->held.n };
    else
        p->call.json = (qn_json_call){ .state = which == BRACE ? JSON_FIRST_KEY : JSON_OPEN };
}

/* Handles a complete delimiter. */
static void delimiter(qn_output_parser *p, qn_delimiter which)
{
    flush(p);
    switch (which) {
    case THINK_OPEN:
        p->reasoning = true;
        begin_section(p, true);
        break;
    case THINK_CLOSE:
        p->reasoning = p->reasoning_cut = p->is_ending = false;
        begin_section(p, true);
        break;
    default: open_call(p, which); break;
    }
}

/* Handles a symbol of text: collects it, or holds it as space or as part of a delimiter. */
static void text_step(qn_output_parser *p)
{
    const char c = p->held.data[p->held.n - 1];
    const bool separator = c == ';' && p->in_block && p->form == QN_OUTPUT_LLAMA3;
    if (p->candidate == p->held.n - 1 && (qn_json_is_space(c) || separator) && p->has_delimiters) {
        p->candidate++;
        if (p->candidate == MAX_SPACE) {
            put_space(p);
            p->held.n = p->candidate = 0;
        }
        return;
    }
    qn_match best = MATCH_NO;
    for (qn_delimiter which = 0; which < N_DELIMITERS; which++) {
        const qn_match match = qn_output_match(p, which, p->held.data + p->candidate, p->held.n - p->candidate);
        if (match == MATCH_NO || !enabled(p, which))
            continue;
        if (match == MATCH_FULL) {
            delimiter(p, which);
            return;
        }
        best = match;
    }
    if (best == MATCH_NO)
        reject(p);
}

/* ---- Calls ---- */

bool qn_output_accepts_name(const qn_output_parser *p)
{
    return p->name.n && (!p->needs_known || qn_output_find_tool(p->tools, p->name.data, p->name.n));
}

void qn_output_begin_call(qn_output_parser *p)
{
    flush(p);
    if (p->status != QN_OK)
        return;
    p->begun = true;
    p->reasoning_cut = p->reasoning_cut || p->reasoning;
    p->reasoning = p->is_ending = false;
    const qn_output_event event = {
        .kind = QN_OUTPUT_CALL_BEGIN, .text = p->name.data, .length = p->name.n, .call = p->n_calls++
    };
    p->on_event(&event, p->user);
}

/* Ends a call that was begun, held[p->raw .. end). The symbols after it are handled again. */
static void end_call(qn_output_parser *p, size_t end, qn_output_call_end how)
{
    flush(p);
    p->scratch.n = 0;
    qn_output_expand(p, &p->scratch, p->held.data + p->raw, end - p->raw);
    qn_output_unread(p, end);
    if (p->status != QN_OK)
        return;
    const qn_output_event event = { .kind = QN_OUTPUT_CALL_END,
                                    .text = p->scratch.data,
                                    .length = p->scratch.n,
                                    .call = p->n_calls - 1,
                                    .call_end = how };
    p->on_event(&event, p->user);
    begin_section(p, how == QN_OUTPUT_COMPLETE);
    p->at_start = how == QN_OUTPUT_COMPLETE;
}

void qn_output_call_complete(qn_output_parser *p, size_t end)
{
    if (!p->delimiters[CALL_CLOSE].text) {
        end_call(p, end, QN_OUTPUT_COMPLETE);
        p->in_block = true;
        return;
    }
    p->state = STATE_AFTER_CALL;
    p->after = p->candidate = end;
    qn_output_unread(p, end);
}

void qn_output_call_failed(qn_output_parser *p, size_t at)
{
    if (!p->begun) {
        p->candidate = p->raw;
        reject(p);
    } else if (p->form != QN_OUTPUT_XML && p->call.json.has_arguments) {
        qn_output_call_complete(p, at); /* models forget the last brace, or write one too many */
    } else {
        end_call(p, at, QN_OUTPUT_BROKEN);
    }
}

/* Handles a symbol after a call: space and call_close belong to it. */
static void after_call_step(qn_output_parser *p)
{
    const char c = p->held.data[p->held.n - 1];
    if (p->candidate == p->held.n - 1 && qn_json_is_space(c) && p->candidate - p->after < MAX_SPACE) {
        p->candidate++;
        return;
    }
    switch (qn_output_match(p, CALL_CLOSE, p->held.data + p->candidate, p->held.n - p->candidate)) {
    case MATCH_PARTIAL: break;
    case MATCH_FULL: end_call(p, p->held.n, QN_OUTPUT_COMPLETE); break;
    case MATCH_NO:
        end_call(p, p->after, QN_OUTPUT_COMPLETE);
        p->in_block = true;
        break;
    }
}

/* Handles a symbol of a call. One that is too long fails at the beginning of a character. */
static void call_step(qn_output_parser *p)
{
    const size_t n = p->held.n - p->raw;
    const bool first_of_character = ((unsigned char)p->held.data[p->held.n - 1] & 0xc0) != 0x80;
    if (first_of_character && (n > p->max_call || (n > MAX_UNDECIDED && !p->begun)))
        qn_output_call_failed(p, p->held.n - 1);
    else if (p->form == QN_OUTPUT_XML)
        qn_output_xml_step(p);
    else
        qn_output_json_step(p);
}

/* Handles all symbols of the queue. */
static void run(qn_output_parser *p)
{
    while (p->queue_head < p->queue.n && p->status == QN_OK) {
        qn_output_append(p, &p->held, p->queue.data + p->queue_head++, 1);
        if (p->status != QN_OK)
            return;
        switch (p->state) {
        case STATE_TEXT: text_step(p); break;
        case STATE_CALL: call_step(p); break;
        case STATE_AFTER_CALL: after_call_step(p); break;
        }
    }
    if (p->status == QN_OK)
        p->queue.n = p->queue_head = 0;
}

/* ---- The interface ---- */

qn_status qn_output_feed(qn_output_parser *p, int32_t token, const char *bytes, size_t n)
{
    const char *text;
    size_t length;
    p->n_reasoning += p->reasoning;
    for (unsigned i = 0; i < N_MARKS && token >= 0; i++)
        if (p->delimiters[i].text && p->delimiters[i].token == token) {
            const char mark = (char)(FIRST_MARK + i);
            QN_TRY(qn_utf8_stream_flush(&p->utf8, &text, &length));
            qn_output_append(p, &p->queue, text, length);
            qn_output_append(p, &p->queue, &mark, 1);
            n = 0;
            break;
        }
    QN_TRY(qn_utf8_stream_feed(&p->utf8, bytes, n, &text, &length));
    qn_output_append(p, &p->queue, text, length);
    run(p);
    flush(p);
    return p->status;
}

/* Ends a call at the end of the output. False if it has not begun. */
static bool end_open_call(qn_output_parser *p)
{
    const bool is_complete = p->form != QN_OUTPUT_XML && p->call.json.has_arguments;
    if (p->begun)
        end_call(p, p->held.n, is_complete ? QN_OUTPUT_COMPLETE : QN_OUTPUT_CUT);
    return p->begun;
}

/* Ends whatever is open when the model has ended. False when nothing is left to handle. */
static bool finish_step(qn_output_parser *p)
{
    switch (p->state) {
    case STATE_TEXT: {
        const bool drop = p->strip && p->at_start && p->candidate == p->held.n;
        if (!p->held.n || drop)
            return false;
        if (p->candidate < p->held.n) {
            reject(p);
        } else {
            put_space(p);
            p->held.n = p->candidate = 0;
        }
        return true;
    }
    case STATE_CALL:
        if (p->form != QN_OUTPUT_XML)
            qn_output_json_finish(p);
        if (!end_open_call(p))
            qn_output_call_failed(p, p->held.n);
        return true;
    default: end_call(p, p->after, QN_OUTPUT_COMPLETE); return true;
    }
}

qn_status qn_output_finish(qn_output_parser *p)
{
    const char *text;
    size_t length;
    QN_TRY(qn_utf8_stream_flush(&p->utf8, &text, &length));
    /* If the arguments are cut, they must be a prefix of the complete ones. */
    const bool in_arguments = p->state == STATE_CALL && p->begun;
    qn_output_append(p, in_arguments ? &p->held : &p->queue, text, length);
    do
        run(p);
    while (p->status == QN_OK && finish_step(p));
    flush(p);
    return p->status;
}

/* Undecided symbols are dropped, so that the events of a cut answer are a prefix of the whole answer's. */
qn_status qn_output_cut(qn_output_parser *p)
{
    if (p->state == STATE_CALL)
        (void)end_open_call(p);
    else if (p->state == STATE_AFTER_CALL)
        end_call(p, p->after, QN_OUTPUT_COMPLETE);
    flush(p);
    return p->status;
}

bool qn_output_in_reasoning(const qn_output_parser *p)
{
    return p->reasoning;
}

size_t qn_output_n_calls(const qn_output_parser *p)
{
    return p->n_calls;
}

bool qn_output_reasoning_spent(qn_output_parser *p, const char **words, size_t *length)
{
    if (p->is_ending || !p->reasoning_end || !p->reasoning || p->n_reasoning < p->reasoning_budget ||
        p->state != STATE_TEXT || p->candidate != p->held.n || p->utf8.n_tail)
        return false;
    const char *again = p->is_spent ? strstr(p->reasoning_end, p->delimiters[THINK_CLOSE].text) : NULL;
    p->is_ending = p->is_spent = true;
    *words = again ? again : p->reasoning_end;
    *length = strlen(*words);
    return true;
}

static qn_status set_delimiter(qn_output_parser *p, qn_delimiter which, const char *text, int32_t token)
{
    if (!text)
        return QN_OK;
    const size_t length = strlen(text);
    bool valid = length && length <= 64;
    for (size_t i = 0, step; valid && i < length; i += step) {
        uint32_t code;
        valid = qn_utf8_next(text + i, length - i, &step, &code) == QN_UTF8_COMPLETE && code > ' ' && code != '"' &&
                code != '\\';
    }
    if (!valid)
        return qn_fail(
            QN_ERR_INVALID,
            "delimiter '%s' of the output: expected 1 to 64 bytes of UTF-8 without quotes, backslashes and space",
            text);
    QN_TRY(qn_alloc(&p->delimiters[which].text, length + 1, 1, "output"));
    memcpy(p->delimiters[which].text, text, length + 1);
    p->delimiters[which].length = length;
    p->delimiters[which].token = token;
    p->has_delimiters = true;
    return QN_OK;
}

static qn_status set_up(qn_output_parser *p, const qn_output_params *params)
{
    const bool tagged = p->form == QN_OUTPUT_JSON || p->form == QN_OUTPUT_XML;
    if (tagged && (!params->call_open.text || !params->call_close.text))
        return qn_fail(QN_ERR_INVALID, "output of the form '%s' has no delimiters of calls",
                       qn_output_form_name(p->form));
    if (params->starts_in_reasoning && !params->think_close.text)
        return qn_fail(QN_ERR_INVALID, "output starts inside reasoning, which has no delimiter");
    const qn_output_delimiter none = { NULL, -1 }, *open = &params->call_open, *close = &params->call_close;
    if (p->form == QN_OUTPUT_PLAIN)
        open = &none;
    if (!tagged)
        close = &none;
    QN_TRY(set_delimiter(p, THINK_OPEN, params->think_open.text, params->think_open.token));
    QN_TRY(set_delimiter(p, THINK_CLOSE, params->think_close.text, params->think_close.token));
    QN_TRY(set_delimiter(p, CALL_OPEN, open->text, open->token));
    QN_TRY(set_delimiter(p, CALL_CLOSE, close->text, close->token));
    QN_TRY(set_delimiter(p, FUNCTION, p->form == QN_OUTPUT_XML ? "<function=" : NULL, -1));
    QN_TRY(set_delimiter(p, BRACE, p->form == QN_OUTPUT_JSON || p->form == QN_OUTPUT_LLAMA3 ? "{" : NULL, -1));

    if (params->reasoning_end) {
        const size_t size = strlen(params->reasoning_end) + 1;
        QN_TRY(qn_alloc(&p->reasoning_end, size, 1, "output"));
        memcpy(p->reasoning_end, params->reasoning_end, size);
    }
    return QN_OK;
}

qn_status qn_output_parser_create(const qn_output_params *params, qn_output_parser **out)
{
    *out = NULL;
    if ((unsigned)params->form >= QN_OUTPUT_N_FORMS || !params->on_event)
        return qn_fail(QN_ERR_INVALID, "output of the form %d cannot be parsed, or its events have no receiver",
                       (int)params->form);
    qn_output_parser *p;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "output"));
    p->form = params->form;
    p->tools = params->tools;
    p->on_event = params->on_event;
    p->user = params->user;
    p->max_call = params->max_call;
    p->reasoning = params->starts_in_reasoning;
    p->reasoning_budget = params->reasoning_budget;
    begin_section(p, p->reasoning);
    p->at_start = !params->continues;
    const qn_status status = set_up(p, params);
    if (status != QN_OK) {
        qn_output_parser_free(p);
        return status;
    }
    *out = p;
    return QN_OK;
}

void qn_output_parser_free(qn_output_parser *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < N_DELIMITERS; i++)
        qn_free(p->delimiters[i].text);
    qn_free(p->reasoning_end);
    qn_utf8_stream_free(&p->utf8);
    free(p->queue.data);
    free(p->held.data);
    free(p->out.data);
    free(p->scratch.data);
    free(p->literal.data);
    free(p->name.data);
    free(p->arguments.data);
    qn_free(p);
}
