/* qn_quantize_file on small files: the type of each output tensor, values equal to dequantising and quantising, and an
 * unmodified target after every failure. */
#include "helper_random.h"
#include "helper_create.h"
#include "helper_files.h"

#include "base/append.h"
#include "gguf/gguf.h"
#include "quant/quant.h"
#include "quern/quern.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/quern-test-quantize-XXXXXX";
static char in[512], out[512];

static float small_float(void) /* in [-0.5, 0.5) */
{
    return (float)((double)(random_u64() >> 11) / 9007199254740992.0 - 0.5);
}

/* ---- The source: random weights, or given blocks ---- */

struct tensor {
    const char *name;
    qn_type type; /* type of the bytes; OX2_0 and the like are written with id 42 if `as_42` is set */
    bool as_42;
    uint32_t n_dims;
    uint64_t dims[4];
    int poison; /* index of a weight that is set to NaN; -1 for none */
};

static const struct tensor plain[] = {
    { "token_embd.weight", QN_TYPE_F32, false, 2, { 512, 40, 1, 1 }, -1 },
    { "blk.0.attn_norm.weight", QN_TYPE_F16, false, 1, { 512, 1, 1, 1 }, -1 },
    { "blk.0.attn_q.weight", QN_TYPE_BF16, false, 2, { 512, 300, 1, 1 }, -1 },
    { "blk.0.narrow_128.weight", QN_TYPE_F32, false, 2, { 384, 5, 1, 1 }, -1 },
    { "blk.0.narrow_64.weight", QN_TYPE_F32, false, 2, { 192, 5, 1, 1 }, -1 },
    { "blk.0.narrow_32.weight", QN_TYPE_F16, false, 2, { 96, 5, 1, 1 }, -1 },
    { "blk.0.narrow_1.weight", QN_TYPE_F32, false, 2, { 7, 3, 1, 1 }, -1 },
    { "blk.0.ssm_conv1d.weight", QN_TYPE_F16, false, 2, { 4, 64, 1, 1 }, -1 },
    { "blk.0.experts.weight", QN_TYPE_Q8_0, false, 3, { 256, 3, 4, 1 }, -1 },
    { "blk.0.ssm_alpha.weight", QN_TYPE_F16, false, 2, { 512, 16, 1, 1 }, -1 },
    { "blk.0.ssm_beta.weight", QN_TYPE_F32, false, 2, { 512, 16, 1, 1 }, -1 },
};
enum { N_PLAIN = COUNT(plain) };

static void fill_blocks(const struct tensor *t, uint8_t *bytes, size_t n_weights)
{
    const qn_type_info *info = qn_type_find((uint32_t)t->type);
    if (t->type == QN_TYPE_OX2_0) {
        for (size_t b = 0; b < n_weights / 128; b++, bytes += 34) {
            for (size_t i = 0; i < 32; i++)
                bytes[i] = (uint8_t)((unsigned)(small_float() * 80 + 40) % 3 * 0x51 +
                                     (unsigned)(small_float() * 80 + 40) % 3 * 4);
            bytes[32] = (uint8_t)b;
            bytes[33] = 0x2c;
        }
        return;
    }
    float *weights = malloc(n_weights * sizeof *weights);
    assert_non_null(weights);
    for (size_t i = 0; i < n_weights; i++)
        weights[i] = small_float();
    if (t->poison >= 0)
        weights[t->poison] = NAN;
    info->from_float(weights, n_weights / info->block_weights, bytes);
    free(weights);
}

static void make_source(const char *path, const struct tensor *tensors, size_t n)
{
    qn_gguf_writer *w;
    uint8_t *bytes[32];
    size_t sizes[32];
    assert_ok(qn_gguf_writer_create(path, &w));
    qn_gguf_writer_add_string(w, "general.architecture", "none");
    qn_gguf_writer_add_u32(w, "general.file_type", 0);
    qn_gguf_writer_add_u32(w, "prism.hadamard.version", 2);
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];
        const qn_type_info *info = qn_type_find((uint32_t)t->type);
        const size_t weights = (size_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
        sizes[i] = weights / info->block_weights * info->block_bytes;
        bytes[i] = malloc(sizes[i]);
        assert_non_null(bytes[i]);
        fill_blocks(t, bytes[i], weights);
        assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ t->name, strlen(t->name) },
                                            t->as_42 ? 42 : (uint32_t)t->type, t->n_dims, t->dims, sizes[i]));
    }
    assert_ok(qn_gguf_writer_begin_data(w));
    for (size_t i = 0; i < n; i++) {
        assert_ok(qn_gguf_writer_data(w, bytes[i], sizes[i]));
        free(bytes[i]);
    }
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
}

static float *weights_of(const qn_gguf *file, const char *name, size_t *n)
{
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, name);
    assert_non_null(t);
    const qn_type_info *info = qn_type_find(t->type);
    *n = (size_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
    float *weights = malloc(*n * sizeof *weights);
    assert_non_null(weights);
    info->to_float(t->data, *n / info->block_weights, weights);
    return weights;
}

/* ---- Helpers ---- */

static int files_named(const char *begin, const char *end)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        const size_t length = strlen(e->d_name);
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
             strncmp(e->d_name, begin, strlen(begin)) == 0 && length >= strlen(end) &&
             strcmp(e->d_name + length - strlen(end), end) == 0;
    }
    closedir(d);
    return n;
}

struct log_capture {
    char log[4096];
    size_t calls, last_done, total;
    bool ordered;
    size_t stop_after; /* 0: never */
    bool die;
};

static void capture_line(void *user, const char *line)
{
    struct log_capture *d = user;
    qn_text_buffer log = qn_append_after(d->log, sizeof d->log);
    qn_append(&log, "%s\n", line);
}

static bool capture_progress(void *user, size_t done, size_t total)
{
    struct log_capture *d = user;
    d->ordered = (d->calls == 0 || done >= d->last_done) && done <= total;
    d->last_done = done;
    d->total = total;
    d->calls++;
    if (d->stop_after && d->calls >= d->stop_after) {
        if (d->die)
            raise(SIGKILL);
        return false;
    }
    return true;
}

static int make_folder(void)
{
    if (!mkdtemp(folder))
        return -1;
    snprintf(in, sizeof in, "%s/in.gguf", folder);
    snprintf(out, sizeof out, "%s/out.gguf", folder);
    return 0;
}

static int remove_folder(void)
{
    return rmdir(folder);
}

static int clean(void)
{
    unlink(in);
    unlink(out);
    return files_named("", "") == 0 ? 0 : -1;
}

/* ---- Tests ---- */

TEST(every_target)
{
    static const struct {
        const char *name;
        uint32_t file_type; /* 0: no key */
        qn_type narrow_128, narrow_64, narrow_32, narrow_1;
    } targets[] = {
        { "f16", 1, QN_TYPE_F16, QN_TYPE_F16, QN_TYPE_F16, QN_TYPE_F16 },
        { "bf16", 32, QN_TYPE_BF16, QN_TYPE_BF16, QN_TYPE_BF16, QN_TYPE_BF16 },
        { "q8_0", 7, QN_TYPE_Q8_0, QN_TYPE_Q8_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "Q4_0", 2, QN_TYPE_Q4_0, QN_TYPE_Q4_0, QN_TYPE_Q4_0, QN_TYPE_F16 },
        { "q4_1", 3, QN_TYPE_Q4_1, QN_TYPE_Q4_1, QN_TYPE_Q4_1, QN_TYPE_F16 },
        { "q1_0", 40, QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "q2_0", 41, QN_TYPE_Q2_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "pq2_0", 0, QN_TYPE_PQ2_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "ptq1_0", 0, QN_TYPE_PTQ1_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "tq1_0", 36, QN_TYPE_Q2_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
        { "tq2_0", 37, QN_TYPE_Q2_0, QN_TYPE_Q2_0, QN_TYPE_Q8_0, QN_TYPE_F16 },
    };
    make_source(in, plain, N_PLAIN);
    qn_gguf *before, *after;
    assert_ok(qn_gguf_open(in, &before));
    for (size_t k = 0; k < COUNT(targets); k++) {
        label("%s", targets[k].name);
        struct log_capture d = { 0 };
        const qn_quantize_params params =
            QUANTIZE_PARAMS(.n_threads = 3, .force = true, .on_progress = capture_progress, .on_log = capture_line,
                            .user = &d);
        assert_ok(qn_quantize_file(in, out, targets[k].name, &params));
        assert_true(d.ordered && d.last_done == d.total && d.total > 0);
        assert_ok(qn_gguf_open(out, &after));
        const qn_type target = qn_type_find_name(targets[k].name)->type;
        const bool is_low_bit = qn_type_is_low_bit(qn_type_find_name(targets[k].name));
        const qn_type expected[N_PLAIN] = { target,
                                            QN_TYPE_F32,
                                            target,
                                            targets[k].narrow_128,
                                            targets[k].narrow_64,
                                            targets[k].narrow_32,
                                            targets[k].narrow_1,
                                            QN_TYPE_F32,
                                            target,
                                            is_low_bit ? QN_TYPE_F16 : target,
                                            is_low_bit ? QN_TYPE_F32 : target };
        for (size_t i = 0; i < N_PLAIN; i++) {
            label("%s", plain[i].name);
            const qn_gguf_tensor *t = qn_gguf_tensor_at(after, i);
            assert_true(qn_string_equals(t->name, plain[i].name));
            assert_int_equal(t->n_dims, plain[i].n_dims);
            assert_memory_equal(t->dims, plain[i].dims, sizeof t->dims);
            if (t->type != (uint32_t)expected[i])
                fail_msg("type %u, expected %u", t->type, expected[i]);
            const bool wider = expected[i] != target && plain[i].n_dims > 1;
            assert_int_equal(strstr(d.log, plain[i].name) != NULL, wider);

            size_t n;
            float *source = weights_of(before, plain[i].name, &n);
            const qn_type_info *info = qn_type_find(t->type);
            uint8_t *blocks = malloc(t->bytes);
            assert_non_null(blocks);
            if (plain[i].type == t->type) /* copied byte for byte */
                memcpy(blocks, qn_gguf_find_tensor(before, plain[i].name)->data, t->bytes);
            else
                info->from_float(source, n / info->block_weights, blocks);
            assert_memory_equal(blocks, t->data, t->bytes);
            free(blocks);
            free(source);
        }
        uint32_t value = 0;
        assert_ok(qn_gguf_get_u32(after, "general.file_type", false, &value));
        assert_int_equal(value, targets[k].file_type);
        assert_ok(qn_gguf_get_u32(after, "prism.hadamard.version", true, &value));
        assert_int_equal(value, 2);
        qn_gguf_close(after);
    }
    qn_gguf_close(before);
}

TEST(threads_do_not_change_the_result)
{
    char other[512];
    snprintf(other, sizeof other, "%s/other", folder);
    make_source(in, plain, N_PLAIN);
    static const int threads[] = { 2, 7, 0 };
    assert_ok(qn_quantize_file(in, out, "ptq1_0", &QUANTIZE_PARAMS(.n_threads = 1, .force = true)));
    for (size_t i = 0; i < 3; i++) {
        assert_ok(qn_quantize_file(in, other, "ptq1_0", &QUANTIZE_PARAMS(.n_threads = threads[i], .force = true)));
        assert_same_files(out, other);
    }
    unlink(other);
}

TEST(onto_itself)
{
    char link[512];
    snprintf(link, sizeof link, "%s/link", folder);
    make_source(in, plain, N_PLAIN);
    assert_ok(qn_quantize_file(in, out, "q8_0", NULL));
    assert_int_equal(symlink("in.gguf", link), 0);
    assert_ok(qn_quantize_file(in, link, "q8_0", NULL));
    assert_same_files(in, out);
    assert_ok(qn_quantize_file(in, in, "q8_0", NULL)); /* again: q8_0 tensors are copied */
    assert_same_files(in, out);
    unlink(link);
}

/* Ternary weights in each of the layouts of type 42 keep their values in each ternary type. */
TEST(layouts_of_type_42)
{
    static const struct tensor ox[] = { { "a.weight", QN_TYPE_OX2_0, true, 2, { 256, 100, 1, 1 }, -1 } };
    static const struct tensor old[] = { { "a.weight", QN_TYPE_PQ2_0, true, 2, { 256, 100, 1, 1 }, -1 } };
    static const struct tensor mainline[] = { { "a.weight", QN_TYPE_Q2_0, true, 2, { 256, 100, 1, 1 }, -1 } };
    static const struct tensor *const sources[] = { ox, old, mainline };
    for (size_t k = 0; k < 3; k++) {
        label("layout %zu", k);
        make_source(in, sources[k], 1);
        qn_gguf *before, *after;
        assert_ok(qn_gguf_open(in, &before));
        assert_int_equal(qn_gguf_tensor_at(before, 0)->type, sources[k][0].type);
        /* mainline's 64 weights per scale do not fit into blocks of 128; the others fit into all types of 128 or
         * less */
        static const char *const targets[] = { "q2_0", "pq2_0", "ptq1_0" };
        for (size_t i = 0; i < (k == 2 ? 1 : 3); i++) {
            label("to %s", targets[i]);
            struct log_capture d = { 0 };
            assert_ok(qn_quantize_file(in, out, targets[i],
                                       &QUANTIZE_PARAMS(.force = true, .on_log = capture_line, .user = &d)));
            assert_contains(d.log, "type 42");
            assert_ok(qn_gguf_open(out, &after));
            assert_int_equal(qn_gguf_tensor_at(after, 0)->type, qn_type_find_name(targets[i])->type);
            size_t n;
            float *a = weights_of(before, "a.weight", &n), *b = weights_of(after, "a.weight", &n);
            for (size_t j = 0; j < n; j++)
                assert_true(a[j] == b[j]);
            free(a);
            free(b);
            qn_gguf_close(after);
        }
        qn_gguf_close(before);
    }
}

/* The gates of recurrent layers are not ternary in models whose other matrices are: without `force` the model is
 * written, with the same weights. */
TEST(gates_keep_their_type)
{
    static const struct tensor ternary[] = {
        { "a.weight", QN_TYPE_OX2_0, true, 2, { 256, 100, 1, 1 }, -1 },
        { "blk.3.ssm_alpha.weight", QN_TYPE_F16, false, 2, { 256, 8, 1, 1 }, -1 },
        { "blk.3.ssm_beta.weight", QN_TYPE_BF16, false, 2, { 256, 8, 1, 1 }, -1 }
    };
    static const char *const targets[] = { "q2_0", "pq2_0", "ptq1_0" };
    make_source(in, ternary, COUNT(ternary));
    qn_gguf *before, *after;
    assert_ok(qn_gguf_open(in, &before));
    for (size_t i = 0; i < COUNT(targets); i++) {
        label("%s", targets[i]);
        struct log_capture d = { 0 };
        assert_ok(qn_quantize_file(in, out, targets[i], &QUANTIZE_PARAMS(.on_log = capture_line, .user = &d)));
        assert_contains(d.log, "blk.3.ssm_alpha.weight: stays f16: gates of heads are not trained in");
        assert_contains(d.log, "blk.3.ssm_beta.weight: stays bf16");
        assert_ok(qn_gguf_open(out, &after));
        for (size_t t = 0; t < COUNT(ternary); t++) {
            size_t n;
            float *a = weights_of(before, ternary[t].name, &n), *b = weights_of(after, ternary[t].name, &n);
            assert_memory_equal(a, b, n * sizeof *a);
            free(a);
            free(b);
        }
        qn_gguf_close(after);
    }
    qn_gguf_close(before);
}

TEST(rejected_arguments)
{
    static const struct tensor poisoned[] = {
        { "fine.weight", QN_TYPE_F32, false, 2, { 256, 2, 1, 1 }, -1 },
        { "rotten.weight", QN_TYPE_F32, false, 2, { 256, 9000, 1, 1 }, 2200000 }
    };
    write_text(out, "precious");
    assert_int_equal(qn_quantize_file(in, out, "q8_0", NULL), QN_ERR_IO); /* no such file */
    make_source(in, poisoned, 2);
    static const char *const unknown[] = { "q3_k", "f32", "ox2_0", "q5_0", "", "q8_0 " };
    for (size_t i = 0; i < COUNT(unknown); i++) {
        assert_fails(qn_quantize_file(in, out, unknown[i], NULL), QN_ERR_INVALID,
                     "f16 bf16 q4_0 q4_1 q8_0 tq1_0 tq2_0 q1_0 q2_0 pq2_0 ptq1_0");
    }
    static const int threads[] = { -1, 1025 };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(qn_quantize_file(in, out, "q8_0", &QUANTIZE_PARAMS(.n_threads = threads[i])), QN_ERR_INVALID);
    }
    static const char *const targets[] = { "q8_0", "q1_0" };
    for (size_t i = 0; i < 2; i++) {
        assert_fails(qn_quantize_file(in, out, targets[i], &QUANTIZE_PARAMS(.force = true)), QN_ERR_FORMAT,
                     "'rotten.weight': block 2200000");
    }
    assert_file(out, "precious", strlen("precious"));
    assert_int_equal(qn_quantize_file(in, folder, "q8_0", NULL), QN_ERR_IO);
    assert_int_equal(files_named("", ""), 2);
}

TEST(cancelled)
{
    make_source(in, plain, N_PLAIN);
    for (size_t calls = 1; calls <= N_PLAIN + 1; calls++) {
        struct log_capture d = { .stop_after = calls };
        assert_int_equal(
            qn_quantize_file(in, out, "q4_0", &QUANTIZE_PARAMS(.on_progress = capture_progress, .user = &d)),
            QN_ERR_CANCELLED);
        assert_int_equal(files_named("", ""), 1);
        assert_int_equal(d.calls, calls);
    }
}

TEST(full_disk)
{
    make_source(in, plain, N_PLAIN);
    write_text(out, "precious");
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    small = old;
    small.rlim_cur = 50000; /* the result has about 200 KB */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const qn_status status = qn_quantize_file(in, out, "q8_0", NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_fails(status, QN_ERR_IO, "File too large");
    assert_file(out, "precious", strlen("precious"));
    assert_int_equal(files_named("", ""), 2);
}

/* A process that is killed does not modify the target, and what it wrote goes with it, or with the next process. */
TEST(killed)
{
    make_source(in, plain, N_PLAIN);
    write_text(out, "precious");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct log_capture d = { .stop_after = 4, .die = true };
        qn_quantize_file(in, out, "q4_0", &QUANTIZE_PARAMS(.on_progress = capture_progress, .user = &d));
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_file(out, "precious", strlen("precious"));
    assert_int_equal(files_named("", ""), 2 + files_named(".out.gguf.", ".quern.part")); /* none where O_TMPFILE is */
    assert_ok(qn_quantize_file(in, in, "q4_0", NULL));
    assert_int_equal(files_named("", ""), 2);
}

/* ---- Which weights may become which type ---- */

enum { BINARY, TERNARY, FOUR, ORDINARY, HUGE, N_KINDS, ROWS_TESTED = 40 };

/* A file with one matrix [512, ROWS_TESTED] whose groups of 128 have values of a kind. `scales`: how many scales rows
 * have in turn. */
static void make_kind(int kind, int scales, qn_type type)
{
    const uint64_t dims[] = { 512, ROWS_TESTED };
    static float weights[512 * ROWS_TESTED];
    static uint8_t blocks[sizeof weights];
    const size_t n = COUNT(weights);
    const qn_type_info *info = qn_type_find((uint32_t)type);
    qn_gguf_writer *w;
    size_t bytes;
    for (size_t i = 0; i < n; i++) {
        static const int from[] = { -1, -1, -1 }, to[] = { 1, 1, 2 };
        const float scale = 0.25f + 0.125f * (float)(i / 128 % (size_t)scales);
        const int code = kind == BINARY
                             ? (random_u64() & 1 ? 1 : -1)
                             : from[kind % 3] + (int)(random_u64() % (uint64_t)(to[kind % 3] - from[kind % 3] + 1));
        weights[i] = kind == ORDINARY ? small_float()
                     : kind == HUGE   ? 1e5f
                     : i % 128 < 2    ? (i % 2 ? -scale : scale * (kind == FOUR ? 2 : 1))
                                      : scale * (float)code;
    }
    assert_true(qn_row_bytes(info, n, &bytes));
    info->from_float(weights, n / info->block_weights, blocks);
    assert_ok(qn_gguf_writer_create(in, &w));
    assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ "blk.0.x", 7 }, (uint32_t)type, 2, dims, bytes));
    assert_ok(qn_gguf_writer_begin_data(w));
    assert_ok(qn_gguf_writer_data(w, blocks, bytes));
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
}

TEST(the_table_of_types)
{
    static const char *const names[] = { "q1_0", "ptq1_0", "pq2_0", "q2_0", "tq1_0", "tq2_0",
                                         "q8_0", "q4_0",   "q4_1",  "f16",  "bf16" };
    static const struct {
        int kind, scales;
        qn_type type;
        const char *allowed; /* one a name: y or n */
    } rows[] = {
        { BINARY, 1, QN_TYPE_Q1_0, "yyyyyyyyyyy" },    { BINARY, 2, QN_TYPE_Q1_0, "yyyynnyyyyy" },
        { BINARY, 2, QN_TYPE_F16, "yyyynnyyyyy" },     { BINARY, 2, QN_TYPE_PTQ1_0, "yyyynnyyyyy" },
        { TERNARY, 1, QN_TYPE_PTQ1_0, "nyyyyyyyyyy" }, { TERNARY, 2, QN_TYPE_PTQ1_0, "nyyynnyyyyy" },
        { TERNARY, 1, QN_TYPE_TQ1_0, "nyyyyyyyyyy" },  { TERNARY, 1, QN_TYPE_TQ2_0, "nyyyyyyyyyy" },
        { TERNARY, 2, QN_TYPE_PQ2_0, "nyyynnyyyyy" },  { TERNARY, 2, QN_TYPE_Q2_0, "nyyynnyyyyy" },
        { TERNARY, 2, QN_TYPE_BF16, "nyyynnyyyyy" },   { TERNARY, 2, QN_TYPE_F32, "nyyynnyyyyy" },
        { FOUR, 2, QN_TYPE_PQ2_0, "nnyynnyyyyy" },     { FOUR, 2, QN_TYPE_Q2_0, "nnyynnyyyyy" },
        { FOUR, 2, QN_TYPE_F16, "nnyynnyyyyy" },       { ORDINARY, 1, QN_TYPE_F32, "nnnnnnyyyyy" },
        { ORDINARY, 1, QN_TYPE_Q8_0, "nnnnnnyyyyy" },  { ORDINARY, 1, QN_TYPE_Q4_0, "nnnnnnyyyyy" },
    };
    for (size_t r = 0; r < COUNT(rows); r++) {
        make_kind(rows[r].kind, rows[r].scales, rows[r].type);
        for (size_t t = 0; t < COUNT(names); t++) {
            const qn_type_info *from = qn_type_find((uint32_t)rows[r].type);
            struct log_capture d = { 0 };
            const bool allowed = rows[r].allowed[t] == 'y' || strcmp(names[t], from->name) == 0;
            label("kind %d, %d scales, %s to %s", rows[r].kind, rows[r].scales, from->name, names[t]);
            write_text(out, "kept");
            const qn_status status = qn_quantize_file(in, out, names[t], NULL);
            assert_int_equal(status, allowed ? QN_OK : QN_ERR_INVALID);
            if (!allowed) {
                assert_text("'blk.0.x'");
                assert_text("does not hold");
                assert_text("--force");
                assert_file(out, "kept", strlen("kept"));
            }
            assert_ok(qn_quantize_file(in, out, names[t],
                                       &QUANTIZE_PARAMS(.force = true, .on_log = capture_line, .user = &d)));
            assert_int_equal(strstr(d.log, "warning: 1 of 1 matrices") != NULL, !allowed);
        }
    }
    label("%s", "weights that fp16 does not have");
    make_kind(HUGE, 1, QN_TYPE_F32);
    assert_fails(qn_quantize_file(in, out, "f16", NULL), QN_ERR_FORMAT,
                 "'blk.0.x' has a weight that is too large for f16");
    assert_ok(qn_quantize_file(in, out, "bf16", NULL));
}

TEST_GROUP(make_folder, remove_folder)

TEST_EVERY(NULL, clean)
