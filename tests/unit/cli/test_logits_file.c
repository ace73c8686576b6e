/* Files of log probabilities: what is written is read again, with vocabularies of even and odd sizes; rows without a
 * range, or with more than files can hold. (tests/e2e/divergence.py has files of other programs, and hostile ones.) */
#include "helper_files.h"
#include "helper_folder.h"
#include "helper_test.h"

#include "cli/kld.h"
#include "cli/logits_file.h"

#include <math.h>

enum { N_CTX = 5, N_CHUNKS = 2, N_ROWS = 2 * N_CHUNKS, MOST_VOCAB = 6 };

static const qn_token tokens[N_CTX * N_CHUNKS] = { 0, 1, 2, 3, 4, 4, 3, 2, 1, 0 };

static const float rows[N_ROWS][MOST_VOCAB] = {
    { 1, 2, 3, -4, 0.5f, 7 },
    { 2, 2, 2, 2, 2, 2 },
    { 100, 0, 99, 84.5f, 83, -1000 },
    { -1000, -1000.5f, -1003, -1001, -1015.5f, -1015.9f },
};

static void write_rows(size_t n_vocab)
{
    qn_logits_writer writer;
    assert_ok(qn_logits_create(&writer, path, N_CTX, n_vocab, N_CHUNKS, tokens));
    for (size_t i = 0; i < N_ROWS; i++)
        assert_ok(qn_logits_write(&writer, rows[i]));
    assert_ok(qn_logits_commit(&writer));
    qn_logits_writer_free(&writer);
}

TEST(written_and_read)
{
    for (size_t n_vocab = MOST_VOCAB - 1; n_vocab <= MOST_VOCAB; n_vocab++) {
        qn_logits_reader reader;
        size_t size;
        float log_probs[MOST_VOCAB], found[MOST_VOCAB];
        label("%zu tokens in the vocabulary", n_vocab);
        write_rows(n_vocab);
        free(read_file(path, &size));
        assert_int_equal(size, 20 + sizeof tokens + N_ROWS * (8 + 2 * 6));
        assert_true(qn_logits_is_file(path));
        assert_ok(qn_logits_open(&reader, path, n_vocab));
        assert_int_equal(reader.n_ctx, N_CTX);
        assert_int_equal(reader.n_chunks, N_CHUNKS);
        assert_memory_equal(reader.tokens, tokens, sizeof tokens);
        for (size_t i = 0; i < N_ROWS; i++) {
            assert_ok(qn_logits_read(&reader, found));
            assert_true(qn_log_softmax(rows[i], n_vocab, log_probs));
            float largest = -INFINITY;
            for (size_t t = 0; t < n_vocab; t++)
                largest = fmaxf(largest, log_probs[t]);
            /* Half of a code's step, 16 / 65535, and the rounding of floats near 1000. */
            for (size_t t = 0; t < n_vocab; t++)
                assert_true(fabsf(found[t] - fmaxf(log_probs[t], largest - 16)) < 1.9e-4f);
        }
        assert_fails(qn_logits_read(&reader, found), QN_ERR_FORMAT, "the file ends early");
        qn_logits_close(&reader);
        assert_fails(qn_logits_open(&reader, path, n_vocab + 1), QN_ERR_FORMAT, "but the model has");
        qn_logits_close(&reader);
    }
}

TEST(percentiles)
{
    static const float values[] = { -1, 0, 2, 10 };
    assert_true(qn_kld_percentile(values, 4, 0) == -1 && qn_kld_percentile(values, 4, 1) == 10);
    assert_true(qn_kld_percentile(values, 4, 0.5) == 1);
    assert_true(fabs(qn_kld_percentile(values, 4, 0.9) - 7.6) < 1e-12);
    assert_true(qn_kld_percentile(values, 1, 0.999) == -1);
}

/* Of a single token there are no errors; logits that are not sound have no log probabilities. */
TEST(one_token)
{
    static const float base[2] = { -0.6931472f, -0.6931472f }, log_probs[2] = { -0.2876821f, -1.3862944f };
    const float unsound[2] = { 0, NAN };
    qn_kld kld;
    qn_kld_summary s;
    float out[2];
    assert_ok(qn_kld_create(&kld, 1));
    assert_true(qn_kld_add(&kld, base, log_probs, 2, 1));
    assert_false(qn_kld_add(&kld, base, log_probs, 2, 1)); /* no room */
    qn_kld_summarise(&kld, &s);
    assert_true(fabs(s.divergence.value - 0.5 * log(0.5 / 0.75) - 0.5 * log(0.5 / 0.25)) < 1e-6);
    assert_true(fabs(s.p_change.value + 0.25) < 1e-6 && fabs(s.ratio.value - 2) < 1e-6);
    assert_true(s.divergence.error == 0 && s.ratio.error == 0 && s.same_top.value == 1);
    qn_kld_free(&kld);
    assert_false(qn_log_softmax(unsound, 2, out));
}

TEST_GROUP(make_folder, remove_folder)
