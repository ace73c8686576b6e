/* The draft head on the CPU: logits of chains of drafts, compared with a float64 program's (tools/reference_logits.py),
 * for plain, grafted and rotated blocks and all cache formats; and that they are the same to the bit for any number of
 * threads, any split of the text into steps, beside other sequences, after rows were dropped, and with the block in a
 * file of its own. */
#include "helper_change.h"
#include "helper_golden.h"
#include "helper_model.h"

#include "base/cpu.h"
#include "base/memory.h"

#include <math.h>
#include <unistd.h>

/* As in tools/make_golden_models.py. */
enum { N_DRAFTED = 4, N_LENGTHS = 6, MAX_IDS = 256, MAX_ROWS = 256, CONTEXT = 256, MAX_VOCAB = 72 };
static const size_t lengths[N_LENGTHS] = { 1, 2, 63, 64, 130, 198 };

struct chain {
    float logits[N_DRAFTED][MAX_VOCAB];
};

struct golden_head {
    const char *name, *kv;
    double max_error; /* f16 keys and values cause up to 1e-3; codes of 4 bits in the model's layers, which change the
                         hidden states, 1e-2: the block has codes of 8 bits */
};

static const struct golden_head heads[] = {
    { "qwen35-mtp.bf16", "f32", 3e-3 },          { "qwen35-mtp.bf16", "f16", 3e-3 },
    { "qwen35-mtp-grafted.f16", "f32", 3e-3 },   { "qwen35-mtp-grafted.f16", "f16", 3e-3 },
    { "qwen35-mtp-grafted.f16", "aura8", 3e-3 }, { "qwen35-mtp-grafted.f16", "aura4", 2e-2 },
    { "qwen35-mtp-own.f16", "f32", 3e-3 },       { "qwen35-mtp-own.f16", "f16", 3e-3 },
    { "qwen35-mtp-own.f16", "aura4", 2e-2 },
};

static qn_token ids[MAX_IDS];
static float *unused; /* [MAX_ROWS, n_vocab] logits of the model */

static void golden_path(const char *golden, char path[512])
{
    snprintf(path, 512, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
}

/* drafter: the file of the block; NULL: that of the model at `path`. */
static void set_up_with(struct fixture *x, const char *golden, const char *path, const qn_gguf *drafter, int n_threads)
{
    unsigned cpu;
    *x = (struct fixture){ 0 };
    assert_ok(qn_gguf_open(path, &x->file));
    assert_ok(qn_cpu_features(&cpu));
    qn_kernels_init(&x->kernels, cpu);
    build_executor_with(x, drafter, n_threads, MAX_ROWS, CONTEXT);
    assert_true(x->plan.head.draft > 0);
    assert_int_equal(x->plan.n_vocab, MAX_VOCAB);
    assert_true(read_golden_ids(golden, ids, MAX_IDS) > lengths[N_LENGTHS - 1] + N_DRAFTED);
    assert_ok(qn_alloc(&unused, MAX_ROWS, MAX_VOCAB * sizeof *unused, "test"));
}

static void set_up(struct fixture *x, const char *golden, int n_threads)
{
    char path[512];
    golden_path(golden, path);
    set_up_with(x, golden, path, NULL, n_threads);
}

static void free_all(struct fixture *x)
{
    qn_free(unused);
    tear_down(x);
}

static bool without_pairs;

/* Evaluates ids [begin, end) in one step; `other`, if it is not NULL, gets the ids before `begin` of the same step. */
static void evaluate(struct fixture *x, struct memory *m, const qn_token *tokens, size_t begin, size_t end)
{
    qn_row rows[MAX_ROWS];
    uint32_t last = (uint32_t)(end - begin) - 1;
    for (size_t i = begin; i < end; i++)
        rows[i - begin] = row_of_memory(m, tokens[i], (uint32_t)i);
    const qn_step step = { .without_pairs = without_pairs,
                           .rows = rows,
                           .n_rows = end - begin,
                           .logit_rows = &last,
                           .n_logit_rows = 1,
                           .logits = unused };
    prepare_memory(m, end - begin);
    qn_executor_run(x->executor, &step);
    append_memory(m, end);
}

static void evaluate_pieces(struct fixture *x, struct memory *m, const qn_token *tokens, size_t from, size_t length,
                            size_t piece)
{
    for (size_t at = from; at < length; at += piece)
        evaluate(x, m, tokens, at, length - at < piece ? length : at + piece);
}

static qn_token likeliest(const float *logits)
{
    qn_token best = 0;
    for (qn_token i = 1; i < MAX_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Draft steps for n sequences, each after `length` tokens and with the token ids[length]. The tokens of the chains are
 * the likeliest ones by `golden`, or by what is found if it is NULL. */
static void draft(struct fixture *x, struct memory *const *m, size_t n, size_t length, const struct chain *golden,
                  struct chain *const *found)
{
    float logits[4][MAX_VOCAB];
    qn_row rows[4];
    static const uint32_t logit_rows[] = { 0, 1, 2, 3 };
    qn_token token = ids[length];
    assert_in_range(n, 1, 4);
    for (size_t k = 0; k < n; k++)
        prepare_memory(m[k], 1 + N_DRAFTED);
    for (size_t i = 0; i < N_DRAFTED; i++) {
        for (size_t k = 0; k < n; k++)
            rows[k] = row_of_memory(m[k], token, (uint32_t)(length + i));
        const qn_step step = { .is_draft = true,
                               .rows = rows,
                               .n_rows = n,
                               .logit_rows = logit_rows,
                               .n_logit_rows = n,
                               .logits = logits[0] };
        qn_executor_run(x->executor, &step);
        for (size_t k = 0; k < n; k++)
            memcpy(found[k]->logits[i], logits[k], sizeof logits[k]);
        token = likeliest(golden ? golden->logits[i] : logits[0]);
    }
    for (size_t k = 0; k < n; k++)
        append_memory(m[k], length);
}

static void draft_one(struct fixture *x, struct memory *m, size_t length, const struct chain *golden,
                      struct chain *found)
{
    draft(x, &m, 1, length, golden, &found);
}

static struct chain *read_chains(const char *name)
{
    struct chain *chains;
    FILE *file = open_golden(name, ".drafts.f32");
    assert_ok(qn_alloc(&chains, N_LENGTHS, sizeof *chains, "test"));
    assert_int_equal(fread(chains, sizeof *chains, N_LENGTHS, file), N_LENGTHS);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return chains;
}

TEST_EACH(chains_have_the_logits_of_the_reference, struct golden_head, head, heads)
{
    struct fixture x;
    set_up(&x, head->name, 2);
    struct chain *golden = read_chains(head->name), found;
    double worst = 0;
    for (size_t i = 0; i < N_LENGTHS; i++) {
        struct memory m = new_memory_as(&x, head->kv);
        evaluate_pieces(&x, &m, ids, 0, lengths[i], 50);
        draft_one(&x, &m, lengths[i], &golden[i], &found);
        const double error = mean_relative_error(found.logits[0], golden[i].logits[0], N_DRAFTED, MAX_VOCAB);
        worst = error > worst ? error : worst;
        label("%s, %s, %zu tokens: error %.2e", head->name, head->kv, lengths[i], error);
        assert_true(error <= head->max_error);
        free_memory(&m);
    }
    print_message("%s, %s: %.2e\n", head->name, head->kv, worst);
    qn_free(golden);
    free_all(&x);
}

/* ---- The same bits ---- */

static const char *const formats[] = { "f16", "f32", "aura4" };

/* Splits, threads, other sequences of a step. */
TEST(chains_do_not_depend_on_steps)
{
    static const int threads[] = { 1, 2, 3 };
    static const size_t pieces[] = { 198, 1, 2, 15, 16, 17, 33, 64, 65 };
    static struct chain expected[COUNT(formats)][N_LENGTHS], found, beside;
    bool is_known = false;
    for (size_t t = 0; t < COUNT(threads); t++) {
        struct fixture x;
        set_up(&x, "qwen35-mtp-grafted.f16", threads[t]);
        for (size_t f = 0; f < COUNT(formats); f++)
            for (size_t p = 0; p < COUNT(pieces); p++)
                for (size_t i = 0; i < N_LENGTHS; i++) {
                    struct memory m = new_memory_as(&x, formats[f]), other = new_memory_as(&x, formats[f]);
                    label("%s, %d threads, pieces of %zu, %zu tokens", formats[f], threads[t], pieces[p], lengths[i]);
                    evaluate_pieces(&x, &m, ids, 0, lengths[i], pieces[p]);
                    evaluate_pieces(&x, &other, ids, 0, lengths[i], 50);
                    draft(&x, (struct memory *[]){ &other, &m }, 2, lengths[i], NULL,
                          (struct chain *[]){ &beside, &found });
                    assert_memory_equal(&beside, &found, sizeof found);
                    if (!is_known && p == 0)
                        expected[f][i] = found;
                    assert_memory_equal(&found, &expected[f][i], sizeof found);
                    free_memory(&other);
                    free_memory(&m);
                }
        is_known = true;
        free_all(&x);
    }
}

/* Rows of drafted tokens that were refused, and draft steps before, leave nothing behind. */
TEST(dropped_rows_leave_nothing)
{
    static struct chain expected, found;
    static qn_token other[MAX_IDS];
    struct fixture x;
    set_up(&x, "qwen35-mtp-grafted.f16", 2);
    for (size_t i = 0; i < MAX_IDS; i++)
        other[i] = (ids[i] + 1) % MAX_VOCAB;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t length = 120; length < 140; length++) {
            struct memory m = new_memory_as(&x, formats[f]), once = new_memory_as(&x, formats[f]);
            label("%s, %zu tokens", formats[f], length);
            evaluate_pieces(&x, &once, ids, 0, length, 40);
            draft_one(&x, &once, length, NULL, &expected);
            evaluate_pieces(&x, &m, ids, 0, 118, 40);
            for (size_t at = 118; at < length; at++) {
                draft_one(&x, &m, at, NULL, &found);
                const size_t most = qn_sequence_max_drafted(&m.of->sequence, 1), n = most < 7 ? most : 7;
                memcpy(other + at, ids + at, sizeof *ids);
                evaluate(&x, &m, other, at, at + 1 + n);
                qn_memory_truncate(&m.of->base, at + 1);
                qn_cpu_view(m.of, 0);
            }
            draft_one(&x, &m, length, NULL, &found);
            assert_memory_equal(&found, &expected, sizeof found);
            free_memory(&once);
            free_memory(&m);
        }
    free_all(&x);
}

/* Steps without pairs have the logits of the model. Their rows have zeros, whatever was in the pages before; drafts
 * after them are the same for any split, and other ones than with all pairs. */
TEST(pairs_are_left_out)
{
    enum { LENGTH = 198 };
    static const size_t pieces[] = { LENGTH, 1, 15, 16, 63, 64, 65 }, begins[] = { 0, 1, 63, 64, 100, LENGTH };
    static struct chain expected, found, whole;
    for (int n_threads = 1; n_threads <= 3; n_threads += 2)
        for (size_t f = 0; f < COUNT(formats); f++) {
            struct fixture x;
            set_up(&x, "qwen35-mtp-grafted.f16", n_threads);
            for (size_t b = 0; b < COUNT(begins); b++)
                for (size_t p = 0; p < COUNT(pieces); p++) {
                    float logits[MAX_VOCAB];
                    struct memory all = new_memory_as(&x, formats[f]);
                    label("%s, %d threads, pairs from %zu, pieces of %zu", formats[f], n_threads, begins[b], pieces[p]);
                    evaluate_pieces(&x, &all, ids, 0, LENGTH, pieces[p]);
                    memcpy(logits, unused, sizeof logits);
                    draft_one(&x, &all, LENGTH, NULL, &whole);
                    free_memory(&all); /* the next one gets its pages */
                    struct memory m = new_memory_as(&x, formats[f]);
                    without_pairs = true;
                    evaluate_pieces(&x, &m, ids, 0, begins[b], pieces[p]);
                    without_pairs = false;
                    evaluate_pieces(&x, &m, ids, begins[b], LENGTH, pieces[p]);
                    if (begins[b] < LENGTH || pieces[p] == LENGTH)
                        assert_memory_equal(unused, logits, sizeof logits);
                    draft_one(&x, &m, LENGTH, NULL, &found);
                    expected = p ? expected : found;
                    assert_memory_equal(&found, &expected, sizeof found);
                    assert_true(!memcmp(&found, &whole, sizeof found) == !begins[b]);
                    for (size_t i = 0; i < MAX_VOCAB; i++)
                        assert_true(isfinite(found.logits[N_DRAFTED - 1][i]));
                    free_memory(&m);
                }
            free_all(&x);
        }
}

/* ---- Blocks of other files ---- */

/* The model without its block, or with it, and the block alone, with its number or as block 0. */
static const struct apart {
    const char *name, *golden;
    struct change model, block;
} files_apart[] = {
    { "plain", "qwen35-mtp.bf16", { .strip = true }, { .alone = true } },
    { "a rotated model", "qwen35-mtp-grafted.f16", { .strip = true }, { .alone = true } },
    { "in place of the model's", "qwen35-mtp-grafted.f16", { 0 }, { .alone = true } },
    { "block 0",
      "qwen35-mtp-grafted.f16",
      { .strip = true },
      { .alone = true, .as_first = true, .without_key = "prism.hadamard.weight_names" } },
    { "an embedding of the block's own",
      "qwen35-mtp.bf16",
      { .strip = true },
      { .alone = true, .renamed = "token_embd.weight", .to = "blk.3.nextn.embed_tokens.weight" } },
    { "an output matrix of the block's own",
      "qwen35-mtp.bf16",
      { .strip = true },
      { .alone = true, .renamed = "token_embd.weight", .to = "blk.3.nextn.shared_head_head.weight" } },
};

/* The chains of `golden`, with the block of a drafter's file or of the model's. */
static void draft_all(const char *golden, const char *path, const qn_gguf *drafter, struct chain found[N_LENGTHS])
{
    struct fixture x;
    set_up_with(&x, golden, path, drafter, 2);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        struct memory m = new_memory_as(&x, "f16");
        evaluate_pieces(&x, &m, ids, 0, lengths[i], 50);
        draft_one(&x, &m, lengths[i], NULL, &found[i]);
        free_memory(&m);
    }
    free_all(&x);
}

TEST_EACH(blocks_of_other_files_have_the_same_logits, struct apart, apart, files_apart)
{
    static struct chain expected[N_LENGTHS], found[N_LENGTHS];
    char path[512], model[64], block[64];
    qn_gguf *drafter;
    golden_path(apart->golden, path);
    snprintf(model, sizeof model, "/tmp/quern-test-head-%d-model", (int)getpid());
    snprintf(block, sizeof block, "/tmp/quern-test-head-%d-block", (int)getpid());
    change_file(path, model, &apart->model);
    change_file(path, block, &apart->block);
    assert_ok(qn_gguf_open(block, &drafter));
    label("%s", apart->name);
    draft_all(apart->golden, path, NULL, expected);
    draft_all(apart->golden, model, drafter, found);
    assert_memory_equal(found, expected, sizeof found);
    qn_gguf_close(drafter);
    unlink(model);
    unlink(block);
}
