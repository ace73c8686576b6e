/* Rotated weights in a plan whose rows and Hadamard blocks are longer than a super-block: a model whose matrices are
 * rotated gives the logits of the plain model. test_rotation.c tests which files are rejected; golden models
 * (test_golden_logits.c) have only short rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "helper_image.h"
#include "helper_model.h"
#include "helper_random.h"

#include "base/cpu.h"
#include "base/memory.h"

#include <math.h>

/* Heads of 48 values cross the boundaries of super-blocks and of blocks of 1024. */
enum {
    EMBD = 64,
    FF = 2048,
    HEADS = 64,
    KV_HEADS = 4,
    HEAD = 48,
    INNER = HEADS * HEAD,
    K_HEADS = 32,
    HEAD_K = 16,
    TAPS = 4
};
enum { CONV = 2 * K_HEADS * HEAD_K + INNER, VOCAB = 24, LAYERS = 2, N_ROWS = 70, MAX_TENSORS = 40 };

struct tensor {
    char name[48];
    size_t cols, rows;
};

static struct tensor tensors[MAX_TENSORS];
static size_t n_tensors;

static void add(int layer, const char *name, size_t cols, size_t rows)
{
    struct tensor *t = &tensors[n_tensors++];
    assert_true(n_tensors <= MAX_TENSORS);
    *t = (struct tensor){ .cols = cols, .rows = rows };
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
}

/* A recurrent layer and an attention layer. */
static int list_tensors(void)
{
    add(-1, "token_embd.weight", EMBD, VOCAB);
    add(-1, "output_norm.weight", EMBD, 1);
    add(-1, "output.weight", EMBD, VOCAB);
    for (int layer = 0; layer < LAYERS; layer++) {
        add(layer, "attn_norm.weight", EMBD, 1);
        add(layer, "post_attention_norm.weight", EMBD, 1);
        add(layer, "ffn_gate.weight", EMBD, FF);
        add(layer, "ffn_up.weight", EMBD, FF);
        add(layer, "ffn_down.weight", FF, EMBD);
    }
    add(0, "attn_qkv.weight", EMBD, CONV);
    add(0, "attn_gate.weight", EMBD, INNER);
    add(0, "ssm_alpha.weight", EMBD, HEADS);
    add(0, "ssm_beta.weight", EMBD, HEADS);
    add(0, "ssm_conv1d.weight", TAPS, CONV);
    add(0, "ssm_dt.bias", HEADS, 1);
    add(0, "ssm_a", HEADS, 1);
    add(0, "ssm_norm.weight", HEAD, 1);
    add(0, "ssm_out.weight", INNER, EMBD);
    add(1, "attn_q.weight", EMBD, 2 * INNER);
    add(1, "attn_k.weight", EMBD, KV_HEADS * HEAD);
    add(1, "attn_v.weight", EMBD, KV_HEADS * HEAD);
    add(1, "attn_output.weight", INNER, EMBD);
    add(1, "attn_q_norm.weight", HEAD, 1);
    add(1, "attn_k_norm.weight", HEAD, 1);
    return 0;
}

static const char *const rotated[] = { "blk.0.ssm_out.weight", "blk.1.attn_output.weight", "blk.0.ffn_down.weight",
                                       "blk.1.ffn_down.weight" };
enum { N_ROTATED = COUNT(rotated) };

/* The basis of a file's weights; block 0: not rotated. */
struct basis {
    size_t block;
    bool explicit_signs, grouped;
};

static double sign_at(size_t width, size_t i)
{
    return number_at((uint32_t)(width + 3 * i)) < 0 ? -1 : 1;
}

/* Converts a row to the file's basis: grouped heads, signs, Walsh-Hadamard blocks. */
static void rotate_row(const struct basis *basis, const struct tensor *t, float *row)
{
    static double x[INNER];
    const bool grouped = basis->grouped && strstr(t->name, "ssm_out");
    for (size_t i = 0; i < t->cols; i++) {
        const size_t head = i / HEAD, rep = HEADS / K_HEADS, tiled = head % rep * K_HEADS + head / rep;
        x[i] = (double)row[grouped ? tiled * HEAD + i % HEAD : i] * (basis->explicit_signs ? sign_at(t->cols, i) : 1);
    }
    for (size_t distance = 1; distance < basis->block; distance *= 2)
        for (size_t i = 0; i < t->cols; i++)
            if (!(i & distance)) {
                const double a = x[i], b = x[i + distance];
                x[i] = a + b;
                x[i + distance] = a - b;
            }
    for (size_t i = 0; i < t->cols; i++)
        row[i] = (float)(x[i] / sqrt((double)basis->block));
}

static void put_values(const struct basis *basis, const struct tensor *t, uint32_t seed)
{
    static float row[CONV];
    const bool factor = strstr(t->name, "ssm_a") && !strstr(t->name, "alpha"), norm = strstr(t->name, "norm") != NULL;
    bool is_rotated = false;
    for (size_t i = 0; i < N_ROTATED; i++)
        is_rotated = is_rotated || (basis->block && strcmp(t->name, rotated[i]) == 0);
    assert_true(t->cols <= CONV);
    for (size_t r = 0; r < t->rows; r++) {
        for (size_t i = 0; i < t->cols; i++) {
            const float x = number_at((uint32_t)(r * t->cols + i) + seed);
            row[i] = factor ? -0.5f : norm ? 1 + 0.2f * x : x / sqrtf((float)t->cols);
        }
        if (is_rotated)
            rotate_row(basis, t, row);
        put(row, t->cols * sizeof *row);
    }
}

static void put_u32_key(const char *name, uint32_t value)
{
    put_key(name, QN_GGUF_U32);
    put32(value);
}

static void put_text_key(const char *name, const char *text)
{
    put_key(name, QN_GGUF_STRING);
    put_text(text);
}

static void put_array_key(const char *name, uint32_t type, size_t n)
{
    put_key(name, QN_GGUF_ARRAY);
    put32(type);
    put64(n);
}

enum { N_ROTATION_KEYS = 7, N_SIGN_KEYS = 2 };

static void put_rotation_keys(const struct basis *basis)
{
    const uint8_t grouped = basis->grouped;
    put_u32_key("prism.hadamard.version", 1);
    put_u32_key("prism.hadamard.block_size", (uint32_t)basis->block);
    put_text_key("prism.hadamard.transform", "normalized-sylvester-walsh-hadamard");
    put_text_key("prism.hadamard.axis", "input-last-dimension");
    put_text_key("prism.hadamard.sign_mode", basis->explicit_signs ? "explicit" : "identity");
    put_key("prism.hadamard.gdn_v_grouped", QN_GGUF_BOOL);
    put(&grouped, 1);
    put_array_key("prism.hadamard.weight_names", QN_GGUF_STRING, N_ROTATED);
    for (size_t i = 0; i < N_ROTATED; i++)
        put_text(rotated[i]);
    if (!basis->explicit_signs)
        return;
    put_array_key("prism.hadamard.sign_widths", QN_GGUF_U32, 2);
    put32(FF);
    put32(INNER);
    put_array_key("prism.hadamard.sign_values", QN_GGUF_I32, FF + INNER);
    for (size_t i = 0; i < FF; i++)
        put32((uint32_t)(int32_t)sign_at(FF, i));
    for (size_t i = 0; i < INNER; i++)
        put32((uint32_t)(int32_t)sign_at(INNER, i));
}

static void write_image(const struct basis *basis)
{
    static const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {
        { "qwen35.block_count", LAYERS },
        { "qwen35.context_length", 512 },
        { "qwen35.embedding_length", EMBD },
        { "qwen35.feed_forward_length", FF },
        { "qwen35.attention.head_count", HEADS },
        { "qwen35.attention.head_count_kv", KV_HEADS },
        { "qwen35.attention.key_length", HEAD },
        { "qwen35.attention.value_length", HEAD },
        { "qwen35.rope.dimension_count", HEAD / 2 },
        { "qwen35.full_attention_interval", LAYERS },
        { "qwen35.ssm.conv_kernel", TAPS },
        { "qwen35.ssm.inner_size", INNER },
        { "qwen35.ssm.state_size", HEAD_K },
        { "qwen35.ssm.time_step_rank", HEADS },
        { "qwen35.ssm.group_count", K_HEADS },
    };
    enum { N_SIZES = COUNT(sizes) };
    const size_t extra = basis->block ? N_ROTATION_KEYS + (basis->explicit_signs ? N_SIGN_KEYS : 0) : 0;
    const float eps = 1e-6f;
    size_t offset = 0;
    put_header(3, n_tensors, 2 + N_SIZES + extra);
    put_text_key("general.architecture", "qwen35");
    put_key("qwen35.attention.layer_norm_rms_epsilon", QN_GGUF_F32);
    put(&eps, sizeof eps);
    for (size_t i = 0; i < N_SIZES; i++)
        put_u32_key(sizes[i].name, sizes[i].value);
    if (basis->block)
        put_rotation_keys(basis);
    for (size_t i = 0; i < n_tensors; i++) {
        put_tensor(tensors[i].name, QN_TYPE_F32, offset, 2, tensors[i].cols, tensors[i].rows, 1, 1);
        offset += qn_round_up(tensors[i].cols * tensors[i].rows * sizeof(float), 32);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        put_data(32, 0);
        put_values(basis, &tensors[i], (uint32_t)i * 1000003u);
    }
    put_data(32, 0);
}

/* Logits of N_ROWS tokens, in steps of `piece` tokens. */
static void run(const struct basis *basis, int n_threads, size_t piece, float *logits)
{
    struct fixture x = { 0 };
    qn_row rows[N_ROWS];
    uint32_t logit_rows[N_ROWS];
    write_image(basis);
    assert_ok(open_image(&image, &x.file, &x.data));
    build_executor(&x, n_threads, qn_cpu_present(), N_ROWS, N_ROWS);
    struct memory memory = new_memory(&x);
    for (size_t done = 0; done < N_ROWS; done += piece) {
        qn_step step = { .rows = rows, .logit_rows = logit_rows, .logits = logits + done * VOCAB };
        step.n_rows = step.n_logit_rows = N_ROWS - done < piece ? N_ROWS - done : piece;
        prepare_memory(&memory, step.n_rows);
        for (size_t i = 0; i < step.n_rows; i++) {
            const uint32_t position = (uint32_t)(done + i);
            logit_rows[i] = (uint32_t)i;
            rows[i] = row_of_memory(&memory, (int32_t)((position * 7 + position / 5) % VOCAB), position);
        }
        qn_executor_run(x.executor, &step);
        append_memory(&memory, done + step.n_rows);
    }
    free_memory(&memory);
    tear_down(&x);
}

static double distance(const float *a, const float *b)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < N_ROWS * VOCAB; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

/* Float weights: logits differ only by rounding, about 1e-7 an operation and 11 times that in the transform. */
TEST(test_bases)
{
    static float plain[N_ROWS * VOCAB], found[N_ROWS * VOCAB], again[N_ROWS * VOCAB];
    static const struct basis bases[] = {
        { 1024, true, true }, { 1024, false, false }, { 512, true, true }, { 32, true, false }, { 1, true, true },
    };
    run(&(struct basis){ 0 }, 2, N_ROWS, plain);
    for (size_t i = 0; i < N_ROWS * VOCAB; i++)
        assert_true(isfinite(plain[i]));
    for (size_t i = 0; i < COUNT(bases); i++) {
        run(&bases[i], 1, N_ROWS, found);
        if (!(distance(found, plain) < 2e-5))
            fail_msg("blocks of %zu: logits are off by %g", bases[i].block, distance(found, plain));
        run(&bases[i], 3, 33, again);
        assert_memory_equal(found, again, sizeof found);
    }
}

/* Single tokens: split-KV attention, whose partials are combined slice by slice of the activations. */
TEST(test_token_by_token)
{
    static float at_once[N_ROWS * VOCAB], found[N_ROWS * VOCAB];
    const struct basis basis = { 1024, true, true };
    run(&basis, 2, N_ROWS, at_once);
    run(&basis, 3, 1, found);
    assert_memory_equal(found, at_once, sizeof found);
}

TEST_GROUP(list_tensors, NULL)
