/* Logits of whole models, compared with golden logits of other programs: Hugging Face transformers for plain weights, a
 * float64 program for low-bit weights (tests/golden/README.md). And the guarantee of qn_session_eval: bit-identical
 * logits for any number of threads and any split of the tokens over calls. Uses only the public header.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "helper_golden.h"
#include "helper_create.h"

#include "base/append.h"
#include "quern/quern.h"

#include <math.h>

/* Error bound of float weights. float32 arithmetic causes at most 1e-5 here, f16 keys and values 5e-4; the remaining
 * margin is for engines that also round the inputs of matmuls to f16. A wrong rope pair, head or norm weight causes
 * more than 1e-1. */
#define MAX_ERROR_PLAIN 3e-3
/* Error bound of quantised weights. int8 activations with one scale per 32 values cause 1.7e-2 to 2.5e-2 on these files
 * (docs/accuracy.md); with one scale per 64 values at most 2.8e-2. */
#define MAX_ERROR_LOW_BIT 2.5e-2
/* Gated DeltaNet is more sensitive: one scale per 32 values causes 3.3e-2 to 6.4e-2 on these files; the hi/lo int8
 * split in block 0 reduces that to 1.2e-2 to 2.7e-2. The smallest error of a bug is 4.4e-2: rope over the whole
 * head. */
#define MAX_ERROR_HYBRID 3.8e-2

/* Tokens of the bit-for-bit comparisons: more than the golden 48, 160 and 203, and a prime, so that the last chunk and
 * the last call are incomplete for all sizes but 1. */
enum { N_LONG = 211 };

struct golden {
    const char *name;
    double max_error;
};

static struct golden models[] = {
    { "llama.f16", MAX_ERROR_PLAIN },
    { "llama3-rope.bf16", MAX_ERROR_PLAIN },
    { "qwen3.f16", MAX_ERROR_PLAIN },
    { "qwen3-untied.f32", MAX_ERROR_PLAIN },
    { "qwen3-yarn.f16", MAX_ERROR_PLAIN },
    { "qwen3-linear.f16", MAX_ERROR_PLAIN },
    { "llama-yarn.bf16", MAX_ERROR_PLAIN },
    { "llama-linear.bf16", MAX_ERROR_PLAIN },
    { "qwen2.f16", MAX_ERROR_PLAIN },
    { "llama.q1_0", MAX_ERROR_LOW_BIT },
    { "llama.q2_0", MAX_ERROR_LOW_BIT },
    { "llama.pq2_0", MAX_ERROR_LOW_BIT },
    { "llama.ptq1_0", MAX_ERROR_LOW_BIT },
    { "qwen3.q1_0", MAX_ERROR_LOW_BIT },
    { "qwen3.q2_0", MAX_ERROR_LOW_BIT },
    { "qwen3.pq2_0", MAX_ERROR_LOW_BIT },
    { "qwen3.ptq1_0", MAX_ERROR_LOW_BIT },
    { "qwen2.q1_0", MAX_ERROR_LOW_BIT },
    { "llama.q2_k", MAX_ERROR_LOW_BIT },
    { "llama.q3_k", MAX_ERROR_LOW_BIT },
    { "qwen3.iq4_nl", MAX_ERROR_LOW_BIT },
    { "qwen3.iq4_xs", MAX_ERROR_LOW_BIT },
    { "qwen3.mxfp4", MAX_ERROR_LOW_BIT },
    { "qwen3.nvfp4", MAX_ERROR_LOW_BIT },
    { "qwen35.f16", MAX_ERROR_PLAIN },
    { "qwen35-mtp.bf16", MAX_ERROR_PLAIN },
    { "qwen35-rotated.f16", MAX_ERROR_PLAIN },
    { "qwen35-mtp-grafted.f16", MAX_ERROR_PLAIN },
    { "qwen35-mtp-own.f16", MAX_ERROR_PLAIN },
    { "qwen35-yarn.f16", MAX_ERROR_PLAIN },
    { "qwen35.q1_0", MAX_ERROR_HYBRID },
    { "qwen35.q2_0", MAX_ERROR_HYBRID },
    { "qwen35.pq2_0", MAX_ERROR_HYBRID },
    { "qwen35.ptq1_0", MAX_ERROR_HYBRID },
    { "qwen35-rotated.q1_0", MAX_ERROR_HYBRID },
    { "qwen35-rotated.q2_0", MAX_ERROR_HYBRID },
    { "qwen35-rotated.pq2_0", MAX_ERROR_HYBRID },
    { "qwen35-rotated.ptq1_0", MAX_ERROR_HYBRID },
};

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

static qn_model *load(const char *name, int n_threads)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, name);
    return create_model(path, &CPU_MODEL(.n_threads = n_threads));
}

/* Fills ids with the golden ids, then repeats them, shifted by one in each repetition. Returns the number of golden
 * ids. */
static size_t read_ids(const char *name, uint32_t n_vocab, qn_token ids[N_LONG])
{
    const size_t n = read_golden_ids(name, ids, N_LONG);
    assert_in_range(n, 32, N_LONG);
    for (size_t i = n; i < N_LONG; i++)
        ids[i] = (qn_token)(((uint32_t)ids[i - n] + 1) % n_vocab);
    return n;
}

static float *read_logits(const char *name, size_t n_ids, size_t n_vocab)
{
    size_t n_rows;
    float *logits = read_golden_logits(name, n_vocab, &n_rows);
    assert_int_equal(n_rows, n_ids);
    return logits;
}

/* Logits of all ids in a new session, with `piece` ids per call. */
static float *evaluate(qn_model *model, uint32_t n_batch, const qn_token *ids, size_t n, size_t call_size)
{
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_LONG, .n_batch = n_batch));
    float *logits = allocate(n * n_vocab, sizeof *logits);
    for (size_t at = 0; at < n; at += call_size)
        assert_ok(qn_session_eval(session, ids + at, n - at < call_size ? n - at : call_size, QN_LOGITS_ALL,
                                  logits + at * n_vocab));
    assert_int_equal(qn_session_length(session), n);
    qn_session_free(session);
    return logits;
}

static void test_error(const void *row)
{
    const struct golden *golden = row;
    qn_model *model = load(golden->name, 1);
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    qn_token ids[N_LONG];
    const size_t n = read_ids(golden->name, (uint32_t)n_vocab, ids);
    float *expected = read_logits(golden->name, n, n_vocab);
    float *found = evaluate(model, 0, ids, n, n);
    const double error = mean_relative_error(found, expected, n, n_vocab);
    print_message("%-22s mean relative error %.2e, bound %.1e\n", golden->name, error, golden->max_error);
    if (!(error <= golden->max_error))
        fail_msg("%s: mean relative error %.3e, at most %.1e is allowed", golden->name, error, golden->max_error);
    free(found);
    free(expected);
    qn_model_free(model);
}

static void assert_same_logits(const char *name, const char *what, unsigned long setting, const float *found,
                               const float *expected, size_t n_vocab)
{
    for (size_t t = 0; t < N_LONG; t++) {
        if (memcmp(found + t * n_vocab, expected + t * n_vocab, n_vocab * sizeof *found) != 0)
            fail_msg("%s: with %s %lu the logits of token %zu differ from those of one thread and one call", name, what,
                     setting, t);
    }
}

static void test_same_bits(const void *row)
{
    const char *name = ((const struct golden *)row)->name;
    static const int threads[] = { 1, 2, 7 };
    static const size_t call_sizes[] = { N_LONG, 1, 3, 7, 64, 65, 197 };
    static const uint32_t batches[] = { 1, 5, 64 };
    /* How a call is split over threads and how tokens are split over calls are independent: two threads take every
     * size, the others every third. With QN_SOAK all take all. */
    const size_t step = getenv("QN_SOAK") ? 1 : 3;
    float *expected = NULL;
    for (size_t i = 0; i < COUNT(threads); i++) {
        label("%s, %d threads", name, threads[i]);
        qn_model *model = load(name, threads[i]);
        const size_t n_vocab = qn_model_get_info(model)->n_vocab;
        qn_token ids[N_LONG];
        read_ids(name, (uint32_t)n_vocab, ids);
        for (size_t j = 0; j < COUNT(call_sizes); j += threads[i] == 2 ? 1 : step) {
            float *found = evaluate(model, 0, ids, N_LONG, call_sizes[j]);
            if (!expected) {
                expected = found;
                continue;
            }
            if (j == 0)
                assert_same_logits(name, "threads", (unsigned long)threads[i], found, expected, n_vocab);
            else
                assert_same_logits(name, "pieces of", call_sizes[j], found, expected, n_vocab);
            free(found);
        }
        /* The batch size belongs to the session, not to the team: one team size suffices. */
        for (size_t j = 0; i == 1 && j < COUNT(batches); j++) {
            float *found = evaluate(model, batches[j], ids, N_LONG, N_LONG);
            assert_same_logits(name, "batches of", batches[j], found, expected, n_vocab);
            free(found);
        }
        qn_model_free(model);
    }
    free(expected);
}

int main(void)
{
    enum { N_MODELS = COUNT(models) };
    char names[2 * N_MODELS][64];
    size_t n = 0;
    /* A build with sanitizers is tens of times slower and runs every fifth model: a plain llama, one with scaled
     * positions, a low-bit llama, a low-bit qwen3, a low-bit qwen35 and a rotated model. */
    const char *sanitize = getenv("QN_SANITIZE");
    const size_t every = sanitize && *sanitize ? 5 : 1;
    for (size_t i = 0; i < N_MODELS; i += every, n += 2) {
        snprintf(names[n], sizeof names[n], "error of %s", models[i].name);
        qn_print(names[n + 1], sizeof names[n + 1], "same bits of %s", models[i].name);
        add_test((struct test_case){ .name = names[n], .run_row = test_error, .row = &models[i] });
        add_test((struct test_case){ .name = names[n + 1], .run_row = test_same_bits, .row = &models[i] });
    }
    return run_all_tests();
}
