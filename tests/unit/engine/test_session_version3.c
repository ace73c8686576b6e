/* Session files of version 3: those of the CPU, and those of a GPU, whose layout was another. Files are made of the contents
 * of sessions as quern wrote them when version 3 was the newest. */
#include "helper_sessions.h"

#include "engine/state_version3.h"
#include "kernels/attention/attention.h"
#include "kernels/deltanet/deltanet.h"

#include <math.h>
#include <xxhash.h>

enum { FILE_MAX = 1 << 24, N_MORE = 70, PAGE = QN_KV_PAGE, HEADER = 64 };

static uint8_t *bytes, *old; /* [FILE_MAX] contents of session files */

static int set_up(void **unused)
{
    bytes = malloc(FILE_MAX);
    old = malloc(FILE_MAX);
    return !bytes || !old || make_folder(unused);
}

static int tear_down(void **unused)
{
    free(bytes);
    free(old);
    return remove_folder(unused);
}

static void assert_restore(qn_status status, const char *text)
{
    qn_session *session;
    assert_int_equal(qn_session_restore(model, other_path, NULL, &session), status);
    assert_null(session);
    assert_text(text);
}

/* A session of the first tokens, which is saved in `bytes`. */
static qn_session *save_session(const char *kv, size_t n_tokens, size_t *size)
{
    const qn_session_params params = { .size = sizeof(qn_session_params), .n_ctx = 400, .kv = kv };
    qn_session *session;
    assert_ok(qn_session_create(model, &params, &session));
    assert_ok(qn_session_eval(session, ids, n_tokens, QN_LOGITS_NONE, NULL));
    assert_ok(qn_session_save(session, path));
    *size = read_file(path, bytes, FILE_MAX);
    return session;
}

/* ---- Files of the CPU ---- */

/* Puts a header of version 3 and the checksums into a file of header->file_bytes bytes. */
static void write_version_3(uint8_t *file, const struct qn_state_header *header)
{
    const size_t common = offsetof(struct qn_state_header, state_position);
    memcpy(file, header, common);
    const uint64_t header_sum = XXH64(file, common, 0);
    memcpy(file + common, &header_sum, sizeof header_sum);
    const uint64_t checksum = XXH64(file, header->file_bytes - sizeof checksum, 0);
    memcpy(file + header->file_bytes - sizeof checksum, &checksum, sizeof checksum);
}

/* The file of version 3 with the contents of `bytes`, a file of version 4: without the members that are new. */
static void loads_version_3(const char *kv, size_t length)
{
    struct qn_state_header header;
    size_t size;
    label("%zu tokens, %s", length, kv);
    qn_session *session = save_session(kv, length, &size);
    qn_session_free(session);
    memcpy(&header, bytes, sizeof header);
    memcpy(old + HEADER, bytes + sizeof header, size - sizeof header);
    header.version = 3;
    header.file_bytes -= sizeof header - HEADER;
    write_version_3(old, &header);
    write_state(other_path, old, header.file_bytes);
    assert_ok(qn_session_restore(model, other_path, NULL, &session));
    assert_ok(qn_session_save(session, path));
    qn_session_free(session);
    assert_int_equal(read_file(path, old, FILE_MAX), size);
    assert_memory_equal(old, bytes, size);
}

static void version_3(void **unused)
{
    static const size_t lengths[] = { 5, 64, 70, 128 };
    static const char *const names[] = { "llama.q1_0", "qwen35.q1_0" };
    (void)unused;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        open_model(names[m], (qn_model_params){ .size = sizeof(qn_model_params), .device = "cpu", .n_threads = 1 }, 1);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            loads_version_3("f16", lengths[i]);
            loads_version_3("aura4", lengths[i]);
        }
        close_model();
    }
}

/* A file that quern wrote when version 3 was the newest (tests/golden/README.md). */
static void a_file_of_version_3(void **unused)
{
    char golden[512];
    qn_session *session;
    (void)unused;
    snprintf(golden, sizeof golden, "%s/tests/golden/qwen35.q1_0.aura4.session3", QN_SOURCE_DIR);
    open_model("qwen35.q1_0", (qn_model_params){ .size = sizeof(qn_model_params), .device = "cpu", .n_threads = 1 }, 1);
    assert_ok(qn_session_restore(model, golden, NULL, &session));
    assert_int_equal(qn_session_length(session), 70);
    assert_memory_equal(qn_session_tokens(session), ids, 70 * sizeof *ids);
    assert_int_equal(qn_session_reach(session, 65), 65);
    assert_ok(qn_session_save(session, path));
    const size_t size = read_file(golden, old, FILE_MAX), dropped = sizeof(struct qn_state_header) - HEADER;
    assert_int_equal(read_file(path, bytes, FILE_MAX), size + dropped);
    assert_memory_equal(bytes + sizeof(struct qn_state_header), old + HEADER, size - HEADER - sizeof(uint64_t));
    assert_ok(qn_session_eval(session, ids + 70, 1, QN_LOGITS_NONE, NULL));
    qn_session_free(session);
    close_model();
}

/* ---- Files of a GPU ---- */

static uint8_t *put(uint8_t *to, const void *from, size_t n)
{
    memcpy(to, from, n);
    return to + n;
}

/* The first n fp16 rows of keys, or values, of the page of a head. */
static uint8_t *put_f16(uint8_t *to, const uint16_t *rows, bool is_keys, size_t dim, size_t n)
{
    for (size_t p = 0; p < n; p++)
        for (size_t d = 0; d < dim; d++) {
            const size_t tiled = p / QN_KEY_TILE * dim * QN_KEY_TILE + d * QN_KEY_TILE + p % QN_KEY_TILE;
            to = put(to, &rows[is_keys ? tiled : p * dim + d], sizeof *rows);
        }
    return to;
}

/* Keys, then values of all heads in fp16. */
static uint8_t *put_f16_cache(uint8_t *to, const qn_kv_view *view, size_t layer, size_t n)
{
    const size_t dim = view->value_bytes / PAGE / sizeof(uint16_t);
    for (size_t i = 0; i < 2 * view->n_heads; i++)
        for (size_t page = 0; page * PAGE < n; page++) {
            const bool is_keys = i < view->n_heads;
            const void *rows = is_keys ? qn_kv_keys(view, layer, page, i) : qn_kv_values(view, layer, page, i - view->n_heads);
            to = put_f16(to, rows, is_keys, dim, n - page * PAGE < PAGE ? n - page * PAGE : PAGE);
        }
    return to;
}

/* Codes of keys, then values of all heads, or their scales, of complete pages from 1 on. */
static uint8_t *put_codes(uint8_t *to, const qn_kv_view *view, size_t layer, size_t n, bool scales)
{
    for (size_t i = 0; i < 2 * view->n_heads; i++)
        for (size_t p = PAGE; p < n / PAGE * PAGE; p++) {
            const bool is_keys = i < view->n_heads;
            const qn_aura_codec *codec = is_keys ? view->key_codec : view->value_codec;
            uint8_t codes[QN_AURA_MAX_DIM];
            uint32_t words[QN_AURA_MAX_DIM];
            float scale;
            if (is_keys)
                qn_aura_load_key(qn_kv_keys(view, layer, p / PAGE, i), p % PAGE, codes, &scale, codec->dim, codec->bits);
            else
                qn_aura_load_value(qn_kv_values(view, layer, p / PAGE, i - view->n_heads), p % PAGE, codes, &scale, codec->dim,
                                   codec->bits);
            qn_aura_pack(words, codes, codec->dim, codec->bits);
            to = scales ? put(to, &scale, sizeof scale)
                        : put(to, words, qn_aura_row_words(codec->dim, codec->bits) * sizeof *words);
        }
    return to;
}

/* Keys, then values of all heads of an fp16 page. */
static uint8_t *put_f16_page(uint8_t *to, const qn_kv_view *view, size_t layer, size_t page, size_t n)
{
    for (size_t i = 0; n && i < 2 * view->n_heads; i++)
        to = i < view->n_heads
                 ? put_f16(to, qn_kv_f16_keys(view, layer, page, i), true, view->key_codec->dim, n)
                 : put_f16(to, qn_kv_f16_values(view, layer, page, i - view->n_heads), false, view->key_codec->dim, n);
    return to;
}

static uint8_t *put_attention(uint8_t *to, const qn_kv_view *view, size_t layer, size_t n)
{
    if (!view->key_codec)
        return put_f16_cache(to, view, layer, n);
    to = put_codes(to, view, layer, n, false);
    to = put_codes(to, view, layer, n, true);
    to = put_f16_page(to, view, layer, 0, n < PAGE ? n : PAGE);
    to = put_f16_page(to, view, layer, n / PAGE, n < PAGE ? 0 : n % PAGE);
    for (size_t head = 0; n >= PAGE && head < view->n_heads; head++)
        to = put(to, qn_kv_key_mean(view, layer, head), view->key_codec->dim * sizeof(float));
    return to;
}

/* S after the last token, of an element: the state and the rows of the open chunk. */
static float state_after(const qn_recurrent_layer *layer, const qn_recurrent_shape *s, size_t head, size_t value, size_t key,
                         size_t n_open)
{
    double sum = layer->state ? layer->state[(head * s->head_k + key) * s->head_v + value] : 0;
    for (size_t row = 0; row < n_open; row++)
        sum = sum * exp(layer->log_decay[head * QN_GDN_CHUNK + row]) +
              (double)layer->v_new[(head * QN_GDN_CHUNK + row) * s->head_v + value] *
                  layer->keys[(head % s->n_k_heads * s->head_k + key) * QN_GDN_CHUNK + row];
    return (float)sum;
}

static uint8_t *put_recurrent(uint8_t *to, const qn_recurrent_view *view, size_t index, size_t n)
{
    const qn_recurrent_shape *s = &view->layout->shape;
    const qn_recurrent_layer layer = qn_recurrent_layer_at(view, index);
    const size_t width = qn_recurrent_width(s), begin = view->state_position, n_open = n - begin;
    uint8_t *const start = to;
    for (size_t head = 0; head < s->n_v_heads; head++)
        for (size_t value = 0; value < s->head_v; value++)
            for (size_t key = 0; key < s->head_k; key++) {
                const float x = state_after(&layer, s, head, value, key, n_open);
                to = put(to, &x, sizeof x);
            }
    for (size_t p = n > s->taps ? n - s->taps : 0; p < n; p++)
        if (p + s->taps > begin) /* the row of a position that is not kept has had another since */
            memcpy(to + p % s->taps * width * sizeof(float),
                   p < begin ? layer.history + (p + s->taps - 1 - begin) * width : layer.conv_inputs + (p - begin) * width,
                   width * sizeof(float));
    to += s->taps * width * sizeof(float);
    return start + ((size_t)(to - start) + 255) / 256 * 256;
}

/* Writes the file that a GPU wrote of a session, which `bytes` has as version 4, to other_path. Returns its size. */
static size_t write_gpu_file(const qn_session *session, const char *layout)
{
    const size_t n = qn_session_length(session);
    const qn_plan *plan = &model->plan;
    struct qn_state_header header;
    memset(old, 0, FILE_MAX);
    uint8_t *at = put(old + HEADER, qn_session_tokens(session), n * sizeof(qn_token));
    for (size_t layer = 0; layer < plan->n_layers; layer++)
        if (!plan->is_recurrent || !plan->is_recurrent[layer])
            at = put_attention(at, session->memory->cache, layer, n);
    for (size_t i = 0; session->is_recurrent && i < session->memory->recurrent->layout->n_layers; i++)
        at = put_recurrent(at, session->memory->recurrent, i, n);
    memcpy(&header, bytes, sizeof header);
    header.version = 3;
    header.file_bytes = (uint64_t)(at - old) + sizeof(uint64_t);
    strncat(header.kv, layout, sizeof header.kv - 1 - strlen(header.kv));
    write_version_3(old, &header);
    write_state(other_path, old, header.file_bytes);
    return header.file_bytes;
}

/* ||x - y|| / ||y|| */
static double distance(const float *x, const float *y, size_t n)
{
    double sum = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        norm += (double)y[i] * y[i];
    }
    return sqrt(sum / norm);
}

/* The cache has the same bytes; a recurrent layer's state is rounded at another position, so logits differ by rounding. */
static void check_gpu_file(const char *kv, size_t length, double tolerance)
{
    size_t size;
    qn_session *session = save_session(kv, length, &size), *restored;
    label("%zu tokens, %s", length, kv);
    (void)write_gpu_file(session, " cuda");
    assert_ok(qn_session_restore(model, other_path, NULL, &restored));
    assert_int_equal(qn_session_length(restored), length);
    assert_memory_equal(qn_session_tokens(restored), ids, length * sizeof *ids);
    if (!session->is_recurrent || length < PAGE) {
        assert_ok(qn_session_save(restored, path));
        assert_int_equal(read_file(path, old, FILE_MAX), size);
        assert_memory_equal(old, bytes, size);
    } else {
        assert_int_equal(qn_session_reach(restored, (uint32_t)length), length);
        assert_true(qn_session_reach(restored, (uint32_t)length - 1) == 0);
    }
    assert_ok(qn_session_eval(session, ids + length, N_MORE, QN_LOGITS_ALL, expected));
    assert_ok(qn_session_eval(restored, ids + length, N_MORE, QN_LOGITS_ALL, found));
    if (session->is_recurrent && length >= PAGE)
        assert_true(distance(found, expected, logits_bytes / sizeof *found) < tolerance);
    else
        assert_same_logits();
    qn_session_free(restored);
    (void)write_gpu_file(session, " metal");
    assert_restore(QN_ERR_UNSUPPORTED, "metal");
    qn_session_free(session);
}

static void files_of_a_gpu(void **unused)
{
    static const size_t lengths[] = { 1, 5, 63, 64, 65, 66, 70, 127, 128, 130, 200 };
    static const char *const names[] = { "qwen3.q1_0", "qwen35.f16", "qwen35.q1_0" }, *const kv[] = { "f16", "aura4",
                                                                                                      "aura4v2" };
    static const double tolerances[] = { 0, 1e-5, 0.03 }; /* activations of q1_0 are rounded to 8 bits */
    (void)unused;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        open_model(names[m], (qn_model_params){ .size = sizeof(qn_model_params), .device = "cpu", .n_threads = 1 }, N_MORE);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (size_t k = 0; k < sizeof kv / sizeof *kv; k++)
                check_gpu_file(kv[k], lengths[i], tolerances[m]);
        close_model();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_3),
        cmocka_unit_test(a_file_of_version_3),
        cmocka_unit_test(files_of_a_gpu),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
