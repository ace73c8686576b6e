/* The output parser: any bytes are parsed as output of a model, whole, in single bytes and in pieces. The events
 * must not depend on the pieces, must account for every byte, and must give arguments that are JSON exactly when a
 * call is complete. The first bytes of the input are parameters. */
#include "../unit/helper_output.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER = 2, MAX_OUTPUT = 2000, THINKS = 4, BY_TOKEN = 8, NO_TOOLS = 16, SHORT_CALLS = 32 };

static const char tools_text[] =
    "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"}, \"i\": {\"$ref\": "
    "\"#/$defs/i\"}, \"u\": {\"anyOf\": [{\"type\": \"object\"}, {\"enum\": [null, true, \"x\"]}]}}, \"$defs\": "
    "{\"i\": {\"type\": [\"integer\", \"array\"]}}}}]";

static qn_output_params params_of(unsigned options, struct transcript *transcript)
{
    qn_output_params params;
    qn_output_params_init(&params, (qn_output_form)(options % QN_OUTPUT_N_FORMS));
    params.starts_in_reasoning = options & THINKS;
    params.tools = options & NO_TOOLS ? NULL : keep_tools(tools_text, params.form);
    params.max_call = options & SHORT_CALLS ? 64 : params.max_call;
    params.on_event = transcript_event;
    params.user = transcript;
    if (options & BY_TOKEN) {
        params.think_open.token = 10;
        params.think_close.token = 11;
        params.call_open.token = 12;
        params.call_close.token = 13;
    }
    return params;
}

/* Parses in pieces of `step` bytes; if it is 0, in sizes that the seed determines. */
static struct transcript parse(unsigned options, uint32_t seed, const char *output, size_t n, size_t step)
{
    struct transcript transcript = { .last_kind = -1 };
    const qn_output_params params = params_of(options, &transcript);
    qn_output_parser *parser;
    if (qn_output_parser_create(&params, &parser) != QN_OK)
        abort();
    for (size_t at = 0, end; at < n; at = end) {
        int32_t token;
        seed = seed * 1664525u + 1013904223u;
        end = next_piece(&params, output, at, n, step ? step : 1 + (seed >> 16) % 9, &token);
        if (qn_output_feed(parser, token, output + at, end - at) != QN_OK)
            abort();
    }
    if (qn_output_finish(parser) != QN_OK || qn_output_n_calls(parser) != transcript.n_calls)
        abort();
    qn_output_parser_free(parser);
    transcript_close(&transcript);
    text_add(&transcript.log, "", 0);
    if (transcript.problem || !transcript_accounts(&transcript, &params, output, n)) {
        fprintf(stderr, "%s: %s\n", transcript.problem ? transcript.problem : "bytes are lost", transcript.log.data);
        abort();
    }
    return transcript;
}

/* Checks that cut output is the beginning of the whole one: of its log everything but the end of the last entry. */
static void check_cut(unsigned options, const char *output, size_t n, size_t cut, const struct transcript *whole)
{
    struct transcript transcript = { .last_kind = -1 };
    const qn_output_params params = params_of(options, &transcript);
    qn_output_parser *parser;
    if (qn_output_parser_create(&params, &parser) != QN_OK)
        abort();
    for (size_t at = 0, end; at < cut; at = end) {
        int32_t token;
        end = next_piece(&params, output, at, n, 1, &token);
        if (qn_output_feed(parser, token, output + at, end - at) != QN_OK)
            abort();
    }
    if (qn_output_cut(parser) != QN_OK)
        abort();
    qn_output_parser_free(parser);
    transcript_close(&transcript);
    text_add(&transcript.log, "", 0);
    const size_t n_log = transcript.log.n, n_close = !n_log ? 0 : transcript.log.data[n_log - 1] == '}' ? 1 : 2;
    if (transcript.problem || n_log - n_close > whole->log.n ||
        memcmp(transcript.log.data, whole->log.data, n_log - n_close) != 0) {
        fprintf(stderr, "whole: %s\ncut at %zu: %s\n", whole->log.data, cut, transcript.log.data);
        abort();
    }
    transcript_free(&transcript);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEADER || size > HEADER + MAX_OUTPUT)
        return 0;
    const char *output = (const char *)data + HEADER;
    const size_t n = size - HEADER, steps[] = { 1, 0, 0 };
    struct transcript whole = parse(data[0], 0, output, n, n + 1);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct transcript pieces = parse(data[0], data[1] + (uint32_t)i, output, n, steps[i]);
        if (pieces.log.n != whole.log.n || memcmp(pieces.log.data, whole.log.data, whole.log.n) != 0) {
            fprintf(stderr, "whole: %s\nin pieces: %s\n", whole.log.data, pieces.log.data);
            abort();
        }
        transcript_free(&pieces);
    }
    check_cut(data[0], output, n, data[1] * n / 255, &whole);
    transcript_free(&whole);
    return 0;
}
