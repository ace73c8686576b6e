/* The index of n-grams against a search of the whole text, and the drafter's sources: the request's own text and
 * answers of the same scope. */
#include "helper_assert.h"
#include "helper_random.h"
#include "helper_test.h"

#include "base/splitmix.h"
#include "engine/spec/ngram.h"

#include <string.h>

enum { MOST = 6000 };
static qn_token text[MOST];

/* A text of few words that repeat, and now and then an earlier part again, in which a token is replaced. */
static void make_text(uint64_t seed, size_t n, unsigned words)
{
    for (size_t i = 0; i < n;) {
        const uint64_t r = qn_splitmix(&seed);
        if (i > 40 && r % 16 == 0) {
            const size_t from = r / 16 % (i - 30);
            for (size_t k = 0; k < 30 && i < n; k++)
                text[i++] = k == 17 ? (qn_token)((r >> 40) % words) : text[from + k];
        } else {
            text[i++] = (qn_token)((r >> 8) % words);
        }
    }
}

static size_t equal_before(size_t end, size_t n)
{
    size_t length = 0;
    while (length < end && length < QN_NGRAM_LONGEST && text[end - 1 - length] == text[n - 1 - length])
        length++;
    return length;
}

/* The longest match of the text before n at an earlier place, of which `kept` tokens are looked at. */
static size_t longest(size_t n, size_t kept)
{
    size_t best = 0;
    for (size_t end = n > kept ? n - kept + 1 : 1; end < n; end++) {
        size_t length = equal_before(end, n);
        const size_t held = n > kept ? end - (n - kept) : end;
        length = length < held ? length : held;
        best = length > best ? length : best;
    }
    return best < QN_NGRAM_SHORTEST ? 0 : best;
}

static void check_matches(uint64_t seed, size_t n, size_t limit, unsigned words, bool exact)
{
    qn_ngrams *index;
    make_text(seed, n, words);
    assert_ok(qn_ngrams_create(limit, &index));
    for (size_t at = 0; at < n;) {
        const size_t more = 1 + seed % 7 * (at % 3);
        const size_t add = more < n - at ? more : n - at;
        assert_ok(qn_ngrams_add(index, 1, text + at, add));
        at += add;
        label("seed %d, %zu tokens, limit %zu", (int)seed, at, limit);
        const qn_ngram_match match = qn_ngrams_find(index, 1, text, at);
        const size_t best = longest(at, limit);
        /* A bounded number of places is looked at: the longest is found only where there are few. */
        assert_true(match.length <= best && (match.length > 0) == (best > 0));
        assert_true(!exact || match.length == best);
        if (match.length) {
            qn_token read[8];
            assert_true(match.end < at && equal_before(match.end, at) >= match.length);
            assert_int_equal(qn_ngrams_read(index, match, 8, read), 8);
            for (size_t i = 0; i < 8; i++)
                assert_int_equal(read[i], match.end + i < at ? text[match.end + i] : read[i - (at - match.end)]);
        }
        assert_int_equal(qn_ngrams_find(index, 2, text, at).length, 0);
    }
    assert_true(qn_ngrams_bytes(index) < limit * 25 + 1024 * 25);
    qn_ngrams_free(index);
}

TEST(matches_are_the_longest)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        check_matches(seed, 1500, 1 << 13, 400, true);
        check_matches(seed, 3000, 1 << 8, 400, true); /* most of the text is dropped */
        check_matches(seed, 1500, 1 << 13, 3, false);
    }
}

TEST(texts_end)
{
    static const qn_token first[] = { 1, 2, 3, 4, 5 }, second[] = { 4, 5, 6, 7 };
    qn_ngrams *index;
    qn_token read[8];
    assert_ok(qn_ngrams_create(64, &index));
    assert_ok(qn_ngrams_add(index, 1, first, 5));
    qn_ngrams_end(index);
    assert_ok(qn_ngrams_add(index, 1, second, 4));
    qn_ngrams_end(index);
    /* 5 is followed by nothing in the first text, and by 6 in the second; 3 4 by 5 alone. */
    qn_ngram_match match = qn_ngrams_find(index, 1, (const qn_token[]){ 9, 4, 5 }, 3);
    assert_int_equal(match.length, 2);
    assert_int_equal(qn_ngrams_read(index, match, 8, read), 2);
    assert_memory_equal(read, second + 2, 2 * sizeof *read);
    match = qn_ngrams_find(index, 1, (const qn_token[]){ 2, 3, 4 }, 3);
    assert_int_equal(match.length, 3);
    assert_int_equal(qn_ngrams_read(index, match, 8, read), 1);
    assert_int_equal(read[0], 5);
    assert_int_equal(qn_ngrams_find(index, 1, (const qn_token[]){ 5, 4 }, 2).length, 0); /* across the end */
    assert_int_equal(qn_ngrams_find(index, 1, (const qn_token[]){ 6, 7 }, 2).length, 0);
    qn_ngrams_free(index);
}

/* A proposal never goes on with another owner's text, and the end of a text needs no memory of its own: without it, the
 * next owner's text would follow. */
TEST(texts_of_owners_are_apart)
{
    static qn_token first[1100], second[64];
    qn_ngrams *index;
    qn_token read[8];
    for (size_t i = 0; i < COUNT(first); i++)
        first[i] = 1000 + (qn_token)i;
    for (size_t i = 0; i < COUNT(second); i++)
        second[i] = 7000 + (qn_token)i;
    for (size_t n = 1000; n < COUNT(first); n++) {
        label("%zu tokens", n);
        assert_ok(qn_ngrams_create(1 << 13, &index));
        assert_ok(qn_ngrams_add(index, 1, first, n));
        const size_t bytes = qn_ngrams_bytes(index);
        qn_ngrams_end(index);
        qn_ngrams_end(index);
        assert_int_equal(qn_ngrams_bytes(index), bytes);
        assert_int_equal(qn_ngrams_find(index, 1, first, 2).length, 2); /* no token made room for it */
        assert_ok(qn_ngrams_add(index, 2, second, COUNT(second)));
        const qn_ngram_match match = qn_ngrams_find(index, 1, first, n - 2);
        assert_int_equal(qn_ngrams_read(index, match, 8, read), 2);
        qn_ngrams_free(index);
    }
    assert_ok(qn_ngrams_create(1 << 13, &index)); /* not even if a text was not ended */
    assert_ok(qn_ngrams_add(index, 1, first, 40));
    assert_ok(qn_ngrams_add(index, 2, second, 40));
    assert_int_equal(qn_ngrams_read(index, qn_ngrams_find(index, 1, first, 38), 8, read), 2);
    const qn_token across[] = { first[38], first[39], second[0], second[1] };
    assert_int_equal(qn_ngrams_find(index, 2, across, 4).length, 2);
    qn_ngrams_free(index);
}

static qn_proposal propose(qn_drafter *drafter, const qn_token *tokens, size_t n, size_t k)
{
    qn_proposal proposal;
    drafter->vtable->propose(drafter, tokens, n, k, &proposal);
    return proposal;
}

TEST(a_drafter_reads_its_own_text)
{
    qn_drafter *drafter;
    assert_ok(qn_ngram_create(NULL, NULL, &drafter));
    for (size_t i = 0; i < 200; i++)
        text[i] = (qn_token)(i * 7);
    memcpy(text + 200, text + 50, 60 * sizeof *text);
    assert_int_equal(propose(drafter, text, 150, QN_DRAFT_TOKENS).n, 0);
    for (size_t n = 202; n < 240; n++) {
        const qn_proposal p = propose(drafter, text, n, 9);
        label("%zu tokens", n);
        assert_int_equal(p.n, 9);
        assert_memory_equal(p.tokens, text + n - 150, 9 * sizeof *p.tokens);
        assert_true(p.classes[0] <= p.classes[8] && p.classes[8] < QN_DRAFT_CLASSES);
    }
    assert_true(drafter->vtable->bytes(drafter) > 240 * sizeof *text);
    drafter->vtable->free(drafter);
}

/* Of a text that does not fit, the end is indexed; the memory is that which a request is charged for. */
TEST(long_texts_are_cut)
{
    enum { N = 200000 };
    static qn_token many[N];
    qn_drafter *drafter;
    for (size_t i = 0; i < N; i++)
        many[i] = (qn_token)i;
    memcpy(many + N - 40, many + N - 5000, 40 * sizeof *many);
    assert_ok(qn_ngram_create(NULL, NULL, &drafter));
    const qn_proposal p = propose(drafter, many, N, 9);
    assert_int_equal(p.n, 9);
    assert_memory_equal(p.tokens, many + N - 5000 + 40, 9 * sizeof *p.tokens);
    assert_true(drafter->vtable->bytes(drafter) <= qn_ngram_bytes(N) + 1024);
    assert_true(qn_ngram_bytes(N) == qn_ngram_bytes(10 * N) && qn_ngram_bytes(10) == qn_ngram_bytes(1023));
    drafter->vtable->free(drafter);
    for (size_t n = 1020; n < 5000; n += 511) {
        assert_ok(qn_ngram_create(NULL, NULL, &drafter));
        (void)propose(drafter, many, n, 9);
        const size_t bytes = drafter->vtable->bytes(drafter);
        assert_true(bytes >= qn_ngram_bytes(n) && bytes < qn_ngram_bytes(n) + 1024);
        drafter->vtable->free(drafter);
    }
}

TEST(a_drafter_reads_answers_of_its_scope)
{
    qn_written *written;
    qn_drafter *a, *b, *none;
    assert_ok(qn_written_create(&written));
    assert_ok(qn_ngram_create(written, "a", &a));
    make_text(6, 100, 100000);
    qn_written_add(written, "a", text, 100);
    assert_ok(qn_ngram_create(written, "b", &b));
    assert_ok(qn_ngram_create(written, NULL, &none));
    assert_int_equal(propose(a, text + 40, 3, 5).n, 5);
    assert_int_equal(propose(b, text + 40, 3, 5).n, 0);
    assert_int_equal(propose(none, text + 40, 3, 5).n, 0);
    qn_written_add(written, NULL, text, 100);
    qn_written_add(written, "", text, 100);
    assert_int_equal(propose(none, text + 40, 3, 5).n, 0); /* strangers may share that scope */
    for (int i = 0; i < 300; i++) {                        /* more scopes, and more text, than are kept */
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        make_text((uint64_t)i + 10, MOST, 100000);
        qn_written_add(written, name, text, MOST);
        qn_drafter *drafter;
        assert_ok(qn_ngram_create(written, name, &drafter));
        assert_int_equal(propose(drafter, text + 4000, 5, 5).n, 5);
        drafter->vtable->free(drafter);
    }
    make_text(6, 100, 100000);
    assert_int_equal(propose(b, text + 40, 4, 5).n, 0);
    a->vtable->free(a);
    b->vtable->free(b);
    none->vtable->free(none);
    qn_written_free(written);
}

TEST(chances_follow_what_is_accepted)
{
    qn_acceptance acceptance = { { 0.5f, 0.5f } };
    qn_proposal proposal = { .n = 3, .tokens = { 7, 8, 9 }, .classes = { 0, 1, 1 } };
    assert_int_equal(
        qn_acceptance_learn(&acceptance, QN_ACCEPTANCE_MEMORY, &proposal, (const qn_token[]){ 7, 1, 9 }, 3), 1);
    assert_true(acceptance.chances[0] > 0.5f && acceptance.chances[1] < 0.5f);
    for (int i = 0; i < 200; i++)
        assert_int_equal(
            qn_acceptance_learn(&acceptance, QN_ACCEPTANCE_MEMORY, &proposal, (const qn_token[]){ 7, 8, 9, 5 }, 4), 3);
    assert_true(acceptance.chances[0] > 0.99f && acceptance.chances[1] > 0.99f);
    assert_int_equal(qn_acceptance_learn(&acceptance, QN_ACCEPTANCE_MEMORY, &proposal, (const qn_token[]){ 7 }, 1), 1);
    assert_int_equal(qn_acceptance_learn(&acceptance, QN_ACCEPTANCE_MEMORY, &proposal, NULL, 0), 0);
}
