/* Answers of unit tests: passes events that the test makes up to an exchange, and collects the bytes that it
 * appends. */
#ifndef QN_TESTS_HELPER_ANSWERS_H
#define QN_TESTS_HELPER_ANSWERS_H

#include "helper_protocol.h"

static qn_exchange *x;
static qn_bytes out;

static inline void open_exchange(const char *path, const char *body)
{
    x = must_take(path, body);
    x->protocol->begin(x, &out);
}

static inline void close_exchange(void)
{
    qn_exchange_free(x);
    qn_bytes_free(&out);
}

static inline void give(size_t request, const qn_exchange_event *event)
{
    x->protocol->event(x, request, event, &out);
}

static inline void token(size_t request, qn_token token)
{
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_TOKEN, .token = token });
}

static inline void likely(size_t request, qn_token token, float chosen)
{
    const qn_logprobs logprobs = { .n = 1, .chosen = chosen, .tokens = { 'z' }, .values = { -0.5f } };
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_TOKEN, .token = token, .logprobs = &logprobs });
}

/* The first token of a prompt has no log probability. */
static inline void repeated(size_t request, size_t index, qn_token token, float chosen)
{
    const qn_logprobs logprobs = { .n = 1, .chosen = chosen, .tokens = { 'z' }, .values = { -0.5f } };
    give(request,
         &(qn_exchange_event){
             .kind = QN_EXCHANGE_PROMPT, .index = index, .token = token, .logprobs = index ? &logprobs : NULL });
}

static inline void text(size_t request, const char *text)
{
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_TEXT, .text = text, .length = strlen(text) });
}

static inline void output(size_t request, qn_output_event_kind kind, const char *text, size_t call,
                          qn_output_call_end call_end)
{
    const qn_output_event event = {
        .kind = kind, .text = text, .length = strlen(text), .call = call, .call_end = call_end
    };
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_OUTPUT, .output = &event });
}

static inline void content(size_t request, const char *text)
{
    output(request, QN_OUTPUT_CONTENT, text, 0, QN_OUTPUT_COMPLETE);
}

static inline void reasoning_text(size_t request, const char *text)
{
    output(request, QN_OUTPUT_REASONING, text, 0, QN_OUTPUT_COMPLETE);
}

static inline void begin_call(size_t request, size_t call, const char *name)
{
    output(request, QN_OUTPUT_CALL_BEGIN, name, call, QN_OUTPUT_COMPLETE);
}

static inline void arguments(size_t request, size_t call, const char *text)
{
    output(request, QN_OUTPUT_ARGUMENTS, text, call, QN_OUTPUT_COMPLETE);
}

/* raw: the text of the whole call. */
static inline void end_call(size_t request, size_t call, const char *raw, qn_output_call_end end)
{
    output(request, QN_OUTPUT_CALL_END, raw, call, end);
}

static inline void end_with(size_t request, qn_finish finish, qn_status status, bool is_stop_string)
{
    const qn_request_result result = { .finish = finish,
                                       .error = finish == QN_FINISH_ERROR ? "it broke" : "",
                                       .status = status,
                                       .is_stop_string = is_stop_string,
                                       .n_prompt = 10,
                                       .n_reused = 4,
                                       .n_generated = 3,
                                       .prompt_seconds = 2,
                                       .generate_seconds = 1.5 };
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = &result });
}

static inline void finish(size_t request, qn_finish finish, bool is_stop_string)
{
    end_with(request, finish, finish == QN_FINISH_ERROR ? QN_ERR_IO : QN_OK, is_stop_string);
}

/* Asserts the status of the answer when it has ended. */
#define ends_with(status) assert_int_equal(x->protocol->end(x, &out), status)

#endif
