/* Bodies of requests to every protocol, and events that answer them: a refusal is an error object, a whole answer is
 * JSON, a stream is events of JSON, whatever the body and the order of texts, reasoning, calls and errors.
 *
 * An input is: a character from '0' on that selects the protocol, the body, a zero byte, bytes that select events. */
#include "body_words.h"
#include "mutate_json.h"
#include "vocab_model.h"

#include "protocol/protocol.h"

enum { MAX_EVENTS = 64, MAX_REQUESTS = 4 };

static qn_model *model;

/* ---- Checks of appended bytes ---- */

static void require_json(const char *text, size_t length, bool is_object)
{
    json_t *json = json_loadb(text, length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    require(json && (!is_object || json_is_object(json)), "it is JSON");
    json_decref(json);
}

static void require_stream(const qn_bytes *out)
{
    static const char begin[] = "data: ", end[] = "\n\n", done[] = "[DONE]", name[] = "event: ";
    for (size_t at = 0; at < out->length;) {
        const char *event = out->data + at, *stop = memmem(event, out->length - at, end, 2), *line = event;
        if (out->length - at > 7 && !memcmp(event, name, 7))
            line = memchr(event, '\n', out->length - at);
        event = line && line > event ? line + 1 : event;
        require(stop && stop - event > 6 && !memcmp(event, begin, 6), "it is an event");
        if (stop - event != 12 || memcmp(event + 6, done, 6) != 0)
            require_json(event + 6, (size_t)(stop - event) - 6, true);
        at = (size_t)(stop - out->data) + 2;
    }
}

static void require_lines(const qn_bytes *out)
{
    for (size_t at = 0; at < out->length;) {
        const char *line = out->data + at, *stop = memchr(line, '\n', out->length - at);
        require(stop != NULL, "it is a line");
        require_json(line, (size_t)(stop - line), true);
        at = (size_t)(stop - out->data) + 1;
    }
}

static void check(const qn_exchange *exchange, qn_bytes *out, bool is_end)
{
    const bool is_list = exchange->n_requests > 1 || (exchange->n_requests && exchange->requests->pooling);
    require(!out->has_failed, "there is memory");
    if (exchange->is_stream && exchange->protocol->stream_type)
        require_lines(out);
    else if (exchange->is_stream && exchange->n_requests)
        require_stream(out);
    else if (is_end)
        require_json(out->data, out->length, !is_list);
    else
        require(!out->length, "whole answers come at the end");
    out->length = 0;
}

/* ---- Events ---- */

static void give_output(qn_exchange *exchange, size_t request, unsigned choice, qn_bytes *out)
{
    static const char *const texts[] = { "a", "\"\\\n", "é🤗", "{\"a\":", "f", "\x01" };
    const qn_output_event output = { .kind = (qn_output_event_kind)(choice % 5),
                                     .text = texts[choice % 6],
                                     .length = strlen(texts[choice % 6]),
                                     .call = choice % 3,
                                     .call_end = (qn_output_call_end)(choice / 5 % 3) };
    const qn_exchange_event event = { .kind = exchange->has_events ? QN_EXCHANGE_OUTPUT : QN_EXCHANGE_TEXT,
                                      .output = &output,
                                      .text = output.text,
                                      .length = output.length };
    exchange->protocol->event(exchange, request, &event, out);
}

static void give_token(qn_exchange *exchange, size_t request, unsigned choice, qn_bytes *out)
{
    qn_logprobs logprobs = { .n = choice % (QN_MAX_LOGPROBS + 1), .chosen = choice % 7 ? -1.5f : -1.0f / 0.0f };
    for (uint32_t i = 0; i < logprobs.n; i++)
        logprobs.tokens[i] = (qn_token)(choice * (i + 1) % 300);
    const qn_exchange_event event = { .kind = QN_EXCHANGE_TOKEN,
                                      .token = (qn_token)(choice * 5 % 300),
                                      .logprobs = exchange->requests[request].n_logprobs >= 0 ? &logprobs : NULL };
    exchange->protocol->event(exchange, request, &event, out);
}

static void give_prompt(qn_exchange *exchange, size_t request, qn_bytes *out)
{
    const qn_request_params *params = &exchange->requests[request];
    const qn_logprobs logprobs = { .chosen = -1.5f };
    for (size_t i = 0; params->n_prompt_logprobs >= 0 && i < params->n_tokens; i++) {
        const qn_exchange_event event = {
            .kind = QN_EXCHANGE_PROMPT, .index = i, .token = params->tokens[i], .logprobs = i ? &logprobs : NULL
        };
        exchange->protocol->event(exchange, request, &event, out);
    }
}

/* Progress, and the embedding that a request without text has, unless `choice` leaves it out. */
static void give_vectors(qn_exchange *exchange, size_t request, unsigned choice, qn_bytes *out)
{
    const float values[] = { 0.5f, -1, 0, 1e-30f };
    const qn_prompt_progress progress = { .n_prompt = choice, .n_done = choice / 2, .seconds = choice };
    if (exchange->has_progress)
        exchange->protocol->event(exchange, request,
                                  &(qn_exchange_event){ .kind = QN_EXCHANGE_PROGRESS, .progress = &progress }, out);
    if (exchange->requests[request].pooling && choice % 8)
        exchange->protocol->event(
            exchange, request,
            &(qn_exchange_event){ .kind = QN_EXCHANGE_EMBEDDING, .embedding = values, .length = choice % 5 }, out);
}

static void give_end(qn_exchange *exchange, size_t request, unsigned choice, qn_bytes *out)
{
    const qn_finish finish = (qn_finish)(choice % 5);
    const qn_request_result result = { .finish = finish,
                                       .error = finish == QN_FINISH_ERROR ? "it \"broke\"\n\xff" : "",
                                       .is_stop_string = finish == QN_FINISH_STOP && choice / 5 % 2,
                                       .n_prompt = choice,
                                       .n_generated = choice };
    exchange->protocol->event(exchange, request, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = &result },
                              out);
}

static void answer(qn_exchange *exchange, const uint8_t *events, size_t n)
{
    qn_bytes out = { 0 };
    exchange->protocol->begin(exchange, &out);
    check(exchange, &out, false);
    for (size_t i = 0; i < exchange->n_requests; i++)
        give_prompt(exchange, i, &out);
    check(exchange, &out, false);
    for (size_t i = 0; i < exchange->n_requests; i++)
        give_vectors(exchange, i, n ? events[i % n] : 1, &out);
    check(exchange, &out, false);
    for (size_t i = 0; exchange->n_requests && i < n && i < MAX_EVENTS; i++) {
        const size_t request = events[i] / 2 % exchange->n_requests;
        (events[i] % 2 ? give_output : give_token)(exchange, request, events[i] / 2u, &out);
        check(exchange, &out, false);
    }
    for (size_t i = 0; i < exchange->n_requests; i++) {
        give_end(exchange, i, n ? events[i % n] : 0, &out);
        check(exchange, &out, false);
    }
    const int status = exchange->protocol->end(exchange, &out);
    require((status == 200) == !exchange->has_failed, "the status says whether it failed");
    check(exchange, &out, true);
    qn_bytes_free(&out);
}

static void refuse(const qn_protocol *protocol, const qn_refusal *refusal)
{
    qn_bytes out = { 0 };
    require(refusal->status == 400 || refusal->status == 501, "what is refused is the body's fault");
    protocol->refuse(refusal, &out);
    require_json(out.data, out.length, true);
    qn_bytes_free(&out);
}

static size_t n_protocols(void)
{
    size_t n = 0;
    while (qn_protocols[n])
        n++;
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    if (seed % 16 == 0 && size)
        data[0] = (uint8_t)('0' + seed / 16 % n_protocols());
    return mutate_json(data, size, max_size, size > 0, zero > data ? (size_t)(zero - data) : size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!model)
        model = load_vocab_model();
    if (!size)
        return 0;
    const uint8_t *body = data + 1, *zero = memchr(body, 0, size - 1);
    const size_t length = zero ? (size_t)(zero - body) : size - 1;
    const qn_protocol *protocol = qn_protocols[(uint8_t)(data[0] - '0') % n_protocols()];
    const qn_exchange_origin origin = { .id = "1", .secret = "s" };
    const qn_served served = {
        .model = model, .n_ctx = 64, .max_tokens = -1, .reasoning_budget = -1, .sampling = (qn_sampling)QN_SAMPLING_INIT
    };
    const qn_protocol_limits limits = { .requests = MAX_REQUESTS };
    qn_refusal refusal;
    qn_exchange *exchange = qn_exchange_parse(protocol, (const char *)body, length, &limits, &origin, &refusal);
    if (exchange && qn_exchange_bind(exchange, &served, &refusal))
        answer(exchange, zero ? zero + 1 : zero, zero ? size - 2 - length : 0);
    else
        refuse(protocol, &refusal);
    qn_exchange_free(exchange);
    return 0;
}
