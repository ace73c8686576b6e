/* Token ids and logits of tests/golden. */
#ifndef QN_TESTS_HELPER_GOLDEN_H
#define QN_TESTS_HELPER_GOLDEN_H

#include "helper_assert.h"

#include "quern/quern.h"

#include <math.h>

static inline FILE *open_golden(const char *name, const char *extension)
{
    char file_path[4096];
    snprintf(file_path, sizeof file_path, "%s/tests/golden/%s%s", QN_SOURCE_DIR, name, extension);
    FILE *file = fopen(file_path, "rb");
    if (!file)
        fail_msg("%s: cannot be opened", file_path);
    return file;
}

/* Reads up to `max` ids. Returns their number. */
static inline size_t read_golden_ids(const char *name, qn_token *to, size_t max)
{
    FILE *file = open_golden(name, ".ids");
    size_t n = 0;
    for (int id; n < max && fscanf(file, "%d", &id) == 1; n++)
        to[n] = id;
    fclose(file);
    return n;
}

/* Reads logits [*n_rows][n_vocab] of the last *n_rows ids. The caller frees them. */
static inline float *read_golden_logits(const char *name, size_t n_vocab, size_t *n_rows)
{
    FILE *file = open_golden(name, ".logits.f32");
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const size_t count = (size_t)ftell(file) / sizeof(float);
    float *logits = malloc(count * sizeof *logits);
    assert_non_null(logits);
    rewind(file);
    assert_int_equal(fread(logits, sizeof *logits, count, file), count);
    assert_int_equal(count % n_vocab, 0);
    *n_rows = count / n_vocab;
    fclose(file);
    return logits;
}

/* found - expected| / |expected| of the logits of a token, averaged over n tokens. */
static inline double mean_relative_error(const float *found, const float *expected, size_t n, size_t n_vocab)
{
    double sum = 0.0;
    for (size_t t = 0; t < n; t++) {
        double difference = 0.0, norm = 0.0;
        for (size_t i = t * n_vocab; i < (t + 1) * n_vocab; i++) {
            difference += ((double)found[i] - expected[i]) * ((double)found[i] - expected[i]);
            norm += (double)expected[i] * expected[i];
        }
        sum += sqrt(difference / norm);
    }
    return sum / (double)n;
}

#endif
