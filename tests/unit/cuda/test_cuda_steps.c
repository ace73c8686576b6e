/* Steps on a CUDA device, with a fake driver: what is launched for rows of many sequences, what the inputs are, which
 * steps share a graph, and errors. On a GPU, test_gpu_sessions compares results with those of each sequence alone. */
#include "helper_cuda_steps.h"

#include <math.h>

/* ---- What a plan launches, and its inputs ---- */

/* The address of the step's inputs. */
static uint64_t inputs(void)
{
    return fixture.model->workspace.inputs;
}

static int attention_layers(void)
{
    int n = 0;
    for (size_t i = 0; i < fixture.cuda.plan.n_ops; i++)
        n += fixture.cuda.plan.ops[i].kind == QN_OP_ATTENTION;
    return n;
}

/* All layers' attention has the same buffers. */
static const qn_op *attention_of(void)
{
    const qn_op *op = fixture.cuda.plan.ops;
    while (op->kind != QN_OP_ATTENTION)
        op++;
    return op;
}

/* GEMVs and GEMMs of a step of many rows, logits included. */
static int gemms(void)
{
    int n = 0;
    for (size_t i = 0; i < fixture.cuda.plan.n_ops; i++)
        n += (int)(fixture.cuda.plan.ops[i].kind == QN_OP_EMBED ? 0 : fixture.model->weights.ops[i].n_gemms);
    return n;
}

/* Whether a matmul of operation i, with few rows, reads these activations. */
static bool reads_acts(size_t i, int acts)
{
    bool reads = false;
    for (size_t g = 0; g < fixture.model->weights.ops[i].n_gemms; g++)
        reads = reads || (fixture.model->weights.ops[i].gemms[g].group.acts == acts &&
                          !qn_cuda_reads_rows(&fixture.model->weights, &fixture.cuda.plan.ops[i - 1],
                                              &fixture.model->weights.ops[i].gemms[g]));
    return reads;
}

/* Activations of a step of up to 64 rows that no GEMM computes; those that are read in two layouts are written by one
 * launch. */
static int acts(void)
{
    int n = 0;
    for (size_t i = 1; i < fixture.cuda.plan.n_ops; i++) {
        const qn_op_acts *outs = qn_op_acts_of(&fixture.cuda.plan.ops[i]);
        for (size_t a = 0; outs && !fixture.model->weights.ops[i - 1].fuses_next && a < outs->n; a++)
            n += reads_acts(i + 1, outs->at[a]);
    }
    return n;
}

/* Matmuls of fp16 by rows of floats: those of alpha and beta in recurrent layers, where they are not quantised. */
static int row_gemms(void)
{
    int n = 0;
    for (size_t i = 0; i < fixture.cuda.plan.n_ops; i++)
        for (size_t g = 0; g < fixture.model->weights.ops[i].n_gemms; g++)
            n += fixture.cuda.plan.ops[i].kind == QN_OP_MATMUL &&
                 fixture.model->weights.ops[i].gemms[g].tiled_matrix.tiles.bits == 16;
    return n;
}

static int count_gemms(int from)
{
    const struct fake_launch *last = NULL;
    return count("qn_matmul_gemm_few", from, &last) + count("qn_matmul_gemm", from, &last) +
           count("qn_matmul_gemv", from, &last) + count("qn_matmul_gemv_norm", from, &last);
}

/* The inputs on the device, which is memory of the host here. */
static const uint32_t *input(size_t offset)
{
    return (const uint32_t *)(uintptr_t)(inputs() + offset);
}

static const uint64_t *addresses(size_t offset)
{
    return (const uint64_t *)(uintptr_t)(inputs() + offset);
}

/* ---- The tests ---- */

static const char *const models[] = { "qwen3.q1_0", "qwen35.q1_0", "qwen35-rotated.ptq1_0" };
enum { N_MODELS = COUNT(models) };

/* The inputs of a step of n sequences from position 10 on. */
static void expect_inputs(size_t n, size_t bucket)
{
    const qn_gpu_inputs in = qn_gpu_inputs_of(bucket, bucket, 0, 0);
    for (size_t row = 0; row < bucket; row++) {
        const bool real = row < n;
        assert_int_equal(input(in.tokens)[row], real ? row + 10 + row : 0);
        assert_int_equal(input(in.positions)[row], real ? 10 + row : 0);
        assert_int_equal(input(in.sequences)[row], real ? row : QN_ATTENTION_NO_SESSION);
        assert_int_equal(input(in.cu_seqlens)[row + 1], real ? row + 1 : n);
        assert_int_equal(input(in.first_positions)[row], real ? 10 + row : 0);
        assert_int_equal(input(in.state_from)[row], real ? 3000 + row : 0);
        assert_int_equal(input(in.state_to)[row], real ? 4000 + row : 0);
        assert_int_equal(input(in.open_chunks)[row], real ? 5000 + row : 0);
        assert_int_equal(addresses(in.kv_tables)[row], real ? 1000 + row : 0);
        assert_int_equal(addresses(in.f16_tables)[row], real ? 2000 + row : 0);
    }
}

/* Segments of phases of the plan for several rows; *n_gemms: matmuls of launched operations, and logits. */
static int segments_of_rows(int *n_gemms)
{
    const qn_cuda_decode_plan *plan = &fixture.model->graphs->rows_plan;
    int n = 0;
    *n_gemms = 1;
    for (size_t i = 0; i < plan->n_segments; i++) {
        n += plan->segments[i].n_phases > 0;
        if (plan->segments[i].op && !plan->segments[i].n_phases) /* operation 0 is the embedding */
            *n_gemms += (int)fixture.model->weights.ops[plan->segments[i].op].n_gemms;
    }
    return n;
}

/* Without wgmma up to 8 rows, of models with recurrent layers up to 4, are launches of the persistent decode kernel, one
 * where it supports all layers, which reads what it computes from the inputs. */
TEST(decode_in_phases)
{
    static const size_t cases[][2] = { { 2, 2 }, { 3, 4 }, { 8, 8 } };
    for (size_t i = 0; i < N_MODELS * 3; i++) {
        const size_t n = cases[i % 3][0], bucket = cases[i % 3][1];
        const struct fake_launch *persistent = NULL, *other = NULL;
        label("%s, %zu sequences", models[i / 3], n);
        set_up(models[i / 3], 0, n);
        if (n > 4 && fixture.cuda.plan.recurrent.n_v_heads) {
            tear_down();
            continue;
        }
        fixture.model->workspace.common->matmul.wgmma = false; /* with bit planes launches are faster */
        const struct rows rows = decode_of(0, n, 10);
        assert_ok(run(&rows));
        assert_int_equal(fake.graph_launches, 1);
        int n_gemms;
        const int n_segments = segments_of_rows(&n_gemms);
        assert_true(n_segments > 0 && (i >= 3 || (n_segments == 1 && n_gemms == 1)));
        assert_int_equal(count("qn_persistent_decode_rows", 0, &persistent), n_segments);
        assert_int_equal(count("qn_attention_decode", 0, &other), 0);
        assert_int_equal(count_gemms(0), n_gemms);
        for (int k = 0; k < fake.launches; k++) /* phases read no activations that a GEMM has computed */
            if (!strcmp(launch(k)->function, "qn_matmul_gemm_few"))
                assert_int_equal(((const qn_matmul_few_args *)(const void *)launch(k)->args)->next.op, 0);
        const qn_gpu_inputs in = qn_gpu_inputs_of(bucket, bucket, 0, 0);
        const qn_persistent_args *args = (const void *)persistent->args;
        assert_int_equal(args->n_rows, bucket);
        assert_int_equal(args->positions, inputs() + in.positions);
        assert_int_equal(args->sequences, inputs() + in.sequences);
        assert_true(n_segments > 1 || (args->phases == fixture.model->graphs->rows_plan.memory.address &&
                                       args->n_phases == fixture.model->graphs->rows_plan.n_phases));
        if (fixture.cuda.plan.recurrent.n_v_heads) {
            assert_int_equal(args->state_positions, inputs() + in.state_positions);
            assert_int_equal(args->state_from, inputs() + in.state_from);
            assert_int_equal(args->open_slots, inputs() + in.open_chunks);
        }
        expect_inputs(n, bucket);
        tear_down();
    }
}

/* More rows, and any number where launches multiply bit planes, go through each matmul and each layer's attention
 * together, and the padding of their bucket is no sequence. */
TEST(decode_of_many)
{
    static const struct {
        size_t n, bucket;
    } cases[] = { { 2, 2 }, { 9, 16 }, { 33, 48 } };
    for (size_t i = 0; i < N_MODELS * 3; i++) {
        const size_t n = cases[i % 3].n, bucket = cases[i % 3].bucket;
        const struct fake_launch *attention = NULL, *other = NULL;
        label("%s, %zu sequences", models[i / 3], n);
        set_up(models[i / 3], 0, n);
        const struct rows rows = decode_of(0, n, 10);
        assert_ok(run(&rows));
        assert_int_equal(fake.graph_launches, 1);
        assert_int_equal(count("qn_attention_decode", 0, &attention), attention_layers());
        assert_int_equal(count("qn_matmul_embed", 0, &other), 1);
        assert_int_equal(count("qn_elementwise_gather", 0, &other), 0);
        assert_int_equal(count_gemms(0), gemms());
        assert_int_equal(count("qn_matmul_quantize_acts", 0, &other), acts());
        assert_int_equal(count("qn_matmul_gemv_norm", 0, &other), row_gemms());
        assert_int_equal(count("qn_norm_rows", 0, &other) + count("qn_hadamard_tiles", 0, &other), 0);
        const qn_gpu_inputs in = qn_gpu_inputs_of(bucket, bucket, 0, 0);
        const qn_attention_decode_args *args = (const void *)attention->args;
        assert_int_equal(args->n_rows, bucket);
        assert_int_equal(args->mask.sessions, inputs() + in.sequences);
        assert_int_equal(args->mask.positions, inputs() + in.positions);
        assert_int_equal(args->cache.tables, inputs() + in.kv_tables);
        assert_int_equal(args->pdl_prefetch, 1);
        assert_int_equal(args->counters, fixture.model->workspace.attention_counters.address);
        const qn_op *op = attention_of();
        assert_int_equal(args->out, fixture.model->workspace.buffers[op->attention.out].address);
        assert_int_equal(args->gates, op->attention.shape.gated
                                          ? fixture.model->workspace.buffers[op[1].attention_combine.queries].address
                                          : 0);
        for (size_t j = 0; j < bucket * args->n_heads; j++)
            assert_int_equal(((const uint32_t *)(uintptr_t)args->counters)[j], 0);
        expect_inputs(n, bucket);
        tear_down();
    }
}

/* Whether attention prepares the rows of a decode step, with these arguments; else a launch before it does. */
static bool expect_prepared_rows(const qn_attention_decode_args *args)
{
    const qn_op *op = attention_of() - 1;
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const struct fake_launch *other = NULL;
    const bool prepares =
        qn_attention_gpu_prepares_rows(&qn_cuda_format_of(fixture.model->flights.pieces[0].memory)->attention,
                                       args->n_rows, h->n_rot, h->rope == QN_ROPE_TYPE_NORM);
    const int from = prepares ? op->qk_norm_rope_store.queries : op->qk_norm_rope_store.out;
    assert_int_equal(count("qn_rope_qk_norm_store", 0, &other), prepares ? 0 : attention_layers());
    assert_int_equal(args->queries, fixture.model->workspace.buffers[from].address);
    assert_int_equal(args->query_stride, fixture.cuda.plan.buffers[from].width);
    assert_int_equal(args->query_head_stride, prepares ? fixture.cuda.plan.buffers[from].width / h->n_heads : 0);
    assert_int_equal(args->new_rows.keys,
                     prepares ? fixture.model->workspace.buffers[op->qk_norm_rope_store.keys].address : 0);
    if (!prepares)
        return false;
    assert_int_equal(args->new_rows.values, fixture.model->workspace.buffers[op->qk_norm_rope_store.values].address);
    assert_int_equal(args->new_rows.cosines, fixture.model->workspace.cosines.address);
    assert_int_equal(args->new_rows.sines, fixture.model->workspace.sines.address);
    assert_int_equal(args->new_rows.n_rot, h->n_rot);
    const qn_gpu_inputs in = qn_gpu_inputs_of(args->n_rows, args->n_rows, 0, 0);
    assert_int_equal(args->mask.positions, inputs() + in.positions);
    return true;
}

/* Over an fp16 cache attention prepares the rows of a decode step, over codes and in other steps a launch before it
 * does. */
TEST(attention_prepares_rows)
{
    int n_prepared = 0, n_launched = 0;
    for (size_t i = 0; i < N_MODELS * 2; i++) {
        const struct fake_launch *attention = NULL;
        label("%s, %s", models[i / 2], i % 2 ? "codes" : "fp16");
        set_up(models[i / 2], i % 2 ? 4 : 0, 33);
        struct rows rows = decode_of(0, 33, 10);
        assert_ok(run(&rows));
        assert_int_equal(count("qn_attention_decode", 0, &attention), attention_layers());
        const bool is_prepared = expect_prepared_rows((const void *)attention->args);
        n_prepared += is_prepared;
        n_launched += !is_prepared;
        assert_false(is_prepared && i % 2);
        const int from = fake.launches;
        rows.n_logits--; /* no decode step */
        assert_ok(run(&rows));
        assert_int_equal(count("qn_rope_qk_norm_store", from, &attention), attention_layers());
        assert_int_equal(count("qn_attention_decode", from, &attention), attention_layers());
        const qn_attention_decode_args *args = (const void *)attention->args;
        assert_true(!args->new_rows.keys && !args->query_head_stride && !args->pdl_prefetch);
        tear_down();
    }
    assert_true(n_prepared > 0 && n_launched >= N_MODELS);
}

/* Steps of other sequences, positions and numbers of rows reuse the graph of their bucket; it is captured again when
 * buffers have moved. */
TEST(graphs_are_shared)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        label("%s", models[i]);
        set_up(models[i], 0, 12);
        struct rows rows = decode_of(0, 3, 10);
        assert_ok(run(&rows));
        const int launches = fake.launches;
        rows = decode_of(5, 4, 100);
        assert_ok(run(&rows));
        rows = decode_of(1, 3, 63);
        assert_ok(run(&rows));
        assert_int_equal(fake.launches, launches);
        assert_int_equal(fake.execs, 1);
        assert_int_equal(fake.graph_launches, 3);
        for (size_t memory = 0; memory < 3; memory++) { /* the persistent decode kernel, or launches, of one row */
            rows = decode_of(memory, 1, 10);
            assert_ok(run(&rows));
            const uint64_t *tables =
                (const void *)(fixture.model->workspace.block_inputs[fixture.model->flights.block] +
                               qn_gpu_inputs_of(1, 1, 0, 0).kv_tables);
            assert_int_equal(tables[0], 1000 + memory);
        }
        assert_int_equal(fake.execs, 2);
        assert_int_equal(fake.graph_launches, 6);
        assert_ok(fixture.cuda.device->vtable->reserve(fixture.cuda.device, MAX_ROWS + 1, CONTEXT));
        const int captured = fake.launches;
        rows = decode_of(0, 4, 10);
        assert_ok(run(&rows));
        assert_true(fake.launches > captured);
        assert_int_equal(fake.execs, 2);
        tear_down();
    }
}

/* GEMMs are of as many rows as the step has, also after a step of another number. */
TEST(gemms_of_rows)
{
    static const size_t n[] = { 8, 3, 24, 2 }, buckets[] = { 8, 4, 24, 2 };
    set_up(models[0], 0, 24);
    for (size_t i = 0; i < 4; i++) {
        const struct fake_launch *last = NULL;
        const struct rows rows = decode_of(0, n[i], 10);
        const int launches = fake.launches;
        assert_ok(run(&rows));
        assert_true(count("qn_matmul_gemm_few", launches, &last) > 0);
        assert_int_equal(((const qn_matmul_few_args *)(const void *)last->args)->n_tokens, buckets[i]);
    }
    tear_down();
}

/* Of 2 to 64 rows, GEMMs compute the activations of the next ones where both are of one and two bits: all norms and
 * SwiGLU but the first and the last norm. Matrices in fp16 in recurrent layers read the rows themselves, before the
 * next GEMM. */
TEST(fused_activations)
{
    static const size_t rows[] = { 2, 33, 64, 70 };
    for (size_t m = 0; m < N_MODELS; m++)
        for (size_t i = 0; i < 4; i++) {
            struct rows r = { .n = 0 };
            const qn_matmul_few_args *before = NULL;
            int n = 0, expected = 0;
            label("%s, %zu rows", models[m], rows[i]);
            set_up(models[m], 0, 1);
            add_piece(&r, 0, 0, rows[i], true);
            assert_ok(run(&r));
            for (int k = 0; k < fake.launches; k++) {
                const bool quantizes = !strcmp(launch(k)->function, "qn_matmul_quantize_acts");
                if (strcmp(launch(k)->function, "qn_matmul_gemm_few") && !quantizes)
                    continue;
                const qn_matmul_few_args *args = quantizes ? NULL : (const void *)launch(k)->args;
                if (before && before->next.op) { /* what it computes is read at once, and is not quantised again */
                    assert_non_null(args);
                    assert_int_equal(args->acts, before->next.acts);
                    assert_int_equal(args->acts_scale, before->next.scale);
                    assert_int_equal(args->sumsq, before->next.op == QN_ACTS_OP_RMS_NORM ? before->next.sumsq : 0);
                    assert_true(before->acts != before->next.acts);
                    assert_true((before->next.weight != 0) == (before->next.op == QN_ACTS_OP_RMS_NORM));
                    n++;
                }
                before = args;
            }
            for (size_t k = 0; k < fixture.cuda.plan.n_ops; k++)
                expected += fixture.model->weights.ops[k].fuses_next;
            assert_int_equal(n, rows[i] <= QN_FEW_MAX_TOKENS ? expected : 0);
            if (!strcmp(models[m], "qwen3.q1_0"))
                assert_int_equal(expected, 3 * (int)fixture.cuda.plan.n_layers - 1);
            else /* some of its activations are of one width, and not computed by a GEMM that reads them */
                assert_in_range(expected, fixture.cuda.plan.n_layers, 3 * fixture.cuda.plan.n_layers - 1);
            tear_down();
        }
}

/* Pieces of many rows come after those of few, with one launch of prefill attention, and logit rows are gathered. */
TEST(mixed_pieces)
{
    static const struct {
        size_t memory, n;
        uint32_t position;
        bool with_logits;
    } pieces[] = {
        { 0, 100, 0, true }, { 1, 1, 7, true }, { 2, 5, 60, false }, { 3, 70, 64, true }, { 4, 1, 64, true }
    };
    static const uint32_t order[] = { 1, 2, 4, 0, 3 }, logit_rows[] = { 106, 0, 176, 6 };
    for (size_t i = 0; i < N_MODELS; i++) {
        struct rows rows = { .n = 0 };
        const struct fake_launch *last = NULL;
        label("%s", models[i]);
        set_up(models[i], 0, 5);
        for (size_t p = 0; p < 5; p++)
            add_piece(&rows, pieces[p].memory, pieces[p].position, pieces[p].n, pieces[p].with_logits);
        assert_ok(run(&rows));
        assert_int_equal(fake.graph_launches, 0);
        const qn_gpu_inputs in = qn_gpu_inputs_of(177, 5, 4, 0);
        for (uint32_t p = 0, row = 0; p < 5; p++) {
            assert_int_equal(input(in.cu_seqlens)[p], row);
            for (size_t t = 0; t < pieces[order[p]].n; t++, row++) {
                assert_int_equal(input(in.sequences)[row], p);
                assert_int_equal(input(in.positions)[row], pieces[order[p]].position + t);
                assert_int_equal(input(in.tokens)[row], order[p] + pieces[order[p]].position + t);
            }
            assert_int_equal(addresses(in.kv_tables)[p], 1000 + order[p]);
        }
        for (size_t l = 0; l < 4; l++)
            assert_int_equal(input(in.logit_rows)[l], logit_rows[l]);
        assert_int_equal(count("qn_attention_decode", 0, &last), attention_layers());
        const qn_attention_decode_args *decode = (const void *)last->args;
        assert_true(decode->n_rows == 7 && !decode->pdl_prefetch);
        assert_int_equal(count("qn_attention_prefill", 0, &last), attention_layers());
        const qn_attention_prefill_args *prefill = (const void *)last->args;
        assert_true(prefill->n_rows == 170 && prefill->n_pieces == 2);
        assert_int_equal(prefill->positions, inputs() + in.first_positions + 3 * sizeof(uint32_t));
        assert_int_equal(prefill->cu_seqlens, inputs() + in.cu_seqlens + 3 * sizeof(uint32_t));
        assert_int_equal(prefill->cache.tables, inputs() + in.kv_tables + 3 * sizeof(uint64_t));
        assert_int_equal(count("qn_elementwise_gather", 0, &last), 1);
        const qn_elementwise_gather_args *gather = (const void *)last->args;
        assert_int_equal(last->grid[1], 4);
        assert_int_equal(gather->rows, inputs() + in.logit_rows);
        assert_int_equal(gather->y, fixture.model->workspace.gathered.address);
        tear_down();
    }
}

/* Parameters of sampling are uploaded with the step's other inputs, by one copy: kernels read no memory of the host but
 * for one row. */
TEST(parameters_are_inputs)
{
    static const size_t n_sequences[] = { 3, 5 };
    for (size_t mixed = 0; mixed < 2; mixed++) {
        qn_sample_request requests[MAX_SEQUENCES];
        const struct fake_launch *last = NULL;
        const size_t n = n_sequences[mixed];
        label("%zu sequences", n);
        set_up(models[0], 0, n);
        struct rows rows = decode_of(0, n - mixed, 10);
        if (mixed)
            add_piece(&rows, n - 1, 0, 70, true);
        for (size_t i = 0; i < n; i++)
            requests[i] = (qn_sample_request){ .sampling = { .top_p = 0.5f + 0.01f * (float)i, .repeat_penalty = 1 } };
        const qn_step step = {
            .rows = rows.rows, .n_rows = rows.n, .logit_rows = rows.logit_rows, .n_logit_rows = n, .requests = requests
        };
        const struct rows first = decode_of(0, 2, 10);
        assert_ok(run(&first)); /* uploads the phases */
        const int copies = fake.copies_in, from = fake.launches;
        assert_ok(fixture.cuda.device->vtable->run(fixture.cuda.device, &step));
        assert_int_equal(fake.copies_in - copies, 1);
        const size_t bucket = mixed ? rows.n : qn_gpu_bucket(n);
        const qn_gpu_inputs in = qn_gpu_inputs_of(bucket, mixed ? n : bucket, mixed ? n : 0, 0);
        assert_int_equal(count("qn_sample_argmax", from, &last), 1);
        const qn_sample_args *args = (const void *)last->args;
        assert_int_equal(args->params, inputs() + in.sampling);
        const qn_sample_params *params = (const void *)(uintptr_t)args->params;
        for (size_t i = 0; i < n; i++)
            assert_true(params[i].top_p == requests[i].sampling.top_p && params[i].kind == QN_SAMPLE_ARGMAX);
        tear_down();
    }
}

/* With `deterministic`, rows that are decoded are computed in passes of 2 to 64, and every other piece in one of its
 * own. */
TEST(deterministic_passes)
{
    struct rows rows = { .n = 0 };
    const struct fake_launch *last = NULL;
    set_up(models[1], 0, 80);
    fixture.model->common.deterministic = true;
    rows = decode_of(0, 1, 10);
    assert_ok(run(&rows));
    assert_int_equal(fake.graph_launches, 1);
    assert_int_equal(count_gemms(0), gemms());
    assert_int_equal(count("qn_matmul_gemm_few", 0, &last), gemms());
    assert_int_equal(((const qn_matmul_few_args *)(const void *)last->args)->n_tokens, 2);
    int from = fake.launches;
    rows = decode_of(0, 70, 10); /* 64 and 6, in a bucket of 8 */
    assert_ok(run(&rows));
    assert_int_equal(fake.graph_launches, 3);
    assert_int_equal(count("qn_attention_decode", from, &last), 2 * attention_layers());
    assert_int_equal(((const qn_attention_decode_args *)(const void *)last->args)->n_rows, 8);
    from = fake.launches;
    rows = decode_of(0, 3, 10);
    add_piece(&rows, 3, 64, 64, false);
    add_piece(&rows, 4, 128, 20, true);
    add_piece(&rows, 5, 70, 1, false);
    add_piece(&rows, 6, 70, 1, true);
    assert_ok(run(&rows)); /* 3; 64; 20; 1; 1 */
    assert_int_equal(fake.graph_launches, 6);
    assert_int_equal(count("qn_attention_prefill", from, &last), attention_layers());
    assert_int_equal(((const qn_attention_prefill_args *)(const void *)last->args)->n_rows, 64);
    tear_down();
}

/* All logits of a prompt need no gathering. */
TEST(consecutive_logits)
{
    struct rows rows = { .n = 0 };
    const struct fake_launch *last = NULL;
    set_up(models[0], 0, 1);
    for (uint32_t i = 0; i < 80; i++)
        add_piece(&rows, 0, i, 1, i >= 10);
    assert_ok(run(&rows));
    assert_int_equal(count("qn_elementwise_gather", 0, &last), 0);
    assert_int_equal(count_gemms(0), gemms());
    tear_down();
}

/* A decode step quantises the pages that are completed in all layers with one launch, whatever the positions are; other
 * steps in each layer, before its attention, if a page is completed. */
TEST(aura_pages)
{
    for (size_t i = 0; i < 2; i++) {
        const struct fake_launch *last = NULL;
        label("%s", models[i]);
        set_up(models[i], 4, 5);
        const unsigned heads = (unsigned)fixture.cuda.plan.heads.n_kv_heads;
        struct rows rows = decode_of(0, 5, 10);
        assert_ok(run(&rows));
        assert_int_equal(count("qn_aura_quantize_page", 0, &last), 1);
        assert_int_equal(last->grid[0], 8);
        assert_int_equal(last->grid[1], heads);
        assert_int_equal(last->grid[2], attention_layers());
        int launches = fake.launches;
        rows = (struct rows){ .n = 0 };
        add_piece(&rows, 0, 100, 1, true);
        add_piece(&rows, 1, 60, 70, true);
        assert_ok(run(&rows));
        assert_int_equal(count("qn_aura_quantize_page", launches, &last), attention_layers());
        assert_int_equal(last->grid[0], 2);
        assert_int_equal(last->grid[1], heads);
        assert_int_equal(last->grid[2], 1);
        launches = fake.launches;
        rows = (struct rows){ .n = 0 };
        add_piece(&rows, 0, 100, 5, true);
        add_piece(&rows, 1, 64, 63, true);
        assert_ok(run(&rows));
        assert_int_equal(count("qn_aura_quantize_page", launches, &last), 0);
        tear_down();
    }
}

/* Sequences of other cache formats are executed one after the other. */
TEST(formats)
{
    const struct fake_launch *last = NULL;
    set_up(models[0], 4, 2);
    assert_ok(qn_kv_format_named("f16", &fixture.cuda.format));
    add_memories(2);
    fixture.model->workspace.common->matmul.wgmma = false; /* with bit planes both are launches */
    const struct rows rows = decode_of(0, 4, 10);
    assert_ok(run(&rows));
    assert_int_equal(fake.graph_launches, 2);
    assert_int_equal(fake.execs, 2);
    assert_int_equal(count("qn_attention_decode", 0, &last), attention_layers()); /* of codes; fp16 is in phases */
    assert_int_equal(count("qn_persistent_decode_rows", 0, &last), attention_layers() + 1 + 1);
    tear_down();
}

/* After a failure no work is queued any more, and what memories hold is as it was; the same step then succeeds. */
TEST(failures)
{
    static const char *const calls[] = { "cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuGraphLaunch",
                                         "cuStreamEndCapture" };
    for (size_t i = 0; i < 4; i++)
        for (int after = 0; after < (i ? 1 : 30); after += 7)
            for (int decode = 0; decode < 2; decode++) {
                struct rows rows = { .n = 0 };
                label("%s after %d, %s", calls[i], after, decode ? "decode" : "mixed");
                if (!decode && i >= 2)
                    continue;
                set_up(models[1], 0, 10);
                for (size_t m = 0; m < (decode ? 10u : 3u); m++) /* more than are computed in phases */
                    add_piece(&rows, m, 10, decode ? 1 : 1 + 40 * m, true);
                const qn_sequence before = *fixture.memories[0]->sequence;
                const int synchronizations = fake.synchronizations;
                fake.fails = calls[i];
                fake.fails_after = after;
                assert_fails(run(&rows), QN_ERR_DEVICE, calls[i]);
                assert_int_equal(fake.synchronizations, synchronizations + 1);
                assert_memory_equal(fixture.memories[0]->sequence, &before, sizeof before);
                fake.fails = NULL;
                assert_ok(run(&rows));
                tear_down();
            }
}

/* Workspace for few rows is enough for their bucket. */
TEST(small_workspace)
{
    set_up(models[1], 0, 5);
    assert_int_equal(qn_gpu_bucket(5), 8);
    assert_int_equal(qn_gpu_bucket(256), 256);
    assert_int_equal(qn_gpu_bucket(257), 257);
    qn_cuda_sampler_free(fixture.model->sampler);
    fixture.model->sampler = NULL;
    qn_cuda_workspace_release(&fixture.model->workspace);
    assert_ok(fixture.cuda.device->vtable->reserve(fixture.cuda.device, 5, CONTEXT));
    assert_int_equal(fixture.model->workspace.max_rows, 8);
    const struct rows rows = decode_of(0, 5, 10);
    assert_ok(run(&rows));
    tear_down();
}

/* The residual stream after the last layer, of which LOGIT_NORM reads rows: memory of the host here. */
static float *residual_stream(const qn_op **norm, size_t *width)
{
    const qn_op *op = fixture.cuda.plan.ops;
    while (op->kind != QN_OP_LOGIT_NORM)
        op++;
    *norm = op;
    *width = fixture.cuda.plan.buffers[op->norm.in].width;
    return (float *)(uintptr_t)qn_cuda_rows(&fixture.model->workspace, op->norm.in);
}

static void expect_normed(const float *normed, const float *x, const qn_op *norm, size_t width)
{
    double sum = 0;
    for (size_t i = 0; i < width; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < width; i++) {
        const double expected =
            (double)x[i] / sqrt(sum / (double)width + (double)norm->norm.eps) * (double)norm->norm.weight[i];
        assert_true(fabs((double)normed[i] - expected) <= 1e-6 * fabs(expected));
    }
}

/* Arrays of hidden states in a step of pieces: rows without any, with either or both, adjacent or not. The device has
 * the rows of small pieces first, so that row r of the caller is row (r + 4) % 104 of the buffers. */
TEST(hidden_states)
{
    enum { MANY_ROWS = 100, ALL = MANY_ROWS + 4, MOST = 256 };
    static float hidden[ALL * MOST], normed[ALL * MOST];
    static const float zeros[MOST];
    for (size_t m = 0; m < N_MODELS; m++) {
        size_t width;
        const qn_op *norm;
        label("%s", models[m]);
        set_up(models[m], 0, 3);
        float *x = residual_stream(&norm, &width);
        assert_in_range(width, 1, MOST);
        struct rows r = { .n = 0 };
        add_piece(&r, 0, 0, MANY_ROWS, true);
        add_piece(&r, 1, 10, 1, true);
        add_piece(&r, 2, 20, 3, false);
        for (size_t row = 0; row < ALL; row++) {
            r.rows[row].hidden = row % 4 == 1 || row % 4 == 3 ? hidden + row * width : NULL;
            r.rows[row].normed = row % 4 >= 2 || row > 60 ? normed + row * width : NULL;
        }
        memset(hidden, 0, sizeof hidden);
        memset(normed, 0, sizeof normed);
        for (size_t i = 0; i < ALL * width; i++)
            x[i] = (float)(i * 37 % 101) - 50 + (float)(i / width);
        assert_ok(run(&r));
        for (size_t row = 0; row < ALL; row++) {
            const float *of_row = x + (row + 4) % ALL * width;
            label("%s, row %zu", models[m], row);
            assert_memory_equal(hidden + row * width, r.rows[row].hidden ? of_row : zeros, width * sizeof *zeros);
            if (r.rows[row].normed)
                expect_normed(normed + row * width, of_row, norm, width);
            else
                assert_memory_equal(normed + row * width, zeros, width * sizeof *zeros);
        }
        tear_down();
    }
}

/* Rows of decode steps, which are graphs, of padded ones too, and of one row. */
TEST(hidden_states_of_decode_steps)
{
    enum { WIDTH = 256 };
    static const size_t counts[] = { 1, 3, 70 };
    static float normed[70][WIDTH];
    for (size_t c = 0; c < COUNT(counts); c++) {
        size_t width;
        const qn_op *norm;
        set_up(models[0], 0, counts[c]);
        float *x = residual_stream(&norm, &width);
        for (int again = 0; again < 2; again++) {
            struct rows r = decode_of(0, counts[c], 10);
            label("%zu rows", counts[c]);
            for (size_t row = 0; row < counts[c]; row++)
                r.rows[row].normed = again && row == 0 ? NULL : normed[row];
            memset(normed, 0, sizeof normed);
            for (size_t i = 0; i < counts[c] * WIDTH; i++)
                x[i] = (float)(i * 41 % 89) - 30;
            assert_ok(run(&r));
            for (size_t row = 0; row < counts[c]; row++)
                if (r.rows[row].normed)
                    expect_normed(normed[row], x + row * WIDTH, norm, WIDTH);
            assert_true(!again || normed[0][0] == 0);
        }
        tear_down();
    }
}

/* Rows with what the device does not take are refused before anything is queued. */
TEST(rows_of_other_devices)
{
    static float floats[4096];
    static const char *const texts[] = { "cuda:0: rows with embeddings are not supported", "positions of their own" };
    set_up("qwen3.q1_0", 0, 2);
    for (size_t i = 0; i < COUNT(texts); i++) {
        label("%s", texts[i]);
        struct rows r = decode_of(0, 2, 10);
        const int launches = fake.launches;
        if (i == 0)
            r.rows[1].embedding = floats;
        else
            r.rows[1].rope_offsets[2] = 1;
        assert_fails(run(&r), QN_ERR_UNSUPPORTED, texts[i]);
        assert_int_equal(fake.launches, launches);
    }
    const struct rows r = decode_of(0, 2, 10);
    assert_ok(run(&r));
    tear_down();
}

/* Plans whose rows are embeddings. */
TEST(plans_of_other_devices)
{
    struct cuda_fixture x;
    read_golden(&x, "qwen3.q1_0");
    const qn_op embed = x.plan.ops[0];
    x.plan.ops[0] =
        (qn_op){ .kind = QN_OP_INPUT, .layer = -1, .input = { .out = embed.embed.out, .width = x.hparams.n_embd } };
    assert_ok(qn_plan_validate(&x.plan));
    assert_fails(open_device(&x, 0), QN_ERR_UNSUPPORTED, "operation 0 of the plan is input");
    qn_team_free(x.team);
    x.plan.ops[0] = embed;
    create_device(&x, 0);
    free_device(&x);
}
