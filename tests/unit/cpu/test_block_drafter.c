/* Block drafters on the CPU: logits of blocks, compared with a float64 program's (tools/golden_dflash.py), for all
 * cache formats; and that they are the same to the bit for any number of threads, any split of the text into steps,
 * beside other sequences, and after rows were dropped. */
#include "helper_golden.h"
#include "helper_model.h"
#include "helper_sanitizers.h"

#include "base/cpu.h"
#include "base/memory.h"

/* As in tools/golden_dflash.py. */
enum { N_LENGTHS = 9, MAX_BLOCK = 16, MAX_IDS = 320, MAX_ROWS = 320, CONTEXT = 512, MAX_VOCAB = 72, SEQUENCES = 3 };
static const size_t lengths[N_LENGTHS] = { 1, 2, 30, 56, 64, 130, 184, 190, 300 };

struct block {
    float logits[MAX_BLOCK][MAX_VOCAB];
};

/* Blocks of few rows for many threads are divided by their keys, too (split-KV). */
struct golden_drafter {
    const char *name, *model, *kv;
    int n_threads;
    double max_error; /* f16 keys and values cause up to 1e-3; codes, of 8 bits, more */
};

#define NARROW "qwen35-dflash.f16", "qwen35-mtp-grafted.f16"
#define WIDE "qwen35-dflash-wide.bf16", "qwen35-mtp-grafted.f16"
#define CAUSAL "qwen3-dflash-causal.f32", "qwen3-yarn.f16"
#define CHAIN "qwen35-dspark.f16", "qwen35-mtp-grafted.f16"
#define BONUS "qwen35-dspark-bonus.bf16", "qwen35-mtp-grafted.f16"
static const struct golden_drafter drafters[] = {
    { NARROW, "f32", 2, 3e-3 },   { NARROW, "f32", 5, 3e-3 }, { NARROW, "f16", 2, 3e-3 },  { NARROW, "aura8", 2, 1e-2 },
    { NARROW, "aura4", 5, 1e-2 }, { WIDE, "f32", 1, 3e-3 },   { WIDE, "f32", 9, 3e-3 },    { WIDE, "f16", 2, 3e-3 },
    { CAUSAL, "f32", 1, 3e-3 },   { CAUSAL, "f32", 2, 3e-3 }, { CAUSAL, "f16", 2, 3e-3 },  { CHAIN, "f32", 1, 3e-3 },
    { CHAIN, "f16", 3, 3e-3 },    { BONUS, "f32", 2, 3e-3 },  { BONUS, "aura8", 2, 1e-2 },
};

struct drafting {
    struct fixture x;
    qn_gguf *drafter;
    size_t n_rows;  /* of a block */
    size_t n_known; /* of them, rows without a proposal: that of the last token, or none */
};

static qn_token ids[MAX_IDS];
static float *unused; /* [MAX_ROWS, n_vocab] logits of the model */

static void set_up(struct drafting *d, const char *model, const char *drafter, int n_threads)
{
    struct fixture *x = &d->x;
    char path[512];
    unsigned cpu;
    *d = (struct drafting){ 0 };
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, model);
    assert_ok(qn_gguf_open(path, &x->file));
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, drafter);
    assert_ok(qn_gguf_open(path, &d->drafter));
    assert_ok(qn_cpu_features(&cpu));
    qn_kernels_init(&x->kernels, cpu);
    build_executor_with(x, d->drafter, n_threads, MAX_ROWS, CONTEXT);
    d->n_rows = x->plan.head.block;
    d->n_known = !x->plan.head.from_anchor;
    assert_in_range(d->n_rows, 2, MAX_BLOCK);
    assert_in_range(x->plan.n_vocab, 1, MAX_VOCAB);
    const size_t n_ids = read_golden_ids(model, ids, MAX_IDS);
    for (size_t i = n_ids; i < MAX_IDS; i++)
        ids[i] = ids[i - n_ids];
    assert_ok(qn_alloc(&unused, MAX_ROWS, MAX_VOCAB * sizeof *unused, "test"));
}

static void free_all(struct drafting *d)
{
    qn_free(unused);
    tear_down(&d->x);
    qn_gguf_close(d->drafter);
}

/* Evaluates tokens [begin, end) in one step. */
static void evaluate(struct drafting *d, struct memory *m, const qn_token *tokens, size_t begin, size_t end)
{
    qn_row rows[MAX_ROWS];
    uint32_t last = (uint32_t)(end - begin) - 1;
    for (size_t i = begin; i < end; i++)
        rows[i - begin] = row_of_memory(m, tokens[i], (uint32_t)i);
    const qn_step step = {
        .rows = rows, .n_rows = end - begin, .logit_rows = &last, .n_logit_rows = 1, .logits = unused
    };
    prepare_memory(m, end - begin);
    qn_executor_run(d->x.executor, &step);
    append_memory(m, end);
}

static void evaluate_pieces(struct drafting *d, struct memory *m, const qn_token *tokens, size_t from, size_t length,
                            size_t piece)
{
    for (size_t at = from; at < length; at += piece)
        evaluate(d, m, tokens, at, length - at < piece ? length : at + piece);
}

/* The rows of a block after `length` tokens: in a cache of codes it ends with the page of its first row. */
static size_t rows_after(const struct drafting *d, const struct memory *m, size_t length)
{
    const size_t left = QN_PAGE - length % QN_PAGE;
    return m->of->format->codecs.keys && left < d->n_rows ? left : d->n_rows;
}

/* Adds to the logits of each token those of the chain for the likeliest token before it, for n sequences together. */
static void add_chain(struct drafting *d, struct memory *const *m, size_t n, size_t length, size_t n_tokens,
                      struct block *const *found)
{
    static const uint32_t logit_rows[SEQUENCES] = { 0, 1, 2 };
    float links[SEQUENCES * MAX_VOCAB];
    qn_row rows[SEQUENCES];
    const size_t n_vocab = d->x.plan.n_vocab;
    for (size_t i = 0; i < n_tokens; i++) {
        for (size_t k = 0; k < n; k++) {
            qn_token before = i ? 0 : ids[length];
            for (size_t t = 1; i && t < n_vocab; t++)
                before = found[k]->logits[i - 1][t] > found[k]->logits[i - 1][before] ? (qn_token)t : before;
            rows[k] = row_of_memory(m[k], before, (uint32_t)(length + i));
        }
        const qn_step step = { .is_draft = true,
                               .is_chain = true,
                               .rows = rows,
                               .n_rows = n,
                               .logit_rows = logit_rows,
                               .n_logit_rows = n,
                               .logits = links };
        qn_executor_run(d->x.executor, &step);
        for (size_t k = 0; k < n; k++)
            for (size_t t = 0; t < n_vocab; t++)
                found[k]->logits[i][t] += links[k * n_vocab + t];
    }
}

/* One draft step for n sequences, each after `length` tokens and with the token ids[length]. */
static void draft(struct drafting *d, struct memory *const *m, size_t n, size_t length, struct block *const *found)
{
    static float logits[SEQUENCES * MAX_BLOCK * MAX_VOCAB];
    qn_row rows[SEQUENCES * MAX_BLOCK];
    uint32_t logit_rows[SEQUENCES * MAX_BLOCK];
    const size_t n_rows = rows_after(d, m[0], length), n_vocab = d->x.plan.n_vocab;
    size_t n_logits = 0;
    assert_in_range(n, 1, SEQUENCES);
    for (size_t k = 0; k < n; k++) {
        prepare_memory(m[k], n_rows);
        for (size_t i = 0; i < n_rows; i++) {
            const qn_token token = i ? d->x.plan.head.mask_token : ids[length];
            rows[k * n_rows + i] = row_of_memory(m[k], token, (uint32_t)(length + i));
            if (i >= d->n_known)
                logit_rows[n_logits++] = (uint32_t)(k * n_rows + i);
        }
    }
    const qn_step step = { .is_draft = true,
                           .rows = rows,
                           .n_rows = n * n_rows,
                           .logit_rows = logit_rows,
                           .n_logit_rows = n_logits,
                           .logits = logits };
    qn_executor_run(d->x.executor, &step);
    for (size_t k = 0; k < n; k++) {
        memset(found[k], 0, sizeof *found[k]);
        const size_t n_tokens = n_rows - d->n_known;
        for (size_t i = 0; i < n_tokens; i++)
            memcpy(found[k]->logits[i], logits + (k * n_tokens + i) * n_vocab, n_vocab * sizeof(float));
    }
    if (d->x.plan.head.chain)
        add_chain(d, m, n, length, n_rows - d->n_known, found);
    for (size_t k = 0; k < n; k++)
        append_memory(m[k], length);
}

static void draft_one(struct drafting *d, struct memory *m, size_t length, struct block *found)
{
    draft(d, &m, 1, length, &found);
}

TEST_EACH(blocks_have_the_logits_of_the_reference, struct golden_drafter, of, drafters)
{
    struct drafting d;
    struct block found;
    set_up(&d, of->model, of->name, of->n_threads);
    const size_t n_vocab = d.x.plan.n_vocab, n = d.n_rows - d.n_known;
    static float golden[N_LENGTHS][MAX_BLOCK * MAX_VOCAB];
    double worst = 0;
    FILE *file = open_golden(of->name, ".blocks.f32");
    for (size_t i = 0; i < N_LENGTHS; i++)
        assert_int_equal(fread(golden[i], sizeof(float), n * n_vocab, file), n * n_vocab);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        struct memory m = new_memory_as(&d.x, of->kv);
        evaluate_pieces(&d, &m, ids, 0, lengths[i], 50);
        draft_one(&d, &m, lengths[i], &found);
        double error = 0;
        if (rows_after(&d, &m, lengths[i]) < d.n_rows) { /* a shorter block has other logits */
            assert_true(lengths[i] % QN_PAGE + d.n_rows > QN_PAGE);
            free_memory(&m);
            continue;
        }
        for (size_t k = 0; k < n; k++)
            error += mean_relative_error(found.logits[k], golden[i] + k * n_vocab, 1, n_vocab) / (double)n;
        worst = error > worst ? error : worst;
        label("%s, %s, %zu tokens: error %.2e", of->name, of->kv, lengths[i], error);
        assert_true(error <= of->max_error);
        free_memory(&m);
    }
    print_message("%s, %s: %.2e\n", of->name, of->kv, worst);
    free_all(&d);
}

/* ---- The same bits ---- */

static const char *const formats[] = { "f16", "f32", "aura4" };

static const struct golden_drafter split_drafters[] = {
    { NARROW, NULL, 0, 0 },
    { WIDE, NULL, 0, 0 },
    { CHAIN, NULL, 0, 0 },
};

enum { APART = QN_TEST_SANITIZED ? 9 : 3 };

/* What all others are compared with. */
static bool is_first(size_t t, size_t p)
{
    return t == 0 && p == 0;
}

/* Splits, threads, other sequences of a step: a part of the combinations. */
TEST_EACH(blocks_do_not_depend_on_steps, struct golden_drafter, of, split_drafters)
{
    static const int threads[] = { 1, 3, 9 };
    static const size_t pieces[] = { 300, 1, 2, 15, 17, 64, 65 };
    static struct block expected[COUNT(formats)][N_LENGTHS], found, beside;
    for (size_t t = 0; t < COUNT(threads); t++) {
        struct drafting d;
        set_up(&d, of->model, of->name, threads[t]);
        for (size_t f = 0; f < COUNT(formats); f++)
            for (size_t p = 0; p < COUNT(pieces); p++)
                for (size_t i = is_first(t, p) ? 0 : (t + f + p) % APART; i < N_LENGTHS;
                     i += is_first(t, p) ? 1 : APART) {
                    struct memory m = new_memory_as(&d.x, formats[f]), other = new_memory_as(&d.x, formats[f]);
                    label("%s, %d threads, pieces of %zu, %zu tokens", formats[f], threads[t], pieces[p], lengths[i]);
                    evaluate_pieces(&d, &m, ids, 0, lengths[i], pieces[p]);
                    evaluate_pieces(&d, &other, ids, 0, lengths[i], 50);
                    draft(&d, (struct memory *[]){ &other, &m }, 2, lengths[i], (struct block *[]){ &beside, &found });
                    assert_memory_equal(&beside, &found, sizeof found);
                    draft_one(&d, &m, lengths[i], &found); /* again, and of fewer rows */
                    assert_memory_equal(&beside, &found, sizeof found);
                    if (is_first(t, p))
                        expected[f][i] = found;
                    assert_memory_equal(&found, &expected[f][i], sizeof found);
                    free_memory(&other);
                    free_memory(&m);
                }
        free_all(&d);
    }
}

/* Rows of drafted tokens that were refused, and draft steps before, leave nothing behind. */
TEST_EACH(dropped_rows_leave_nothing, struct golden_drafter, of, split_drafters)
{
    static struct block expected, found;
    static qn_token other[MAX_IDS];
    struct drafting d;
    set_up(&d, of->model, of->name, 2);
    for (size_t i = 0; i < MAX_IDS; i++)
        other[i] = (ids[i] + 1) % MAX_VOCAB;
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t length = 120; length < 140; length++) {
            struct memory m = new_memory_as(&d.x, formats[f]), once = new_memory_as(&d.x, formats[f]);
            label("%s, %zu tokens", formats[f], length);
            evaluate_pieces(&d, &once, ids, 0, length, 40);
            draft_one(&d, &once, length, &expected);
            evaluate_pieces(&d, &m, ids, 0, 118, 40);
            for (size_t at = 118; at < length; at++) {
                draft_one(&d, &m, at, &found);
                const size_t most = qn_sequence_max_drafted(&m.of->sequence, 1), n = most < 7 ? most : 7;
                memcpy(other + at, ids + at, sizeof *ids);
                evaluate(&d, &m, other, at, at + 1 + n);
                qn_memory_truncate(&m.of->base, at + 1);
                qn_cpu_view(m.of, 0);
            }
            draft_one(&d, &m, length, &found);
            assert_memory_equal(&found, &expected, sizeof found);
            free_memory(&once);
            free_memory(&m);
        }
    free_all(&d);
}
