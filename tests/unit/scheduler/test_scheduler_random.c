/* Random requests on the CPU, over several models and cache formats. Each answer is that of the same request alone.
 *
 * QN_SOAK=N: so many requests instead. */
#include "helper_jobs.h"
#include "helper_sanitizers.h"

enum { REQUESTS = 20, SANITIZED_REQUESTS = 16 };

static size_t n_requests, n_large; /* of small models; of the demo model */

/* What a request alone answers. */
static void check_alone(qn_model *model, const char *kv, struct job *job)
{
    if (job->found.n_tokens || job->params.max_tokens == 0)
        answer_alone(model, kv, CONTEXT, &job->params, &job->expected);
    assert_same_answer(&job->found, &job->expected);
}

static void run(struct run *r)
{
    r->check = check_alone;
    run_jobs(r);
}

TEST(hybrid_in_little_memory)
{
    run(&(struct run){ "tests/golden/scheduler.gguf", "f16", .memory = 8 << 20, .params = { .max_sequences = 8 },
                       .n = n_large, .how = ALONE });
}

TEST(hybrid_with_codes)
{
    run(&(struct run){ "tests/golden/scheduler.gguf", "aura4", .memory = 21 << 20,
                       .params = { .max_rows = 96, .no_thread = true }, .n = n_large, .how = BESIDE });
}

TEST(beside_the_device)
{
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "f16", .memory = 8 << 20, .params = { .max_sequences = 8 },
                       .n = n_requests, .how = BESIDE | OVERLAPPING });
    run(&(struct run){ "tests/golden/qwen3.q2_0.gguf", "aura4v3", .memory = 6 << 20, .params = { .max_rows = 256 },
                       .n = n_requests, .how = OVERLAPPING });
    run(&(struct run){ "tests/golden/scheduler.gguf", "aura4", .memory = 21 << 20,
                       .params = { .max_rows = 96, .no_thread = true }, .n = n_large / 2, .how = OVERLAPPING });
}

TEST(ahead_of_the_device)
{
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "f16", .memory = 8 << 20, .params = { .max_sequences = 8 },
                       .n = n_requests, .how = BESIDE | AHEAD, .change = let_run_ahead });
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "aura4", .memory = 0, .params = { .max_sequences = 3 },
                       .n = n_requests, .how = AHEAD, .change = let_run_ahead });
    run(&(struct run){ "tests/golden/qwen3.q2_0.gguf", "aura4v3", .memory = 6 << 20, .params = { .max_rows = 256 },
                       .n = n_requests, .how = AHEAD, .change = let_run_ahead });
    run(&(struct run){ "tests/golden/scheduler.gguf", "f16", .memory = 8 << 20,
                       .params = { .max_sequences = 8, .no_thread = true, .run_ahead = true }, .n = n_large,
                       .how = AHEAD, .change = let_run_ahead });
}

TEST(spilling_beside_the_device)
{
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "f16", .memory = 8 << 20,
                       .params = { .max_sequences = 8, .prefix_host = 32 << 20 }, .n = n_requests,
                       .how = BESIDE | AHEAD | SPILLING, .change = let_run_ahead });
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "aura4", .memory = 12 << 20,
                       .params = { .max_sequences = 32, .prefix_host = 4 << 20 }, .n = n_requests,
                       .how = OVERLAPPING | SPILLING });
    run(&(struct run){ "tests/golden/scheduler.gguf", "f16", .memory = 8 << 20,
                       .params = { .max_sequences = 32, .prefix_host = 21 << 20 }, .n = n_large,
                       .how = AHEAD | SPILLING, .change = let_run_ahead });
}

TEST(attention_only)
{
    run(&(struct run){ "tests/golden/qwen3.q2_0.gguf", "f16", .memory = 4 << 20, .params = { .step_seconds = 1e-3 },
                       .n = n_requests, .how = BESIDE });
    run(&(struct run){ "tests/golden/qwen3.q2_0.gguf", "aura4v3", .memory = 6 << 20, .params = { .max_rows = 256 },
                       .n = n_requests, .how = ALONE });
}

TEST(small_hybrid)
{
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "f16", .memory = 8 << 20, .params = { .max_sequences = 32 },
                       .n = n_requests, .how = BESIDE });
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "aura4", .memory = 0, .params = { .max_sequences = 3 },
                       .n = n_requests, .how = ALONE });
    run(&(struct run){ "tests/golden/qwen35.q1_0.gguf", "f16", .memory = 0, .params = { .no_prefix_cache = true },
                       .n = n_requests, .how = ALONE });
}

int main(void)
{
    const char *soak = getenv("QN_SOAK");
    n_requests = soak ? strtoul(soak, NULL, 10) : QN_TEST_SANITIZED ? SANITIZED_REQUESTS : REQUESTS;
    n_large = n_requests / (QN_TEST_SANITIZED && !soak ? 8 : 4);
    return run_all_tests();
}
