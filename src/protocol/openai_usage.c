/* Resource use of an answer: OpenAI's usage, llama-server's timings. */
#include "protocol/openai.h"

void qn_openai_usage(const qn_text_exchange *x, qn_bytes *out)
{
    size_t n_prompt = 0, n_reused = 0, n_generated = 0, n_reasoning = 0;
    for (size_t i = 0; i < x->base.n_requests; i++) {
        const qn_choice *choice = &x->choices[i];
        n_generated += choice->result.n_generated;
        n_reasoning += choice->n_reasoning;
        if (i % x->n_choices)
            continue; /* choices of one prompt count its tokens once */
        n_prompt += choice->result.n_prompt;
        n_reused += choice->result.n_reused;
    }
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "prompt_tokens", (int64_t)n_prompt);
    qn_json_member_integer(out, "completion_tokens", (int64_t)n_generated);
    qn_json_member_integer(out, "total_tokens", (int64_t)(n_prompt + n_generated));
    qn_json_key(out, "prompt_tokens_details");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "cached_tokens", (int64_t)n_reused);
    qn_json_close(out, '}');
    qn_json_key(out, "completion_tokens_details");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "reasoning_tokens", (int64_t)n_reasoning);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

/* Writes the members `name`_n, _ms, _per_token_ms and _per_second. */
static void write_rate(const char *const names[4], size_t n, double seconds, qn_bytes *out)
{
    const double values[] = { seconds * 1e3, n ? seconds * 1e3 / (double)n : 0, seconds > 0 ? (double)n / seconds : 0 };
    qn_json_member_integer(out, names[0], (int64_t)n);
    for (int i = 0; i < 3; i++) {
        qn_json_key(out, names[i + 1]);
        qn_json_number(out, values[i]);
    }
}

void qn_llama_write_timings(const qn_choice *choice, qn_bytes *out)
{
    static const char *const prompt[] = { "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second" },
                             *const predicted[] = { "predicted_n", "predicted_ms", "predicted_per_token_ms",
                                                    "predicted_per_second" };
    const qn_request_result *result = &choice->result;
    qn_json_open(out, '{');
    qn_json_member_integer(out, "cache_n", (int64_t)result->n_reused);
    write_rate(prompt, result->n_prompt - result->n_reused, result->prompt_seconds, out);
    write_rate(predicted, result->n_generated, result->generate_seconds, out);
    if (result->n_drafted) {
        qn_json_member_integer(out, "draft_n", (int64_t)result->n_drafted);
        qn_json_member_integer(out, "draft_n_accepted", (int64_t)result->n_accepted);
    }
    qn_json_close(out, '}');
}

void qn_llama_timings(const qn_choice *choice, qn_bytes *out)
{
    qn_json_key(out, "timings");
    qn_llama_write_timings(choice, out);
}

void qn_llama_progress(const qn_prompt_progress *progress, qn_bytes *out)
{
    qn_json_key(out, "prompt_progress");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "total", (int64_t)progress->n_prompt);
    qn_json_member_integer(out, "cache", (int64_t)progress->n_reused);
    qn_json_member_integer(out, "processed", (int64_t)progress->n_done);
    qn_json_member_integer(out, "time_ms", (int64_t)(progress->seconds * 1e3));
    qn_json_close(out, '}');
}
