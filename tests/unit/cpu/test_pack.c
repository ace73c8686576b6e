/* Weights packed at load: logits bit-identical to those of stored rows; each weight in memory once, while loading and
 * afterwards; and a clean failure if memory is short. */
#include "helper_random.h"
#include "helper_create.h"
#include "helper_sanitizers.h"

#include "base/append.h"
#include "base/cpu.h"
#include "cpu/device.h"
#include "engine/internal.h"
#include "gguf/gguf.h"
#include "kernels/matmul/packed.h"
#include "quant/quant.h"
#include "quern/quern.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The same logits ---- */

enum { N_IDS = 75 };

static const qn_executor *executor_of(const qn_model *model)
{
    return ((const qn_cpu_device *)model->device)->executor;
}

static bool is_matmul(const qn_op *op)
{
    return qn_op_matrices_of(op) != NULL;
}

/* Asserts that exactly those matrices are packed that are large enough and for which the instruction set has a packed
 * kernel; returns their number. */
static size_t count_packed(const qn_model *model)
{
    const qn_executor *executor = executor_of(model);
    size_t packed = 0;
    for (size_t i = 0; i < model->plan.n_ops; i++) {
        const qn_op *op = &model->plan.ops[i];
        for (size_t m = 0; is_matmul(op) && m < op->matmul.matrices.n; m++) {
            label("operation %zu, matrix %zu", i, m);
            const qn_matrix *weights = &op->matmul.matrices.at[m].weights;
            const qn_packed_kernel *kind = qn_matmul_packed(&executor->kernels->matmul, weights->type);
            const bool expected = kind && weights->n_rows >= QN_PANEL_ROWS &&
                                  (kind->hilo || !model->plan.acts[op->matmul.matrices.at[m].acts].hilo);
            assert_int_equal(executor->weights.at[i][m].packed != NULL, expected);
            packed += expected;
        }
    }
    return packed;
}

static void evaluate(qn_model *model, uint32_t n_batch, float *logits)
{
    const int n_vocab = (int)qn_model_get_info(model)->n_vocab;
    qn_token ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i * 61 % n_vocab;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = n_batch));
    assert_ok(qn_session_eval(session, ids, N_IDS, QN_LOGITS_ALL, logits));
    qn_session_free(session);
}

/* The logits of one instruction set, with n_threads threads and n_batch tokens a step; returns the number of packed
 * matrices. */
static size_t run_model(const char *file, const char *level, int n_threads, uint32_t n_batch, float **logits,
                        size_t *bytes)
{
    assert_int_equal(setenv("QN_CPU", level, 1), 0);
    qn_model *model = create_model(file, &CPU_MODEL(.n_threads = n_threads));
    assert_int_equal(unsetenv("QN_CPU"), 0);
    const size_t n_packed = count_packed(model);
    const size_t n_copies = executor_of(model)->weights.n_packed;
    assert_true((n_packed > 0) == (n_copies > 0) && n_copies <= n_packed);
    *bytes = N_IDS * sizeof(float) * qn_model_get_info(model)->n_vocab;
    *logits = malloc(*bytes);
    assert_non_null(*logits);
    evaluate(model, n_batch, *logits);
    qn_model_free(model);
    return n_packed;
}

/* Whether results are not those of the reference (kernels/matmul/blocks.h). Such a level is the last one. */
static bool has_own_arithmetic(const qn_cpu_level *level)
{
    qn_matmul_kernels kernels;
    qn_matmul_kernels_init(&kernels, level->features);
    return kernels.block_scales;
}

/* Every instruction set, packed by several numbers of threads and evaluated in steps of several sizes, against the
 * reference, which reads stored rows. */
TEST(packed_models_give_the_same_logits)
{
    static const char *const names[] = {
        "llama.q1_0",  "qwen3.q1_0",           "qwen35-rotated.q1_0", "llama.q2_0",    "qwen35.q2_0", "llama.pq2_0",
        "qwen3.pq2_0", "qwen35-rotated.pq2_0", "llama.ptq1_0",        "qwen35.ptq1_0", "llama.f16"
    };
    static const struct {
        int n_threads;
        uint32_t n_batch;
    } configs[] = { { 1, 1 }, { 2, N_IDS }, { 3, 5 }, { 2, 30 } };
    enum { N_CONFIGS = COUNT(configs) };
    size_t n_packed[QN_CPU_MAX_LEVELS] = { 0 }, bytes, expected_bytes;
    for (size_t i = 0; i < COUNT(names); i += QN_TEST_SANITIZED ? 3 : 1) {
        label("%s", names[i]);
        char file[4096];
        float *expected, *found;
        snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, names[i]);
        assert_int_equal(run_model(file, "ref", 2, 16, &expected, &expected_bytes), 0);
        for (size_t k = N_CONFIGS; k < qn_cpu_n_levels * N_CONFIGS; k++) {
            const size_t l = k / N_CONFIGS, config = k % N_CONFIGS;
            const qn_cpu_level *level = &qn_cpu_levels[l];
            label("%s, %d threads, %u tokens at a time", level->name, configs[config].n_threads,
                  (unsigned)configs[config].n_batch);
            if (!qn_cpu_has_level(level))
                continue;
            n_packed[l] +=
                run_model(file, level->name, configs[config].n_threads, configs[config].n_batch, &found, &bytes);
            assert_int_equal(bytes, expected_bytes);
            if (has_own_arithmetic(level) && config == 0) { /* of its configurations, the first is the expected one */
                free(expected);
                expected = found;
                continue;
            }
            if (memcmp(found, expected, bytes) != 0)
                fail_msg("the logits differ");
            free(found);
        }
        free(expected);
    }
    for (size_t l = 0; l < qn_cpu_n_levels; l++) { /* a level that packs nothing would prove nothing */
        label("%s", qn_cpu_levels[l].name);
        qn_matmul_kernels kernels;
        if (!qn_cpu_has_level(&qn_cpu_levels[l]))
            continue;
        qn_matmul_kernels_init(&kernels, qn_cpu_levels[l].features);
        assert_true((n_packed[l] > 0) == (kernels.n_formats > 0));
    }
}

/* ---- Memory ---- */

/* A model of 68 MB, Q1_0 in its first layers and PQ2_0 in the others, the largest matrix 3 MB, the output tied to the
 * embedding. Not packed: norms, and matrices whose activations have the hi/lo split. */
enum { N_EMBD = 2048, N_FF = 5632, N_KV = 512, VOCAB = 4096, N_LAYERS = 7, FIRST_PQ2_0 = 2 };

static char path[] = "/tmp/quern-test-XXXXXX";
static size_t file_bytes;

/* Declares a tensor, or writes its data: ones, or random codes with scale 2^-7. */
static void write_tensor(qn_gguf_writer *writer, bool data, qn_type type_id, int layer, const char *part,
                         uint64_t width, uint64_t n_rows)
{
    char name[64];
    const uint64_t dims[] = { width, n_rows };
    const qn_type_info *type = qn_type_find((uint32_t)type_id);
    const size_t bytes = (size_t)(width / type->block_weights * n_rows) * type->block_bytes;
    qn_text_buffer text = QN_APPEND_TO(name);
    if (layer >= 0)
        qn_append(&text, "blk.%d.", layer);
    qn_append(&text, "%s.weight", part);
    if (!data) {
        assert_ok(qn_gguf_writer_add_tensor(writer, (qn_string){ name, text.length }, (uint32_t)type_id,
                                            n_rows > 1 ? 2 : 1, dims, bytes));
        return;
    }
    uint8_t *blocks = malloc(bytes);
    assert_non_null(blocks);
    for (size_t i = 0; i < bytes; i += type->block_bytes) {
        static const float one = 1;
        static const uint16_t scale = 0x2000;
        for (size_t k = 0; k < type->block_bytes; k++)
            blocks[i + k] = (uint8_t)(random_u64() >> 32);
        memcpy(blocks + i, type_id == QN_TYPE_F32 ? (const void *)&one : (const void *)&scale,
               type_id == QN_TYPE_F32 ? sizeof one : sizeof scale);
    }
    assert_ok(qn_gguf_writer_data(writer, blocks, bytes));
    free(blocks);
}

static int write_model(void)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    qn_gguf_writer *writer;
    assert_ok(qn_gguf_writer_create(path, &writer));
    assert_ok(qn_gguf_writer_add_string(writer, "general.architecture", "llama"));
    assert_ok(qn_gguf_writer_add_string(writer, "tokenizer.ggml.model", "no_vocab"));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.block_count", N_LAYERS));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.context_length", 256));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.embedding_length", N_EMBD));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.feed_forward_length", N_FF));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.attention.head_count", N_EMBD / 128));
    assert_ok(qn_gguf_writer_add_u32(writer, "llama.attention.head_count_kv", N_KV / 128));
    assert_ok(qn_gguf_writer_add_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f));
    assert_ok(qn_gguf_writer_add_f32(writer, "llama.rope.freq_base", 10000));
    for (int data = 0; data < 2; data++) {
        write_tensor(writer, data, QN_TYPE_PQ2_0, -1, "token_embd", N_EMBD, VOCAB);
        write_tensor(writer, data, QN_TYPE_F32, -1, "output_norm", N_EMBD, 1);
        for (int layer = 0; layer < N_LAYERS; layer++) {
            const qn_type type = layer < FIRST_PQ2_0 ? QN_TYPE_Q1_0 : QN_TYPE_PQ2_0;
            write_tensor(writer, data, QN_TYPE_F32, layer, "attn_norm", N_EMBD, 1);
            write_tensor(writer, data, type, layer, "attn_q", N_EMBD, N_EMBD);
            write_tensor(writer, data, type, layer, "attn_k", N_EMBD, N_KV);
            write_tensor(writer, data, type, layer, "attn_v", N_EMBD, N_KV);
            write_tensor(writer, data, type, layer, "attn_output", N_EMBD, N_EMBD);
            write_tensor(writer, data, QN_TYPE_F32, layer, "ffn_norm", N_EMBD, 1);
            write_tensor(writer, data, type, layer, "ffn_gate", N_EMBD, N_FF);
            write_tensor(writer, data, type, layer, "ffn_up", N_EMBD, N_FF);
            write_tensor(writer, data, type, layer, "ffn_down", N_FF, N_EMBD);
        }
        if (!data)
            assert_ok(qn_gguf_writer_begin_data(writer));
    }
    assert_ok(qn_gguf_writer_finish(writer));
    qn_gguf_writer_free(writer);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    file_bytes = (size_t)ftell(file);
    fclose(file);
    return 0;
}

static int remove_model(void)
{
    return unlink(path);
}

/* Resident bytes of the mapped model as reported by Linux, or -1 if it is not mapped. */
static long resident_of_map(void)
{
    char line[8192];
    long sum = -1, kib;
    bool inside = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2) {
            inside = strstr(line, path) != NULL;
            sum = inside && sum < 0 ? 0 : sum;
        }
        if (inside && sscanf(line, "Rss: %ld kB", &kib) == 1)
            sum += kib << 10;
    }
    fclose(maps);
    return sum;
}

static size_t bytes_not_packed(const qn_model *model)
{
    size_t bytes = file_bytes;
    for (size_t i = 0; i < qn_gguf_n_tensors(model->file); i++) {
        const qn_gguf_tensor *tensor = qn_gguf_tensor_at(model->file, i);
        bool packed = false;
        for (size_t k = 0; k < model->plan.n_ops; k++)
            for (size_t m = 0; is_matmul(&model->plan.ops[k]) && m < model->plan.ops[k].matmul.matrices.n; m++) {
                const qn_packed_matrix *weights = &executor_of(model)->weights.at[k][m];
                packed = packed || (weights->stored.data == tensor->data && weights->packed);
            }
        bytes -= packed ? tensor->bytes : 0;
    }
    return bytes;
}

/* Only data that is not packed may be resident, plus the pages that Linux maps around a touched page at each end of a
 * tensor: 64 KiB on either side. */
TEST(packed_tensors_are_not_resident)
{
    qn_model *model = create_model(path, &CPU_MODEL(.n_threads = 2));
    if (!count_packed(model)) {
        qn_model_free(model);
        skip();
    }
    const size_t rest = bytes_not_packed(model), ends = qn_gguf_n_tensors(model->file) * (128 << 10);
    const long resident = resident_of_map();
    assert_true(rest < file_bytes / 4);
    assert_true(resident >= 0);
    if ((size_t)resident > rest + ends || rest + ends > file_bytes / 3)
        fail_msg("%ld of the file's %zu bytes are resident, of which %zu are not packed", resident, file_bytes, rest);
    qn_model_free(model);
    assert_int_equal(resident_of_map(), -1);
}

/* All packed rows are in one mapping, for which huge pages are advised, so that they hold parts of several matrices. */
TEST(packed_rows_share_huge_pages)
{
    qn_model *model = create_model(path, &CPU_MODEL(.n_threads = 2));
    const qn_cpu_weights *weights = &executor_of(model)->weights;
    const unsigned long first = (unsigned long)(uintptr_t)weights->packed, last = first + weights->used;
    char line[8192];
    bool inside = false, is_advised = false;
    if (!count_packed(model)) {
        qn_model_free(model);
        skip();
    }
    for (size_t k = 0; k < model->plan.n_ops; k++)
        for (size_t m = 0; is_matmul(&model->plan.ops[k]) && m < model->plan.ops[k].matmul.matrices.n; m++) {
            const uint8_t *packed = weights->at[k][m].packed;
            assert_true(!packed || (packed >= weights->packed && packed < weights->packed + weights->used));
        }
    assert_true(first % (2 << 20) == 0 && weights->used <= weights->committed);
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2)
            inside = begin <= first && end >= last;
        is_advised = is_advised || (inside && !strncmp(line, "VmFlags:", 8) && strstr(line, " hg"));
    }
    fclose(maps);
    FILE *huge = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (huge)
        fclose(huge);
    assert_true(is_advised || !huge);
    qn_model_free(model);
}

#if !QN_TEST_SANITIZED /* sanitizers allocate memory themselves, and reserve more address space than can be limited */
static long status_kib(const char *field)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (kib < 0 && fgets(line, sizeof line, status))
        if (!strncmp(line, field, strlen(field)))
            kib = strtol(line + strlen(field) + 1, NULL, 10);
    fclose(status);
    return kib;
}

/* In a separate process, whose peak starts at zero: all weights are in memory once, and the largest matrix twice. */
TEST(loading_needs_little_more_than_the_file)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        qn_model *model;
        if (qn_model_load(path, &CPU_MODEL(.n_threads = 2), &model) != QN_OK)
            _exit(2);
        const long peak = status_kib("VmHWM"), most = (long)(file_bytes / 1024 * 115 / 100) + (24 << 10);
        if (peak <= 0 || peak > most)
            fprintf(stderr, "loading %zu KiB took %ld KiB, at most %ld are allowed\n", file_bytes >> 10, peak, most);
        _exit(peak <= 0 || peak > most);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Every failure names the missing memory and leaves nothing mapped or allocated. */
TEST(loading_fails_cleanly_without_memory)
{
    struct rlimit limit, low;
    qn_model *model = NULL;
    size_t in_packing = 0;
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    const long before = status_kib("VmSize"), resident = status_kib("VmRSS");
    for (size_t headroom = 8 << 20; !model && headroom < 8 * file_bytes; headroom += 8 << 20) {
        low = limit;
        low.rlim_cur = ((rlim_t)before << 10) + headroom;
        assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
        const qn_status status = qn_model_load(path, &CPU_MODEL(.n_threads = 2), &model);
        assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
        if (status == QN_OK)
            break;
        assert_null(model);
        if (status != QN_ERR_MEMORY && status != QN_ERR_IO) /* IO: the file cannot be mapped */
            fail_msg("%s: %s", qn_status_name(status), qn_error_text());
        in_packing += strstr(qn_error_text(), " of addresses cannot be reserved") != NULL;
        assert_int_equal(resident_of_map(), -1);
        /* Heaps cache some memory; a leaked packed copy of a model would be larger. */
        assert_true(status_kib("VmRSS") < resident + (8 << 10));
    }
    assert_non_null(model);
    assert_true(in_packing > 0 || !count_packed(model));
    qn_model_free(model);
}
#endif

TEST_GROUP(write_model, remove_model)
