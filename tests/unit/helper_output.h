/* Runs the output parser and records its events, for its unit test and its fuzz target. */
#ifndef QN_TESTS_HELPER_OUTPUT_H
#define QN_TESTS_HELPER_OUTPUT_H

#include "text/json_scan.h"
#include "chat/output_parser.h"
#include "base/utf8.h"
#include "text/utf8_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Loads the tools of a test's calls from JSON; they stay loaded until the program ends. */
static inline json_t *load_tools(const char *json)
{
    static json_t *tools;
    if (!tools)
        tools = json_loads(json, 0, NULL);
    if (!tools)
        abort();
    return tools;
}

/* The prepared tools for parsers of a form. */
static inline const qn_output_tools *keep_tools(const char *json, qn_output_form form)
{
    static qn_output_tools *kept[QN_OUTPUT_N_FORMS];
    if (!kept[form] && qn_output_tools_create(load_tools(json), form, &kept[form]) != QN_OK)
        abort();
    return kept[form];
}

struct text {
    char *data;
    size_t n, capacity;
};

static inline void text_add(struct text *text, const char *bytes, size_t n)
{
    if (text->n + n + 1 > text->capacity) {
        text->capacity = 2 * (text->n + n + 1);
        text->data = realloc(text->data, text->capacity);
        if (!text->data)
            abort();
    }
    if (n)
        memcpy(text->data + text->n, bytes, n);
    text->data[text->n += n] = '\0';
}

/* `log` records the events: R{reasoning} C{content} [name|arguments], followed by '=' for a complete call, '~' for a
 * cut one, '!' for a broken one. `flow` is the part of the output that the events account for. */
struct transcript {
    struct text log, flow, arguments;
    int last_kind;
    size_t n_calls;
    const char *problem; /* of the first bad event, or NULL */
};

static inline void transcript_free(struct transcript *t)
{
    free(t->log.data);
    free(t->flow.data);
    free(t->arguments.data);
    *t = (struct transcript){ .last_kind = -1 };
}

static inline void transcript_require(struct transcript *t, bool condition, const char *what)
{
    if (!condition && !t->problem)
        t->problem = what;
}

static inline bool whole_characters(const char *text, size_t n)
{
    size_t step;
    for (size_t i = 0; i < n; i += step) {
        uint32_t code;
        if (qn_utf8_next(text + i, n - i, &step, &code) != QN_UTF8_COMPLETE)
            return false;
    }
    return true;
}

static inline void transcript_close(struct transcript *t)
{
    if (t->last_kind == QN_OUTPUT_REASONING || t->last_kind == QN_OUTPUT_CONTENT)
        text_add(&t->log, "}", 1);
}

static inline void transcript_event(const qn_output_event *event, void *user)
{
    struct transcript *t = user;
    const bool open = t->last_kind == QN_OUTPUT_CALL_BEGIN || t->last_kind == QN_OUTPUT_ARGUMENTS;
    const bool of_call = event->kind == QN_OUTPUT_ARGUMENTS || event->kind == QN_OUTPUT_CALL_END;
    transcript_require(t, open == of_call, "events are in order");
    transcript_require(t, event->length > 0, "no event is empty");
    transcript_require(t, whole_characters(event->text, event->length), "events have complete characters");
    if ((int)event->kind != t->last_kind)
        transcript_close(t);
    switch (event->kind) {
    case QN_OUTPUT_REASONING:
    case QN_OUTPUT_CONTENT:
        if ((int)event->kind != t->last_kind)
            text_add(&t->log, event->kind == QN_OUTPUT_REASONING ? "R{" : "C{", 2);
        text_add(&t->log, event->text, event->length);
        text_add(&t->flow, event->text, event->length);
        break;
    case QN_OUTPUT_CALL_BEGIN:
        transcript_require(t, event->call == t->n_calls++, "calls are counted");
        text_add(&t->log, "[", 1);
        text_add(&t->log, event->text, event->length);
        text_add(&t->log, "|", 1);
        t->arguments.n = 0;
        break;
    case QN_OUTPUT_ARGUMENTS:
        text_add(&t->log, event->text, event->length);
        text_add(&t->arguments, event->text, event->length);
        transcript_require(t, event->call + 1 == t->n_calls, "arguments are of the last call");
        break;
    case QN_OUTPUT_CALL_END: {
        const bool complete =
            t->arguments.n && *t->arguments.data == '{' && qn_json_is_value(t->arguments.data, t->arguments.n);
        transcript_require(t, complete == (event->call_end == QN_OUTPUT_COMPLETE),
                           "complete arguments are JSON, others are not");
        text_add(&t->log, "]", 1);
        text_add(&t->log, &"=~!"[event->call_end], 1);
        text_add(&t->flow, event->text, event->length);
        break;
    }
    }
    t->last_kind = (int)event->kind;
}

/* Whether `flow` is `output` except for some of its space, its thinking delimiters and, in the form llama3,
 * semicolons. reach[at][n]: the first `at` bytes of the output can be accounted for if n of them are skipped. */
static inline bool is_output_without(const struct text *flow, const struct text *output, const qn_output_params *params)
{
    const char *const delimiters[] = { params->think_open.text, params->think_close.text };
    if (flow->n > output->n)
        return false;
    const size_t width = output->n - flow->n + 1;
    char *reach = calloc(output->n + 1, width);
    if (!reach)
        abort();
    reach[0] = 1;
    for (size_t at = 1; at <= output->n; at++)
        for (size_t left_out = 0; left_out < width && left_out <= at; left_out++) {
            const char c = output->data[at - 1];
            const bool separator = c == ';' && params->form == QN_OUTPUT_LLAMA3;
            const size_t n_flow = at - left_out;
            bool is = n_flow && n_flow <= flow->n && flow->data[n_flow - 1] == c && reach[(at - 1) * width + left_out];
            if (left_out && (qn_json_is_space(c) || separator))
                is = is || reach[(at - 1) * width + left_out - 1];
            for (size_t i = 0; i < 2; i++) {
                const size_t n = delimiters[i] ? strlen(delimiters[i]) : SIZE_MAX;
                if (n <= left_out && n <= at && !memcmp(output->data + at - n, delimiters[i], n))
                    is = is || reach[(at - n) * width + left_out - n];
            }
            reach[at * width + left_out] = is;
        }
    const bool is = reach[output->n * width + width - 1];
    free(reach);
    return is;
}

/* Whether the events account for all of the output, except space and thinking delimiters around them. */
static inline bool transcript_accounts(const struct transcript *t, const qn_output_params *params, const char *output,
                                       size_t n)
{
    qn_utf8_stream stream = { 0 };
    struct text valid = { 0 };
    const char *piece;
    size_t length;
    text_add(&valid, "", 0);
    if (qn_utf8_stream_feed(&stream, output, n, &piece, &length) == QN_OK)
        text_add(&valid, piece, length);
    if (qn_utf8_stream_flush(&stream, &piece, &length) == QN_OK)
        text_add(&valid, piece, length);
    qn_utf8_stream_free(&stream);
    const bool all = is_output_without(&t->flow, &valid, params);
    free(valid.data);
    return all;
}

/* The end of the next piece of a stream. Delimiters of `params` that have tokens are pieces of their own. */
static inline size_t next_piece(const qn_output_params *params, const char *output, size_t at, size_t n, size_t step,
                                int32_t *token)
{
    const qn_output_delimiter *const all[] = { &params->think_open, &params->think_close, &params->call_open,
                                               &params->call_close };
    *token = -1;
    for (size_t end = at; end < n; end++)
        for (size_t i = 0; i < 4; i++) {
            const size_t length = all[i]->text && all[i]->token >= 0 ? strlen(all[i]->text) : 0;
            if (!length || length > n - end || memcmp(output + end, all[i]->text, length) != 0)
                continue;
            if (end == at) {
                *token = all[i]->token;
                return at + length;
            }
            return end - at < step ? end : at + step;
        }
    return n - at < step ? n : at + step;
}

#endif
