/* The draft head on a GPU: logits of chains of drafts, compared with a float64 program's, and answers with drafts on a
 * deterministic GPU, which are those of one token a step, to the bit. Skipped without a GPU; QN_TEST_DEVICE selects
 * another device, and all tests hold on "cpu" too. */
#define QN_TESTS_DEMO "tests/golden/scheduler-mtp.gguf"
#define QN_TESTS_OWN_DEVICE
#include "helper_golden.h" /* before helper_drafts.h, which has a global n_vocab */

#include "helper_drafts.h"

#include "device/memory.h"

enum { SKIPPED = 77, N_DRAFTED = 4, N_LENGTHS = 6, MAX_IDS = 256, CONTEXT = 256, MAX_VOCAB = 72 };
static const size_t lengths[N_LENGTHS] = { 1, 2, 63, 64, 130, 198 }; /* as in tools/make_golden_models.py */

static const char *device;

static const char *path_of(const char *golden, char path[512])
{
    snprintf(path, 512, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    return path;
}

/* drafter: NULL, or another golden file. */
static qn_model *load_beside(const char *golden, const char *drafter, qn_draft_kind kind, bool deterministic)
{
    qn_model *loaded;
    char path[512], of_drafter[512];
    assert_ok(qn_model_load(path_of(golden, path),
                            &MODEL_PARAMS(.device = device, .n_threads = 2, .draft = kind,
                                          .draft_model = drafter ? path_of(drafter, of_drafter) : NULL,
                                          .deterministic = deterministic),
                            &loaded));
    return loaded;
}

static qn_model *load(const char *golden, qn_draft_kind kind, bool deterministic)
{
    return load_beside(golden, NULL, kind, deterministic);
}

/* ---- Logits of chains ---- */

struct chain {
    float logits[N_DRAFTED][MAX_VOCAB];
};

static const struct golden_head {
    const char *name, *kv;
    double max_error; /* fp16 operands, keys and values; codes cause more */
} heads[] = {
    { "qwen35-mtp.bf16", "f16", 1e-2 },
    { "qwen35-mtp-grafted.f16", "f16", 1e-2 },
    { "qwen35-mtp-grafted.f16", "aura8", 3e-2 },
    { "qwen35-mtp-grafted.f16", "aura4", 2e-1 },
};

static void run(qn_device *on, qn_memory *memory, const qn_token *tokens, size_t begin, size_t n, bool is_draft,
                float *logits)
{
    static qn_row rows[CONTEXT];
    const uint32_t last = (uint32_t)n - 1;
    memset(rows, 0, sizeof rows);
    for (size_t i = 0; i < n; i++) {
        rows[i].token = tokens[i];
        rows[i].position = (uint32_t)(begin + i);
        rows[i].memory = memory;
    }
    const qn_step step = {
        .is_draft = is_draft, .rows = rows, .n_rows = n, .logit_rows = &last, .n_logit_rows = 1, .logits = logits
    };
    assert_ok(on->vtable->run(on, &step));
}

static qn_token likeliest(const float *logits)
{
    qn_token best = 0;
    for (qn_token i = 1; i < MAX_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* The chain after `length` tokens, evaluated in steps of 50, with the likeliest tokens of `golden`. */
static void draft_chain(qn_model *of, const char *kv, const qn_token *ids, size_t length, const struct chain *golden,
                        struct chain *found)
{
    static float unused[MAX_VOCAB];
    qn_memory_params params = { .n_ctx = CONTEXT, .n_batch = CONTEXT };
    qn_memory *memory;
    qn_token token = ids[length];
    assert_ok(qn_kv_format_named(kv, &params.format));
    assert_ok(of->device->vtable->memory_new(of->device, &params, &memory));
    assert_ok(of->device->vtable->reserve(of->device, CONTEXT, CONTEXT));
    for (size_t at = 0, n; at < length; at += n) {
        n = length - at < 50 ? length - at : 50;
        assert_ok(memory->vtable->prepare(memory, n));
        run(of->device, memory, ids + at, at, n, false, unused);
        qn_memory_on_append(memory, at + n);
    }
    assert_ok(memory->vtable->prepare(memory, 1 + N_DRAFTED));
    for (size_t i = 0; i < N_DRAFTED; i++) {
        run(of->device, memory, &token, length + i, 1, true, found->logits[i]);
        token = likeliest(golden->logits[i]);
    }
    qn_memory_on_append(memory, length);
    memory->vtable->free(memory);
}

TEST_EACH(chains_have_the_logits_of_the_reference, struct golden_head, head, heads)
{
    static struct chain golden[N_LENGTHS], found;
    static qn_token ids[MAX_IDS];
    qn_model *of = load(head->name, QN_DRAFT_MTP, false);
    FILE *file = open_golden(head->name, ".drafts.f32");
    double worst = 0;
    assert_int_equal(fread(golden, sizeof *golden, N_LENGTHS, file), N_LENGTHS);
    fclose(file);
    assert_true(read_golden_ids(head->name, ids, MAX_IDS) > lengths[N_LENGTHS - 1]);
    assert_true(of->device->drafts);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        draft_chain(of, head->kv, ids, lengths[i], &golden[i], &found);
        const double error = mean_relative_error(found.logits[0], golden[i].logits[0], N_DRAFTED, MAX_VOCAB);
        worst = error > worst ? error : worst;
        label("%s, %s, %zu tokens: error %.2e", head->name, head->kv, lengths[i], error);
        assert_true(error <= head->max_error);
    }
    print_message("%s, %s: %.2e\n", head->name, head->kv, worst);
    qn_model_free(of);
}

/* ---- Logits of blocks ---- */

enum { N_BLOCKS = 9, MAX_BLOCK = 16, MAX_ROWS = 320 };

/* As in tools/golden_dflash.py. */
static const size_t block_lengths[N_BLOCKS] = { 1, 2, 30, 56, 64, 130, 184, 190, 300 };

static const struct golden_block {
    const char *name, *model;
    double max_error;
} blocks[] = {
    { "qwen35-dflash.f16", "qwen35-mtp-grafted.f16", 1e-2 },
    { "qwen35-dflash-wide.bf16", "qwen35-mtp-grafted.f16", 1e-2 },
    { "qwen3-dflash-causal.f32", "qwen3-yarn.f16", 1e-2 },
};

/* The logits of the mask tokens of a block after `length` tokens, which are evaluated in steps of 50. */
static void draft_block(qn_model *of, const qn_token *ids, size_t length, float *logits)
{
    const size_t n = of->plan.head.block;
    static float unused[MAX_VOCAB];
    qn_memory_params params = { .n_ctx = 2 * CONTEXT, .n_batch = MAX_ROWS };
    qn_row rows[MAX_BLOCK] = { 0 };
    uint32_t logit_rows[MAX_BLOCK];
    qn_memory *memory;
    assert_ok(qn_kv_format_named("f16", &params.format));
    assert_ok(of->device->vtable->memory_new(of->device, &params, &memory));
    assert_ok(of->device->vtable->reserve(of->device, MAX_ROWS, 2 * CONTEXT));
    for (size_t at = 0, m; at < length; at += m) {
        m = length - at < 50 ? length - at : 50;
        assert_ok(memory->vtable->prepare(memory, m));
        run(of->device, memory, ids + at, at, m, false, unused);
        qn_memory_on_append(memory, at + m);
    }
    assert_ok(memory->vtable->prepare(memory, n));
    for (size_t i = 0; i < n; i++) {
        rows[i] = (qn_row){ .token = i ? of->plan.head.mask_token : ids[length],
                            .position = (uint32_t)(length + i),
                            .memory = memory };
        logit_rows[i] = (uint32_t)i + 1;
    }
    const qn_step step = {
        .is_draft = true, .rows = rows, .n_rows = n, .logit_rows = logit_rows, .n_logit_rows = n - 1, .logits = logits
    };
    assert_ok(of->device->vtable->run(of->device, &step));
    qn_memory_on_append(memory, length);
    memory->vtable->free(memory);
}

TEST_EACH(blocks_have_the_logits_of_the_reference, struct golden_block, block, blocks)
{
    static float golden[MAX_BLOCK * MAX_VOCAB], found[MAX_BLOCK * MAX_VOCAB];
    static qn_token ids[MAX_ROWS];
    qn_model *of = load_beside(block->model, block->name, QN_DRAFT_DFLASH, false);
    const size_t n = of->plan.head.block - 1, n_logits = of->plan.n_vocab,
                 n_ids = read_golden_ids(block->model, ids, MAX_ROWS);
    FILE *file = open_golden(block->name, ".blocks.f32");
    double worst = 0;
    for (size_t i = n_ids; i < MAX_ROWS; i++)
        ids[i] = ids[i - n_ids];
    assert_in_range(n_logits, 1, MAX_VOCAB);
    for (size_t i = 0; i < N_BLOCKS; i++) {
        assert_int_equal(fread(golden, sizeof *golden, n * n_logits, file), n * n_logits);
        draft_block(of, ids, block_lengths[i], found);
        const double error = mean_relative_error(found, golden, n, n_logits);
        worst = error > worst ? error : worst;
        label("%s, %zu tokens: error %.2e", block->name, block_lengths[i], error);
        assert_true(error <= block->max_error);
    }
    fclose(file);
    print_message("%s: %.2e\n", block->name, worst);
    qn_model_free(of);
}

/* ---- Answers ---- */

static const char *const formats[] = { "f16", "aura4", "aura8" };

/* Answers with drafts of a scheduler of several requests, and those of one token a step. */
static void expect_answers(qn_draft_kind kind, const char *kv, unsigned first, uint32_t max_sequences,
                           uint64_t *n_tokens, uint64_t *n_accepted)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    qn_request_params params[MAX_REQUESTS];
    for (unsigned i = 0; i < MAX_REQUESTS; i++) {
        params[i] = request_of(first + i, &found[i]);
        answer_slowly(&params[i], kv, &expected[i]);
        memset(&found[i], 0, sizeof found[i]);
    }
    qn_scheduler *s = create_scheduler(
        model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = kv, .max_sequences = max_sequences, .draft = kind));
    for (unsigned i = 0; i < MAX_REQUESTS; i++)
        submit_request(s, &params[i]);
    qn_scheduler_wait(s);
    for (unsigned i = 0; i < MAX_REQUESTS; i++) {
        label("request %u, %s, %u together", first + i, kv, max_sequences);
        assert_same_logprobs(&found[i], &expected[i]);
        *n_tokens += found[i].n_tokens;
    }
    *n_accepted += counters_of(s).accepted_tokens;
    qn_scheduler_free(s);
}

/* Models and what drafts for them; the draft model is the model itself. */
static const struct pair {
    const char *name, *model, *drafter;
    qn_draft_kind kind;
    uint64_t least; /* accepted tokens */
} pairs[] = {
    { "dflash", "scheduler", "scheduler-dflash", QN_DRAFT_DFLASH, 80 },
    { "model", "scheduler", "scheduler", QN_DRAFT_MODEL, 180 },
    { "mtp", "scheduler-mtp", NULL, QN_DRAFT_MTP, 300 },
};

TEST_EACH(answers_are_the_same, struct pair, pair, pairs)
{
    uint64_t n_tokens = 0, n_accepted = 0;
    model = load_beside(pair->model, pair->drafter, pair->kind, true);
    force(pair->name);
    const size_t n_formats = pair->kind == QN_DRAFT_MTP ? COUNT(formats) : 1; /* a block drafter has fp16 alone */
    for (unsigned i = 0; i < 2 * n_formats; i++)
        expect_answers(pair->kind, formats[i % n_formats], i * MAX_REQUESTS, i % 2 ? 1 : MAX_REQUESTS, &n_tokens,
                       &n_accepted);
    print_message("%s: %d of %d tokens are accepted drafts\n", pair->name, (int)n_accepted, (int)n_tokens);
    assert_true(n_accepted > pair->least);
    qn_model_free(model);
}

/* Greedy text that repeats itself: the head's block is random, and rarely right; of the text that ngram looks up more
 * than 30% of the tokens are accepted drafts. */
static const struct drafter {
    const char *name;
    qn_draft_kind kind;
    size_t percent;
} drafters[] = { { "mtp", QN_DRAFT_MTP, 3 }, { "ngram", QN_DRAFT_NGRAM, 30 } };

TEST_EACH(greedy_text_is_the_same, struct drafter, drafter, drafters)
{
    static struct answer found, expected;
    size_t n_tokens = 0, n_accepted = 0;
    model = load("scheduler-mtp", QN_DRAFT_MTP, true);
    force(drafter->name);
    for (size_t f = 0; f < COUNT(formats); f++) {
        qn_request_params params = request_of(0, &found);
        params.max_tokens = 200;
        params.draft = drafter->kind;
        answer_slowly(&params, formats[f], &expected);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = formats[f]));
        memset(&found, 0, sizeof found);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        label("%s, %s", drafter->name, formats[f]);
        assert_same_logprobs(&found, &expected);
        n_tokens += found.n_tokens;
        n_accepted += found.result.n_accepted;
    }
    print_message("%s: %zu of %zu tokens are accepted drafts\n", drafter->name, n_accepted, n_tokens);
    assert_true(100 * n_accepted >= drafter->percent * n_tokens);
    qn_model_free(model);
}

/* Not to the bit, but the same number of drafts is accepted: wrong hidden states, or rows that were not dropped, would
 * lose most of them. */
TEST_EACH(drafts_are_accepted, struct drafter, drafter, drafters)
{
    static const bool deterministic[] = { true, false };
    uint64_t n_drafted[2], n_accepted[2];
    force(drafter->name);
    for (size_t k = 0; k < 2; k++) {
        static struct answer a;
        model = load("scheduler-mtp", QN_DRAFT_MTP, deterministic[k]);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .draft = drafter->kind));
        for (unsigned i = 0; i < 4 * MAX_REQUESTS; i++) {
            const qn_request_params params = request_of(i, &a);
            memset(&a, 0, sizeof a);
            submit_and_wait(s, &params);
        }
        n_drafted[k] = counters_of(s).drafted_tokens;
        n_accepted[k] = counters_of(s).accepted_tokens;
        qn_scheduler_free(s);
        qn_model_free(model);
        print_message("%s: %d of %d drafted tokens are accepted\n", drafter->name, (int)n_accepted[k],
                      (int)n_drafted[k]);
    }
    assert_true(2 * n_drafted[1] > n_drafted[0]);
    assert_true(n_accepted[1] * n_drafted[0] * 10 > n_accepted[0] * n_drafted[1] * 6);
}

/* A rewound session drafts on: rows of the hidden states that are gone are not used. */
TEST(sessions_go_on)
{
    static struct answer a[2];
    model = load("scheduler-mtp", QN_DRAFT_MTP, true);
    force("mtp");
    for (size_t how = 0; how < 2; how++) {
        qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
        memset(&a[how], 0, sizeof a[how]);
        for (unsigned turn = 0; turn < 3; turn++) {
            qn_request_params params = request_of(0, &a[how]);
            qn_request_result result = QN_REQUEST_RESULT_INIT;
            params.max_tokens = 40;
            params.on_end = NULL;
            params.draft = how ? QN_DRAFT_MTP : QN_DRAFT_OFF;
            assert_ok(qn_generate(session, &params, &result));
            assert_true((result.n_accepted > 0) == (how == 1));
        }
        qn_session_free(session);
    }
    assert_int_equal(a[0].n_tokens, a[1].n_tokens);
    assert_memory_equal(a[0].tokens, a[1].tokens, a[0].n_tokens * sizeof *a[0].tokens);
    qn_model_free(model);
}

int main(void)
{
    device = getenv("QN_TEST_DEVICE") ? getenv("QN_TEST_DEVICE") : "cuda";
    if (qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO, &MODEL_PARAMS(.device = device), &model) == QN_ERR_UNSUPPORTED &&
        !getenv("QN_TEST_DEVICE")) {
        printf("skipped: %s\n", qn_error_text());
        return SKIPPED;
    }
    qn_model_free(model);
    return run_all_tests();
}
