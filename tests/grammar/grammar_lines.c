/* Runs grammars for scripts: reads lines of JSON {"schema"|"regex"|"choices"|"gbnf"|"json"|"tools": ..., "form":
 * "xml"|"json", "strict": b, "closed": b, "space": n, "order": n, "texts": [...], "walks": n, "seed": n} and prints for
 * each one line: {"error": text}, or {"milliseconds": of the compilation, "texts": [[bytes that fit, whether the text
 * may end, what ends it], ...], "walks": [[text, whether it
 * ended], ...], "microseconds": [of each mask]}. Of tools walks have a third part, and texts the part "calls": what the
 * parser makes of them, [[name, arguments, whether the call is complete], ...]. Walks need the vocabulary of a GGUF
 * file, the first argument; the second is the number of masks that are cached, 0 without; the third how many MiB are
 * read before each mask, so that it finds the caches of
 * the CPU cold. */
#include "grammar/grammar.h"

#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_TEXT = 1 << 16, MAX_COMPLETION = 1 << 15, N_PRINTABLE = 95, FREE_TOKENS = 60, MAX_TOKENS = 600 };

static qn_grammar_vocab *vocab;
static size_t n_vocab;
static qn_token *end_tokens;
static size_t n_ends;
static uint64_t random_state;
static unsigned char *evicting;
static size_t n_evicting;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint64_t draw(uint64_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static void evict(void)
{
    for (size_t i = 0; i < n_evicting; i += 64)
        evicting[i]++;
}

static json_t *failed(void)
{
    return json_pack("{s:s}", "error", qn_error_text());
}

/* Of a line's tools: the form of calls, and what a parser needs. */
static qn_output_params output;
static qn_output_tools *kept_tools;

static qn_status compile_calls(json_t *line, qn_json_style style, qn_grammar **grammar)
{
    const char *form = json_string_value(json_object_get(line, "form"));
    json_t *tools = json_object_get(line, "tools");
    qn_output_params_init(&output, form && !strcmp(form, "xml") ? QN_OUTPUT_XML : QN_OUTPUT_JSON);
    qn_output_tools_free(kept_tools);
    const qn_status status = qn_output_tools_create(tools, output.form, &kept_tools);
    output.tools = kept_tools;
    if (status != QN_OK)
        return status;
    const qn_grammar_calls calls = { .output = &output, .tools = tools, .is_single = true, .style = style };
    return qn_grammar_from_calls(&calls, grammar);
}

/* What the parser makes of calls: [[name, arguments, whether it is complete], ...]. */
typedef struct parsed {
    json_t *calls;
    char name[300], arguments[MAX_TEXT * 2];
    size_t n;
} parsed;

static void take_event(const qn_output_event *event, void *user)
{
    parsed *p = user;
    if (event->kind == QN_OUTPUT_CALL_BEGIN) {
        snprintf(p->name, sizeof p->name, "%.*s", (int)event->length, event->text);
        p->n = 0;
    }
    if (event->kind == QN_OUTPUT_ARGUMENTS && p->n + event->length < sizeof p->arguments) {
        memcpy(p->arguments + p->n, event->text, event->length);
        p->n += event->length;
    }
    if (event->kind == QN_OUTPUT_CALL_END)
        json_array_append_new(
            p->calls, json_pack("[s,s%,b]", p->name, p->arguments, p->n, event->call_end == QN_OUTPUT_COMPLETE));
}

static json_t *parse_calls(const char *text, size_t length)
{
    static parsed p;
    qn_output_parser *parser;
    p.calls = json_array();
    output.on_event = take_event;
    output.user = &p;
    if (qn_output_parser_create(&output, &parser) != QN_OK)
        return failed();
    for (size_t at = 0, n; at < length; at += n) { /* in pieces */
        n = 1 + draw(9);
        n = n < length - at ? n : length - at;
        if (qn_output_feed(parser, -1, text + at, n) != QN_OK)
            break;
    }
    qn_output_finish(parser);
    qn_output_parser_free(parser);
    return p.calls;
}

static qn_status compile(json_t *line, qn_grammar **grammar)
{
    const qn_grammar_options options = {
        .strict = json_is_true(json_object_get(line, "strict")),
        .style = { .closed = json_is_true(json_object_get(line, "closed")),
                   .space = (qn_json_space)json_integer_value(json_object_get(line, "space")),
                   .order = (qn_json_order)json_integer_value(json_object_get(line, "order")) }
    };
    if (json_object_get(line, "tools"))
        return compile_calls(line, options.style, grammar);
    json_t *schema = json_object_get(line, "schema"), *regex = json_object_get(line, "regex");
    json_t *gbnf = json_object_get(line, "gbnf"), *choices = json_object_get(line, "choices");
    if (schema)
        return qn_grammar_from_schema(schema, &options, grammar);
    if (regex)
        return qn_grammar_from_regex(json_string_value(regex), json_string_length(regex), grammar);
    if (gbnf)
        return qn_grammar_from_gbnf(json_string_value(gbnf), json_string_length(gbnf), grammar);
    if (!choices)
        return qn_grammar_from_json(json_is_true(json_object_get(line, "json")), options.style, grammar);
    const size_t n = json_array_size(choices);
    const char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = json_string_value(json_array_get(choices, i));
    const qn_status status = qn_grammar_from_choices(list, n, grammar);
    free(list);
    return status;
}

/* Follows JSON's quotes. */
static bool is_inside(const char *text, size_t length, bool inside)
{
    for (size_t i = 0; i < length; i++) {
        i += inside && text[i] == '\\';
        inside ^= i < length && text[i] == '"';
    }
    return inside;
}

static bool ends_in_escape(const char *text, size_t length)
{
    size_t n = 0;
    while (n < length && text[length - 1 - n] == '\\')
        n++;
    return n % 2;
}

/* What ends a JSON text that fits: what closes a string or a value where it may follow, else other printable bytes in
 * turn, else bytes outside ASCII, else an escape. Null if it does not end soon. */
static json_t *complete(qn_grammar_state *state, bool inside, bool is_escape)
{
    char text[MAX_COMPLETION];
    size_t n = 0;
    while (n < sizeof text && !qn_grammar_state_is_finished(state)) {
        const char *closers = inside ? "\"" : "}]:,\"";
        const size_t n_closers = strlen(closers), n_ascii = n_closers + N_PRINTABLE;
        bool is_found = false;
        for (size_t i = 0; i < n_ascii + 129 && !is_found; i++) {
            text[n] = i < n_closers ? closers[i] : (char)(' ' + (i + 29 * n) % N_PRINTABLE);
            if (i >= n_ascii)
                text[n] = i < n_ascii + 128 ? (char)(0x80 + (i - n_ascii)) : '\\';
            else if (inside && text[n] == '\\')
                continue;
            is_found = qn_grammar_state_advance(state, &text[n], 1);
        }
        if (!is_found)
            return json_null();
        inside ^= !is_escape && text[n] == '"';
        is_escape = inside && !is_escape && text[n] == '\\';
        n++;
    }
    return n < sizeof text ? json_stringn(text, n) : json_null();
}

/* How many bytes fit, one at a time, and whether the whole fits at once; where it does, what ends it. */
static json_t *force(const qn_grammar *grammar, const char *text, size_t length)
{
    qn_grammar_state *state, *whole;
    size_t n = 0;
    if (qn_grammar_state_create(grammar, &state) != QN_OK || qn_grammar_state_clone(state, &whole) != QN_OK)
        return failed();
    while (n < length && qn_grammar_state_advance(state, text + n, 1))
        n++;
    if (qn_grammar_state_accepts(whole, text, length) != (n == length) ||
        qn_grammar_state_advance(whole, text, length) != (n == length)) {
        fprintf(stderr, "bytes and the whole differ: %s\n", text);
        abort();
    }
    const bool is_finished = n == length && qn_grammar_state_is_finished(state);
    json_t *result = json_pack(
        "[I,b,o]", (json_int_t)n, is_finished,
        n == length ? complete(state, is_inside(text, length, false), ends_in_escape(text, length)) : json_null());
    qn_grammar_state_free(state);
    qn_grammar_state_free(whole);
    return result;
}

/* Texts that close something. */
static const char *const closing[] = { "}", "]", "\"", "\"}", "0", "e" };
enum { N_CLOSING = sizeof closing / sizeof *closing };
static qn_token closing_tokens[N_CLOSING]; /* -1: none */

static void find_closing(void)
{
    for (size_t i = 0; i < N_CLOSING; i++) {
        closing_tokens[i] = -1;
        for (size_t t = 0; t < n_vocab && closing_tokens[i] < 0; t++) {
            size_t length;
            const char *bytes = qn_grammar_vocab_bytes(vocab, (qn_token)t, &length);
            if (bytes && length == strlen(closing[i]) && !memcmp(bytes, closing[i], length))
                closing_tokens[i] = (qn_token)t;
        }
    }
}

static bool is_set(const uint32_t *mask, qn_token token)
{
    return token >= 0 && mask[token / 32] >> (token % 32) & 1;
}

/* A token of the mask: any, or after a while one that closes something, if there is one. -1: the end, -2: there is
 * none. */
static qn_token pick(const uint32_t *allowed, qn_grammar_state *state, size_t step)
{
    const size_t n_words = (n_vocab + 31) / 32;
    size_t count = 0, length;
    bool ends = false;
    for (size_t i = 0; i < n_words; i++)
        count += (size_t)__builtin_popcount(allowed[i]);
    for (size_t i = 0; i < n_ends; i++)
        ends |= is_set(allowed, end_tokens[i]);
    if (ends != qn_grammar_state_is_finished(state)) {
        fprintf(stderr, "end tokens and the state differ\n");
        abort();
    }
    count -= ends ? n_ends : 0;
    if (ends && (!count || !draw(4) || step > FREE_TOKENS))
        return -1;
    if (step > FREE_TOKENS && draw(4))
        for (size_t i = 0; i < N_CLOSING; i++)
            if (is_set(allowed, closing_tokens[i]))
                return closing_tokens[i];
    size_t which = count ? draw(count) : 0;
    for (size_t i = 0; count && i < n_words; i++)
        for (uint32_t word = allowed[i]; word; word &= word - 1) {
            const qn_token token = (qn_token)(32 * i) + __builtin_ctz(word);
            if (qn_grammar_vocab_bytes(vocab, token, &length) && !which--)
                return token;
        }
    return -2;
}

/* Now and then ends a value or a call in the form xml: few tokens do. */
static size_t end_xml(qn_grammar_state *state, char *to)
{
    static const char *const ends[] = { "\n</parameter>\n", "</function>\n</tool_call>" };
    for (size_t i = 0; i < 2 && !draw(i ? 2 : 5); i++)
        if (qn_grammar_state_accepts(state, ends[i], strlen(ends[i])) &&
            qn_grammar_state_advance(state, ends[i], strlen(ends[i]))) {
            memcpy(to, ends[i], strlen(ends[i]));
            return strlen(ends[i]);
        }
    return 0;
}

static json_t *walk(const qn_grammar *grammar, bool is_call, json_t *times)
{
    static char text[MAX_TEXT];
    qn_grammar_state *state;
    uint32_t *allowed = calloc((n_vocab + 31) / 32, sizeof *allowed);
    size_t n = 0;
    bool is_finished = false;
    if (qn_grammar_state_create(grammar, &state) != QN_OK)
        return failed();
    for (size_t step = 0; step < MAX_TOKENS && n < MAX_TEXT - 256; step++) {
        size_t length;
        n += is_call && output.form == QN_OUTPUT_XML ? end_xml(state, text + n) : 0;
        evict();
        const double begin = now();
        if (qn_grammar_mask(vocab, state, allowed) != QN_OK)
            return failed();
        json_array_append_new(times, json_real(now() - begin));
        const qn_token token = pick(allowed, state, step);
        is_finished = token == -1;
        if (token == -2) {
            fprintf(stderr, "nothing follows: %.*s\n", (int)n, text);
            abort();
        }
        if (is_finished)
            break;
        const char *bytes = qn_grammar_vocab_bytes(vocab, token, &length);
        if (!qn_grammar_state_advance(state, bytes, length)) {
            fprintf(stderr, "a token of the mask does not fit: %.*s + %.*s\n", (int)n, text, (int)length, bytes);
            abort();
        }
        memcpy(text + n, bytes, length);
        n += length;
    }
    free(allowed);
    qn_grammar_state_free(state);
    json_t *result = json_array();
    json_t *string = json_stringn(text, n); /* NULL where it ends inside a character */
    json_array_append_new(result, string ? string : json_null());
    json_array_append_new(result, json_boolean(is_finished));
    if (is_call)
        json_array_append_new(result, is_finished ? parse_calls(text, n) : json_null());
    return result;
}

static json_t *run(json_t *line)
{
    qn_grammar *grammar;
    const double begin = now();
    if (compile(line, &grammar) != QN_OK) {
        json_t *result = failed();
        json_object_set_new(result, "milliseconds", json_real((now() - begin) / 1e3));
        return result;
    }
    json_t *result = json_pack("{s:f}", "milliseconds", (now() - begin) / 1e3), *texts = json_array(),
           *walks = json_array();
    json_t *times = json_array(), *text;
    size_t i;
    json_object_set_new(result, "bytes", json_integer((json_int_t)qn_grammar_bytes(grammar)));
    json_array_foreach(json_object_get(line, "texts"), i, text)
        json_array_append_new(texts, force(grammar, json_string_value(text), json_string_length(text)));
    random_state = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    for (json_int_t k = 0; vocab && k < json_integer_value(json_object_get(line, "walks")); k++)
        json_array_append_new(walks, walk(grammar, json_object_get(line, "tools"), times));
    if (json_object_get(line, "tools")) {
        json_t *calls = json_array();
        json_array_foreach(json_object_get(line, "texts"), i, text)
            json_array_append_new(calls, parse_calls(json_string_value(text), json_string_length(text)));
        json_object_set_new(result, "calls", calls);
    }
    json_object_set_new(result, "texts", texts);
    json_object_set_new(result, "walks", walks);
    json_object_set_new(result, "microseconds", times);
    qn_grammar_free(grammar);
    return result;
}

int main(int argc, char **argv)
{
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (argc > 1) {
        qn_gguf *file;
        qn_tokenizer *tokenizer;
        if (qn_gguf_open(argv[1], &file) != QN_OK || qn_tokenizer_create(file, &tokenizer) != QN_OK ||
            qn_grammar_vocab_create(tokenizer, NULL, argc > 2 ? strtoul(argv[2], NULL, 10) : 0, &vocab) != QN_OK) {
            fprintf(stderr, "%s\n", qn_error_text());
            return 1;
        }
        n_vocab = qn_tokenizer_n_vocab(tokenizer);
        if (!(end_tokens = calloc(n_vocab, sizeof *end_tokens)))
            return 1;
        for (size_t t = 0; t < n_vocab; t++)
            if (qn_tokenizer_is_eog(tokenizer, (int32_t)t))
                end_tokens[n_ends++] = (qn_token)t;
        find_closing();
        qn_tokenizer_free(tokenizer);
        qn_gguf_close(file);
    }
    n_evicting = argc > 3 ? strtoul(argv[3], NULL, 10) << 20 : 0;
    if (n_evicting && !(evicting = calloc(n_evicting, 1)))
        return 1;
    while ((n = getline(&text, &capacity, stdin)) > 0) {
        json_error_t error;
        json_t *line = json_loadb(text, (size_t)n, JSON_DECODE_ANY, &error);
        json_t *result = line ? run(line) : json_pack("{s:s,s:f}", "error", error.text, "milliseconds", 0.0);
        char *out = json_dumps(result, JSON_COMPACT | JSON_REAL_PRECISION(6));
        puts(out);
        fflush(stdout);
        free(out);
        json_decref(result);
        json_decref(line);
    }
    qn_output_tools_free(kept_tools);
    qn_grammar_vocab_free(vocab);
    free(end_tokens);
    free(evicting);
    free(text);
    return 0;
}
