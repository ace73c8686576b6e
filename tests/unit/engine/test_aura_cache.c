/* Sessions with caches of AURA codes, and of fp32 elements. Logits are bit-identical for all thread counts and prefill
 * batch sizes, and after save, restore, fork and truncate; their error against the f16 cache is bounded by the bits.
 * Unsupported formats are rejected, or fall back to f16. */
#include "helper_sessions.h"

#include "base/f16.h"
#include "cpu/memory.h"
#include "engine/internal.h"
#include "engine/state_file.h"
#include "kernels/attention/attention.h"
#include "quern/kernels.h"
#include "quern/quern.h"

#include <math.h>

/* The last tokens, whose logits are compared, are in the second block of 256 positions. */
enum { N_IDS = 330, N_LAST = 60, N_FIRST = N_IDS - N_LAST, N_FORMATS = 8, FILE_MAX = 1 << 22 };

/* Sanitizers: a third of the formats. */
enum { FORMAT_STEP = QN_TEST_SANITIZED ? 3 : 1 };

static const char *const formats[N_FORMATS] = {
    "f32", "aura8", "aura6", "aura4", "aura4v3", "aura4v2", "aura3", "aura2"
};
static const unsigned bits[N_FORMATS][2] = { { 32, 32 }, { 8, 8 }, { 6, 6 }, { 4, 4 },
                                             { 4, 3 },   { 4, 2 }, { 3, 3 }, { 2, 2 } };

/* Models with heads of 64 and 128 dimensions, one or several query heads per key-value head, gates, with and without
 * recurrent layers. */
static const char *const names[] = { "llama.q2_0",         "qwen3.f16",   "qwen3.q1_0",
                                     "qwen35-rotated.f16", "qwen35.q1_0", "qwen2.q1_0" };

static void open_threaded(const char *name, int n_threads)
{
    open_model(name, CPU_MODEL(.n_threads = n_threads), N_LAST);
}

/* All formats with all models would take minutes: each format is tested with one model. */
static bool go_together(size_t name, size_t format)
{
    return format % (COUNT(names)) == name;
}

static void over_models(void (*test)(const char *format))
{
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        open_threaded(names[i], 2);
        for (size_t f = 0; f < N_FORMATS; f += FORMAT_STEP)
            if (go_together(i, f)) {
                label("%s", formats[f]);
                test(formats[f]);
            }
        close_model();
    }
}

static qn_session *new_session(const char *format, uint32_t n_batch, size_t n_tokens)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = n_batch, .kv = format));
    assert_string_equal(qn_session_kv(session), format);
    append_tokens(session, ids, n_tokens);
    return session;
}

static void eval_rest(qn_session *session, float *logits)
{
    const uint32_t length = qn_session_length(session);
    assert_true(length <= N_FIRST);
    append_tokens(session, ids + length, N_FIRST - length);
    assert_ok(qn_session_eval(session, ids + N_FIRST, N_LAST, QN_LOGITS_ALL, logits));
}

/* Evaluates the first tokens without logits and the last ones with logits, `batch` tokens at a time. */
static void logits_in_batches(const char *format, size_t batch, float *logits)
{
    qn_session *session = new_session(format, (uint32_t)batch, 0);
    for (size_t done = 0; done < N_FIRST;) {
        const size_t n = N_FIRST - done < batch ? N_FIRST - done : batch;
        append_tokens(session, ids + done, n);
        done += n;
    }
    for (size_t done = 0; done < N_LAST;) {
        const size_t n = N_LAST - done < batch ? N_LAST - done : batch;
        assert_ok(qn_session_eval(session, ids + N_FIRST + done, n, QN_LOGITS_ALL, logits + done * info.n_vocab));
        done += n;
    }
    qn_session_free(session);
}

TEST(threads_and_batches_do_not_matter)
{
    static const int threads[] = { 1, 3, 7 };
    static const size_t batches[] = { 1, 7, 64, 65, N_IDS };
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        float *first[N_FORMATS] = { NULL };
        for (size_t t = 0; t < COUNT(threads); t++) {
            label("%d threads", threads[t]);
            open_threaded(names[i], threads[t]);
            for (size_t f = 0; f < N_FORMATS; f += FORMAT_STEP) {
                label("%s", formats[f]);
                const size_t size = N_LAST * info.n_vocab * sizeof *found;
                if (!go_together(i, f))
                    continue;
                if (t == 0) {
                    first[f] = malloc(size);
                    assert_non_null(first[f]);
                    logits_in_batches(formats[f], N_IDS, first[f]);
                }
                /* Single-token steps spend their time at barriers, so one thread count above 1 has to do. */
                for (size_t p = threads[t] % 3 ? 1 : 0; p < 5; p++) {
                    label("%zu tokens at a time", batches[p]);
                    logits_in_batches(formats[f], batches[p], found);
                    assert_memory_equal(first[f], found, size);
                }
            }
            close_model();
        }
        for (size_t f = 0; f < N_FORMATS; f += FORMAT_STEP)
            free(first[f]);
    }
}

/* ---- Save, restore, fork, truncate ---- */

/* Lengths at the edges of tiles, pages and blocks of positions. */
static const uint32_t lengths[] = { 1, 64, 65, 257 };

static void restored_as_saved(const char *format)
{
    const qn_session_params other = SESSION_PARAMS(.kv = strcmp(format, "aura3") ? "aura3" : "f16");
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        qn_session *session = new_session(format, 0, lengths[i]), *restored;
        assert_ok(qn_session_save(session, path));
        eval_rest(session, expected);
        qn_session_free(session);
        const qn_session_params params_list[] = {
            { .size = sizeof(qn_session_params), .n_ctx = 0 },
            { .size = sizeof(qn_session_params), .n_ctx = 1000, .n_batch = 9, .kv = format }
        };
        for (size_t r = 0; r < 2; r++) {
            label("context of %u", (unsigned)params_list[r].n_ctx);
            assert_ok(qn_session_restore(model, path, &params_list[r], &restored));
            assert_string_equal(qn_session_kv(restored), format);
            eval_rest(restored, found);
            assert_same_logits();
            qn_session_free(restored);
        }
        assert_int_equal(qn_session_restore(model, path, &other, &restored), QN_ERR_UNSUPPORTED);
        assert_null(restored);
        char text[64];
        snprintf(text, sizeof text, "its cache format is '%s', expected '%s'", format, other.kv);
        assert_text(text);
    }
}

TEST(restored_sessions_go_on)
{
    over_models(restored_as_saved);
}

/* Truncated tokens leave no trace in a saved file, and do not affect later logits. */
static void same_after_a_detour(const char *format)
{
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%u tokens", (unsigned)lengths[i]);
        qn_session *plain = new_session(format, 0, lengths[i]), *session = new_session(format, 7, lengths[i]), *fork;
        const qn_token detour[] = { 9, 8, 7, 6, 5, 4, 3, 2, 1 };
        assert_ok(qn_session_checkpoint(session));
        append_tokens(session, detour, 9);
        assert_ok(qn_session_fork(session, &fork));
        assert_string_equal(qn_session_kv(fork), format);
        append_tokens(session, detour, 9);
        assert_ok(qn_session_truncate(session, lengths[i]));
        assert_ok(qn_session_truncate(fork, lengths[i]));
        assert_ok(qn_session_save(plain, path));
        assert_ok(qn_session_save(fork, other_path));
        assert_same_files(path, other_path);
        eval_rest(plain, expected);
        eval_rest(session, found);
        assert_same_logits();
        eval_rest(fork, found);
        assert_same_logits();
        qn_session_free(plain);
        qn_session_free(session);
        qn_session_free(fork);
    }
}

TEST(forks_and_rewound_sessions_go_on)
{
    over_models(same_after_a_detour);
}

/* A saved file contains what truncation within the last page needs: recurrent layers cannot recompute it. */
TEST(restored_sessions_go_back)
{
    static const uint32_t from[] = { 64, 128, 130, 256 }, to[] = { 63, 127, 129, 193 };
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        open_threaded(names[i], 2);
        logits_in_batches("aura4", N_IDS, expected);
        for (size_t n = 0; n < COUNT(from); n++) {
            label("from %u to %u tokens", (unsigned)from[n], (unsigned)to[n]);
            qn_session *session = new_session("aura4", 0, from[n]), *restored;
            assert_ok(qn_session_save(session, path));
            qn_session_free(session);
            assert_ok(qn_session_restore(model, path, NULL, &restored));
            assert_ok(qn_session_save(restored, other_path));
            assert_same_files(path, other_path);
            assert_int_equal(qn_session_reach(restored, to[n]), to[n]);
            assert_ok(qn_session_truncate(restored, to[n]));
            qn_session_free(restored);
            assert_ok(qn_session_restore(model, other_path, &SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = 5), &restored));
            assert_ok(qn_session_checkpoint(restored));
            append_tokens(restored, ids + from[n], 70);
            assert_ok(qn_session_truncate(restored, to[n]));
            eval_rest(restored, found);
            assert_same_logits();
            qn_session_free(restored);
        }
        close_model();
    }
}

/* ---- Random sequences of operations: the same tokens give the same logits ---- */

enum { N_SESSIONS = 3 };

/* A session of the model. Of its tokens the first n_valid are those of `ids`. */
struct session_case {
    qn_session *session;
    uint32_t n_valid;
};

static uint32_t state = 1;

static uint32_t random_below(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static qn_session *empty_session(const char *format)
{
    const qn_session_params params = SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = 1 + random_below(200), .kv = format,
                                                    .n_checkpoints = 1 + random_below(5));
    return create_session(model, &params);
}

static void replace_session(struct session_case *w, qn_session *session, uint32_t n_valid)
{
    qn_session_free(w->session);
    *w = (struct session_case){ session, n_valid };
}

/* Truncates to `to` tokens, or to the nearest reachable length below; an unsupported truncation must change nothing. */
static void go_back(struct session_case *w, uint32_t to)
{
    const uint32_t length = qn_session_length(w->session), reach = qn_session_reach(w->session, to);
    assert_true(reach <= to);
    if (!info.recurrent_bytes || (length && length - to <= (length - 1) % QN_PAGE))
        assert_int_equal(reach, to);
    if (reach < to) {
        assert_int_equal(qn_session_truncate(w->session, to), QN_ERR_UNSUPPORTED);
        assert_int_equal(qn_session_length(w->session), length);
    }
    assert_ok(qn_session_truncate(w->session, reach));
    assert_int_equal(qn_session_length(w->session), reach);
    w->n_valid = reach < w->n_valid ? reach : w->n_valid;
}

/* A random length: near multiples of 64, near the end (which recurrent layers can reach), or anywhere. */
static uint32_t random_length(uint32_t below)
{
    const uint32_t near[] = { below / 64 ? 63 + 64 * random_below(below / 64) + random_below(3) : 0,
                              below - 1 - random_below(below < 20 ? below : 20), random_below(below) };
    const uint32_t length = near[random_below(3)];
    return length < below ? length : below - 1;
}

/* A saved file depends on the tokens alone, not on the operations before. The session is replaced by its restored
 * copy. */
static void save_and_restore(struct session_case *w, const char *format)
{
    const uint32_t length = qn_session_length(w->session);
    const qn_session_params larger =
        SESSION_PARAMS(.n_ctx = N_IDS, .n_batch = 1 + random_below(200), .n_checkpoints = 1 + random_below(5));
    qn_session *plain = empty_session(format), *restored;
    append_tokens(plain, ids, length);
    assert_ok(qn_session_save(plain, other_path));
    qn_session_free(plain);
    assert_ok(qn_session_save(w->session, path));
    assert_same_files(path, other_path);
    assert_ok(qn_session_restore(model, path, &larger, &restored));
    replace_session(w, restored, w->n_valid);
}

static void eval_other_tokens(const struct session_case *w)
{
    const uint32_t left = N_IDS - qn_session_length(w->session), n = random_below(random_below(2) ? 10 : 150);
    qn_token tokens[150];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (qn_token)random_below(info.n_vocab);
    append_tokens(w->session, tokens, n < left ? n : left);
}

static bool stop_after(void *left, size_t done, size_t total)
{
    assert_true(done < total);
    return (*(uint32_t *)left)-- > 0;
}

/* Evaluates some more tokens; a random cancellation may stop it earlier. `all` contains the expected logits of each
 * token. */
static void eval_some(struct session_case *w, const float *all, float *logits)
{
    const uint32_t length = qn_session_length(w->session), available = N_IDS - length;
    const uint32_t wanted = 1 + random_below(random_below(2) ? 3 : 150), n = wanted < available ? wanted : available;
    uint32_t left = random_below(4) ? UINT32_MAX : random_below(3);
    qn_session_on_progress(w->session, stop_after, &left);
    const qn_status status = qn_session_eval(w->session, ids + length, n, QN_LOGITS_ALL, logits);
    qn_session_on_progress(w->session, NULL, NULL);
    w->n_valid = qn_session_length(w->session);
    assert_true(status == QN_OK ? w->n_valid == length + n : status == QN_ERR_CANCELLED && w->n_valid < length + n);
    assert_memory_equal(logits, all + length * info.n_vocab, (w->n_valid - length) * info.n_vocab * sizeof *logits);
}

static void random_operation(struct session_case *w, struct session_case *other, const char *format, const float *all,
                             float *logits)
{
    qn_session *fork;
    const bool is_right = w->n_valid == qn_session_length(w->session);
    switch (random_below(8)) {
    case 0: assert_ok(qn_session_checkpoint(w->session)); break;
    case 1:
        assert_ok(qn_session_fork(w->session, &fork));
        replace_session(other, fork, w->n_valid);
        break;
    case 2: go_back(w, random_length(w->n_valid + 1)); break;
    case 3: eval_other_tokens(w); break;
    case 4:
        if (is_right)
            save_and_restore(w, format);
        break;
    default:
        if (is_right)
            eval_some(w, all, logits);
        else
            go_back(w, w->n_valid);
    }
}

static void random_operations(const char *format)
{
    struct session_case session_cases[N_SESSIONS];
    float *all = malloc(N_IDS * info.n_vocab * sizeof *all), *logits = malloc(N_IDS * info.n_vocab * sizeof *logits);
    qn_session *plain = empty_session(format);
    assert_true(all && logits);
    assert_ok(qn_session_eval(plain, ids, N_IDS, QN_LOGITS_ALL, all));
    for (size_t i = 0; i < N_SESSIONS; i++)
        session_cases[i] = (struct session_case){ empty_session(format), 0 };
    for (int i = 0; i < (QN_TEST_SANITIZED ? 60 : 200); i++) {
        label("operation %d", i);
        const uint32_t one = random_below(N_SESSIONS), other = (one + 1 + random_below(N_SESSIONS - 1)) % N_SESSIONS;
        random_operation(&session_cases[one], &session_cases[other], format, all, logits);
    }
    for (size_t i = 0; i < N_SESSIONS; i++)
        qn_session_free(session_cases[i].session);
    qn_session_free(plain);
    free(all);
    free(logits);
}

TEST(any_operations_give_the_same_logits)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        open_threaded(names[i], 2);
        random_operations((const char *const[]){ "aura4", "f32", "aura3" }[i % 3]);
        close_model();
    }
}

/* ---- Error against f16 ---- */

static double distance(const float *x, const float *reference, size_t n_rows, size_t n)
{
    double sum = 0;
    for (size_t row = 0; row < n_rows; row++) {
        double difference = 0, length = 0;
        for (size_t i = 0; i < n; i++) {
            const double r = (double)reference[row * n + i], d = (double)x[row * n + i] - r;
            difference += d * d;
            length += r * r;
        }
        sum += sqrt(difference / length);
    }
    return sum / (double)n_rows;
}

static float f16_key(const qn_kv_view *view, size_t head, size_t page, size_t i, size_t d)
{
    const size_t dim = view->key_codec->dim;
    return qn_f16_to_f32(
        qn_kv_f16_keys(view, 0, page, head)[(i / QN_KEY_TILE * dim + d) * QN_KEY_TILE + i % QN_KEY_TILE]);
}

/* The codes of page 1 are its fp16 rows, keys less the mean of page 0's keys, quantised. */
TEST(codes_are_of_f16_pages)
{
    open_threaded("llama.q2_0", 2);
    qn_session *session = new_session("aura4v3", 0, 2 * QN_PAGE);
    qn_cpu_memory *memory = (qn_cpu_memory *)session->memory;
    qn_cpu_view(memory, 0);
    const qn_kv_view *view = &memory->kv;
    const size_t dim = view->key_codec->dim;
    for (size_t head = 0; head < view->n_heads; head++) {
        label("head %zu", head);
        double error[2] = { 0 }, size[2] = { 0 };
        for (size_t d = 0; d < dim; d++) {
            double mean = 0;
            for (size_t i = 0; i < QN_PAGE; i++)
                mean += (double)f16_key(view, head, 0, i, d) / QN_PAGE;
            assert_true(fabs(qn_kv_key_mean(view, 0, head)[d] - mean) < 1e-6); /* fp32 sum of 64 fp16 values of about 1
                                                                                */
        }
        for (size_t i = 0; i < QN_PAGE; i++) {
            uint8_t codes[2][QN_AURA_MAX_DIM];
            float scales[2];
            qn_aura_load_key(qn_kv_keys(view, 0, 1, head), i, codes[0], &scales[0], dim, 4);
            qn_aura_load_value(qn_kv_values(view, 0, 1, head), i, codes[1], &scales[1], dim, 3);
            for (size_t d = 0; d < dim; d++) {
                const double key = (double)f16_key(view, head, 1, i, d) - (double)qn_kv_key_mean(view, 0, head)[d];
                const double value = (double)qn_f16_to_f32(qn_kv_f16_values(view, 0, 1, head)[i * dim + d]);
                const double off[2] = { (double)(scales[0] * view->key_codec->codebook[codes[0][d]]) - key,
                                        (double)(scales[1] * view->value_codec->codebook[codes[1][d]]) - value };
                error[0] += off[0] * off[0], size[0] += key * key;
                error[1] += off[1] * off[1], size[1] += value * value;
            }
        }
        /* The codebooks' distortion at 64 dimensions is 0.0091 with 4 bits and 0.033 with 3; the average of 64 rows is
         * close to it. */
        assert_true(error[0] / size[0] > 0.006 && error[0] / size[0] < 0.012);
        assert_true(error[1] / size[1] > 0.024 && error[1] / size[1] < 0.042);
    }
    qn_session_free(session);
    close_model();
}

TEST(more_bits_are_nearer)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        double far[N_FORMATS];
        open_threaded(names[i], 2);
        logits_in_batches("f16", N_IDS, expected);
        for (size_t f = 0; f < N_FORMATS; f++) {
            logits_in_batches(formats[f], N_IDS, found);
            far[f] = distance(found, expected, N_LAST, info.n_vocab);
        }
        close_model();
        /* The error of 8 bits is 0.63% of a row of keys or values (the root of 4e-5). These random models add the
         * errors of up to three layers to a residual stream that consists of little else, and then round activations to
         * int8, which makes 1e-2 of any difference. */
        assert_true(far[0] > 0 && far[1] < 3e-2);
        static const size_t ascending[][2] = { { 0, 1 }, { 1, 2 }, { 2, 3 }, { 3, 6 }, { 6, 7 }, { 3, 4 }, { 4, 5 } };
        for (size_t r = 0; r < COUNT(ascending); r++)
            if (!(far[ascending[r][0]] < far[ascending[r][1]]))
                fail_msg("%s is off by %g, %s by %g", formats[ascending[r][0]], far[ascending[r][0]],
                         formats[ascending[r][1]], far[ascending[r][1]]);
    }
}

/* ---- Sizes ---- */

TEST(rows_take_what_their_bits_take)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        open_threaded(names[i], 2);
        const uint64_t dim = strcmp(names[i], "qwen3.q1_0") ? 64 : 128;
        const uint64_t n_rows = info.cache_bytes_per_position / (2 * dim * sizeof(uint16_t)); /* key-value heads, all
                                                                                                 layers */
        for (size_t f = 0; f < N_FORMATS; f++)
            for (size_t i_length = 0; i_length < 4; i_length++) {
                /* Positions of page 0 and of the incomplete last page are fp16. A complete page 0 has a mean per
                 * key-value head. */
                static const uint32_t held[] = { 20, 64, 256, 300 }, f16_rows[] = { 20, 64, 64, 108 };
                const bool is_f32 = bits[f][0] == 32; /* no codes, and twice the bytes of fp16 in all rows */
                const size_t element = is_f32 ? sizeof(float) : sizeof(uint16_t);
                const uint32_t length = held[i_length], kept = is_f32 ? length : f16_rows[i_length];
                label("%s, %u tokens", formats[f], (unsigned)length);
                qn_session *session = new_session(formats[f], 0, length);
                const uint64_t fixed = qn_session_cache_bytes(session, 0);
                const uint64_t codes = 4 * ((bits[f][0] * dim + 31) / 32) + 4 + 4 * ((bits[f][1] * dim + 31) / 32) + 4;
                const uint64_t bytes = n_rows * ((length - kept) * codes + kept * 2 * dim * element +
                                                 (is_f32 || length < 64 ? 0 : dim * sizeof(float)));
                assert_int_equal(qn_session_cache_bytes(session, length) - fixed, bytes);
                /* A saved file contains keys that are not codes in full tiles of 16 positions. */
                static uint8_t file[FILE_MAX];
                assert_ok(qn_session_save(session, path));
                const uint64_t rest = n_rows * (kept % 16 ? 16 - kept % 16 : 0) * dim * element;
                if (!info.recurrent_bytes)
                    assert_int_equal(read_state(path, file, FILE_MAX), sizeof(struct qn_state_header) +
                                                                           length * sizeof(qn_token) + bytes + rest +
                                                                           sizeof(uint64_t));
                qn_session_free(session);
            }
        close_model();
    }
}

/* ---- Other formats, other heads ---- */

TEST(unknown_formats_are_refused)
{
    static const char *const unknown[] = { "", "q4_0", "aura", "aura5", "aura44", "AURA4", "f64" };
    open_threaded("qwen3.q1_0", 1);
    for (size_t i = 0; i < COUNT(unknown); i++) {
        label("'%s'", unknown[i]);
        char text[64];
        qn_session *session;
        assert_int_equal(qn_session_create(model, &SESSION_PARAMS(.kv = unknown[i]), &session), QN_ERR_UNSUPPORTED);
        assert_null(session);
        snprintf(text, sizeof text, "cache format '%s' is not supported (f32, f16, aura8", unknown[i]);
        assert_text(text);
    }
    close_model();
}

/* Heads of 32, 48 and 16 dimensions too. */
TEST(f32_serves_all_heads)
{
    static const char *const others[] = { "llama.f16", "qwen3-untied.f32", "qwen35-mtp.bf16" };
    for (size_t i = 0; i < COUNT(others); i++) {
        label("%s", others[i]);
        open_threaded(others[i], 2);
        logits_in_batches("f16", N_IDS, found);
        logits_in_batches("f32", N_IDS, expected);
        const double far = distance(found, expected, N_LAST, info.n_vocab);
        assert_true(far > 0 && far < 1e-2);
        logits_in_batches("f32", 7, found);
        assert_same_logits();
        qn_session *session = new_session("f32", 0, 100), *restored;
        assert_ok(qn_session_save(session, path));
        qn_session_free(session);
        assert_ok(qn_session_restore(model, path, &SESSION_PARAMS(.n_ctx = N_IDS), &restored));
        eval_rest(restored, found);
        assert_same_logits();
        qn_session_free(restored);
        close_model();
    }
}

static char log_text[256];
static int log_lines;

static void take_line(void *user, const char *line)
{
    assert_ptr_equal(user, &log_lines);
    snprintf(log_text, sizeof log_text, "%s", line);
    log_lines++;
}

/* Heads of 32, 48 and 16 dimensions have no codes: the cache stays f16. */
TEST(other_heads_stay_f16)
{
    static const char *const others[] = { "llama.f16", "qwen3-untied.f32", "qwen35-mtp.bf16", "parrot" };
    for (size_t i = 0; i < COUNT(others); i++) {
        label("%s", others[i]);
        const qn_session_params params =
            SESSION_PARAMS(.n_ctx = N_IDS, .kv = "aura4v2", .on_log = take_line, .user = &log_lines);
        qn_session *session, *copy;
        open_threaded(others[i], 2);
        session = new_session("f16", 0, 100);
        eval_rest(session, expected);
        qn_session_free(session);
        log_lines = 0;
        session = create_session(model, &params);
        assert_int_equal(log_lines, 1);
        assert_contains(log_text, "cannot be stored as aura4v2; they are stored as f16");
        assert_string_equal(qn_session_kv(session), "f16");
        append_tokens(session, ids, 100);
        assert_ok(qn_session_save(session, path));
        assert_ok(qn_session_fork(session, &copy));
        assert_int_equal(log_lines, 1);
        eval_rest(copy, found);
        assert_same_logits();
        qn_session_free(copy);
        /* The same parameters give the same format again. */
        assert_ok(qn_session_restore(model, path, &params, &copy));
        assert_int_equal(log_lines, 2);
        eval_rest(copy, found);
        assert_same_logits();
        qn_session_free(copy);
        qn_session_free(session);
        close_model();
    }
}

TEST_GROUP(make_folder, remove_folder)
