/* The prefix cache: what a sequence takes over, scopes, states and their budget, eviction; random conversations against
 * a plain search over everything that was ever added. */
#include "helper_sequence.h"

#include "cache/prefix.h"
#include "cache/spill.h"

#include <pthread.h>

/* What a test runs on, and what the last sequence took over. */
static fixture store;
static qn_prefix *prefix;
#define expect_states(n) assert_int_equal(qn_prefix_get_counts(prefix).states, n)
#define expect_pages(n) assert_int_equal(qn_prefix_get_counts(prefix).pages, n)
static uint32_t reused, matched;

static void create_prefix(uint64_t state_bytes, uint64_t host_bytes)
{
    assert_ok(qn_prefix_create(&store.cache, state_bytes, host_bytes, &prefix));
}

static void end_prefix(void)
{
    qn_prefix_free(prefix);
    end_fixture(&store);
}

static void evict_all(void)
{
    while (qn_prefix_evict(prefix))
        ;
}

static int32_t *tokens_of(history *h)
{
    return (int32_t *)h->tokens;
}

/* A sequence with these tokens, known by `ids`, which takes over what the cache has and appends the rest; added to the
 * cache. */
static history *run_ids(const char *scope, const uint32_t *tokens, qn_row_ids ids, size_t n)
{
    history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    if (store.cache.context != &store.device) /* before a thread copies */
        store.cache.context = &store.device;
    assert_ok(qn_sequence_create(&store.cache, &h->sequence));
    memcpy(h->tokens, tokens, n * sizeof *tokens);
    assert_ok(qn_prefix_adopt(prefix, scope, ids, n, &h->sequence, &matched));
    reused = h->sequence.length;
    check(h);
    assert_true(reused <= matched && (n == 0 || reused < n));
    const size_t left = n - reused;
    assert_ok(qn_sequence_reserve(&h->sequence, left));
    run_step(&h->sequence, h->tokens + reused, left);
    qn_sequence_commit(&h->sequence, left);
    check(h);
    qn_prefix_add(prefix, scope, ids, &h->sequence);
    return h;
}

static history *run(const char *scope, const uint32_t *tokens, size_t n)
{
    return run_ids(scope, tokens, qn_token_ids((const int32_t *)tokens), n);
}

static void keep_mark(const char *scope, history *h)
{
    qn_prefix_keep_state(prefix, scope, qn_token_ids(tokens_of(h)), &h->sequence, QN_STATE_MARK);
}

/* Also frees the sequence. */
static void assert_adopts(qn_sequence *s, const uint32_t *tokens, size_t n, uint32_t length)
{
    assert_ok(qn_prefix_adopt(prefix, NULL, qn_token_ids((const int32_t *)tokens), n, s, &matched));
    assert_int_equal(s->length, length);
    qn_sequence_free(s);
}

static void fill(uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = random_u32();
}

TEST(without_recurrent_layers)
{
    uint32_t tokens[600];
    for (int codes = 0; codes < 2; codes++) {
        store = new_fixture(1000, codes, false);
        create_prefix(0, 0);
        fill(tokens, 600);
        history *first = run(NULL, tokens, 600);
        assert_int_equal(reused, 0);
        assert_int_equal(matched, 0);
        expect_pages(9);
        const uint64_t held = qn_pool_get_usage(store.pool).held;
        history *again = run(NULL, tokens, 600);
        assert_int_equal(reused, 576);
        assert_true(qn_pool_get_usage(store.pool).held - held <= 2 * (QN_PAGE * 4 + 256));
        tokens[200] ^= 1; /* in page 3 */
        history *other = run(NULL, tokens, 600);
        assert_int_equal(reused, 192);
        expect_pages(9 + 6);
        history *elsewhere = run("tenant", tokens, 600);
        assert_int_equal(reused, 0);
        /* One token is left to evaluate. */
        history *exact = run(NULL, tokens, 576);
        assert_int_equal(reused, 512);
        history *longer = run(NULL, tokens, 577);
        assert_int_equal(reused, 576);
        check(first);
        check(again);
        end_history(first);
        end_history(again);
        end_history(other);
        end_history(elsewhere);
        end_history(exact);
        end_history(longer);
        history *later = run("tenant", tokens, 100);
        assert_int_equal(reused, 64);
        end_history(later);
        end_prefix();
    }
}

/* Rows with hashes are found by these, and are never mistaken for tokens; their nodes are spilled and come back. */
TEST(rows_are_known_by_hashes)
{
    enum { ROWS = 600, IMAGE = 70, IMAGE_END = 131 };
    uint32_t contents[ROWS];
    int32_t tokens[ROWS];
    uint64_t hashes[ROWS] = { 0 };
    for (size_t codes = 0; codes < 2; codes++) {
        label("codes %zu", codes);
        store = new_fixture(1000, codes, false);
        spill(&store);
        create_prefix(0, 8 << 20);
        for (size_t i = 0; i < ROWS; i++) {
            const bool is_hash = i >= IMAGE && i < IMAGE_END;
            contents[i] = random_u32();
            tokens[i] = is_hash ? -1 : (int32_t)(random_u32() >> 1);
            hashes[i] = is_hash ? i % 2 ? 5 : (uint64_t)i << 32 : 7; /* those of tokens are not read */
        }
        const qn_row_ids ids = { tokens, hashes };
#define REUSED(expected, ids, n)                                                                                       \
    do {                                                                                                               \
        end_history(run_ids(NULL, contents, ids, n));                                                                  \
        assert_int_equal(reused, expected);                                                                            \
    } while (0)
        REUSED(0, ids, ROWS);
        REUSED(576, ids, ROWS);
        hashes[3] = hashes[IMAGE - 1] = hashes[IMAGE_END] = hashes[300] = 8;
        REUSED(576, ids, ROWS);
        evict_all();
        REUSED(576, ids, ROWS);
        hashes[100] ^= (uint64_t)1 << 63;
        REUSED(64, ids, 129);
        hashes[100] ^= (uint64_t)1 << 63;
        tokens[71] = 5; /* a token equal to the row's hash */
        REUSED(64, ids, 129);
        tokens[71] = -1;
        REUSED(64, qn_token_ids(tokens), 129); /* as tokens, in a node of its own */
        REUSED(576, ids, ROWS);
        tokens[IMAGE_END + 70]++;
        REUSED(192, ids, ROWS);
#undef REUSED
        end_prefix();
    }
}

/* With recurrent layers only kept states help; matched tells where one would have. */
TEST(states)
{
    uint32_t tokens[600];
    store = new_fixture(1000, false, true);
    const size_t bytes = qn_pool_stride(store.cache.states);
    create_prefix(2 * bytes, 0);
    fill(tokens, 600);
    history *first = run(NULL, tokens, 300);
    history *second = run(NULL, tokens, 400);
    assert_int_equal(reused, 0);
    assert_int_equal(matched, 256);
    keep_mark(NULL, first); /* at 256 */
    assert_int_equal(first->sequence.state_position, 256);
    history *third = run(NULL, tokens, 600);
    assert_int_equal(reused, 256);
    assert_int_equal(matched, 384);
    assert_int_not_equal(third->sequence.state, first->sequence.state); /* it has folded since, into another item */
    keep_mark(NULL, second);                                            /* at 384 */
    keep_mark(NULL, second);
    expect_states(2);
    /* The least recently used state is evicted. */
    history *fourth = run(NULL, tokens, 300);
    assert_int_equal(reused, 256);
    keep_mark(NULL, third); /* at 576: the one at 384 goes */
    expect_states(2);
    history *fifth = run(NULL, tokens, 500);
    assert_int_equal(reused, 256);
    assert_int_equal(matched, 448);
    history *all[] = { first, second, third, fourth, fifth };
    for (size_t i = 0; i < COUNT(all); i++) {
        check(all[i]);
        end_history(all[i]);
    }
    qn_prefix_clear(prefix);
    expect_pages(0);
    expect_states(0);
    end_prefix();
}

TEST(a_state_larger_than_the_budget_is_not_kept)
{
    uint32_t tokens[200];
    store = new_fixture(1000, true, true);
    create_prefix(100, 0);
    fill(tokens, 200);
    history *h = run(NULL, tokens, 200);
    keep_mark(NULL, h);
    expect_states(0);
    end_history(h);
    end_prefix();
}

/* Leaves go before what is above them, the least recently used first, and nothing that a sequence holds. */
TEST(eviction)
{
    uint32_t a[300], b[300];
    store = new_fixture(1000, false, false);
    create_prefix(0, 0);
    fill(a, 300);
    fill(b, 300);
    memcpy(b, a, 64 * sizeof *a);
    end_history(run(NULL, a, 300)); /* pages 0 to 3 */
    end_history(run(NULL, b, 300)); /* the same page 0, others after it */
    expect_pages(7);
    history *held = run(NULL, a, 130); /* holds pages 0 and 1 of a */
    assert_int_equal(reused, 128);
    for (size_t left = 6; left > 4; left--) { /* pages 3 and 2 of a were used before all of b */
        assert_true(qn_prefix_evict(prefix));
        expect_pages(left);
    }
    history *again = run(NULL, b, 300);
    assert_int_equal(reused, 256);
    end_history(again);
    for (size_t left = 3; left > 1; left--)
        assert_true(qn_prefix_evict(prefix));
    assert_true(qn_prefix_evict(prefix));
    assert_false(qn_prefix_evict(prefix)); /* pages 0 and 1 of a are held */
    expect_pages(2);
    end_history(held);
    assert_true(qn_prefix_evict(prefix));
    assert_true(qn_prefix_evict(prefix));
    assert_false(qn_prefix_evict(prefix));
    assert_int_equal(qn_pool_get_usage(store.pool).held, 0);
    end_prefix();
}

TEST(what_is_adopted_is_recent)
{
    uint32_t a[200], b[200];
    store = new_fixture(1000, false, false);
    qn_sequence sequence;
    create_prefix(0, 0);
    fill(a, 200);
    fill(b, 200);
    end_history(run(NULL, a, 200));
    end_history(run(NULL, b, 200));
    assert_ok(qn_sequence_create(&store.cache, &sequence));
    assert_ok(qn_prefix_adopt(prefix, NULL, qn_token_ids((const int32_t *)a), 200, &sequence, &matched));
    qn_sequence_free(&sequence);
    assert_true(qn_prefix_evict(prefix));
    end_history(run(NULL, b, 200));
    assert_int_equal(reused, 128);
    end_history(run(NULL, a, 200));
    assert_int_equal(reused, 192);
    end_prefix();
}

/* Between two turns of a conversation other requests, each of which comes once, evict each other: as many as fill the
 * pool twice. With recurrent layers the same holds for states. */
TEST(side_requests_do_not_evict_a_conversation)
{
    enum { TURN = 300, TURNS = 3, SIDE = 130, SIDES = 40 };
    uint32_t tokens[TURN * TURNS], side[SIDE];
    for (int recurrent = 0; recurrent < 2; recurrent++) {
        store = new_fixture(1000, false, recurrent);
        create_prefix(recurrent ? 8 * qn_pool_stride(store.cache.states) : 0, 0);
        fill(tokens, TURN * TURNS);
        for (size_t turn = 1; turn <= TURNS; turn++) {
            history *h = run(NULL, tokens, turn * TURN);
            assert_int_equal(reused, (turn - 1) * TURN / QN_PAGE * QN_PAGE);
            keep_mark(NULL, h);
            end_history(h);
            for (size_t i = 0; turn > 1 && i < SIDES; i++) {
                fill(side, SIDE);
                h = run(NULL, side, SIDE);
                keep_mark(NULL, h);
                end_history(h);
                while (qn_prefix_get_counts(prefix).pages > 40)
                    assert_true(qn_prefix_evict(prefix));
            }
        }
        history *last = run(NULL, tokens, TURN * TURNS);
        assert_int_equal(matched, (TURN * TURNS - 1) / QN_PAGE * QN_PAGE);
        assert_int_equal(reused, matched);
        end_history(last);
        end_prefix();
    }
}

/* A conversation that nobody continues is evicted in the end. */
TEST(an_old_conversation_is_evicted)
{
    uint32_t tokens[600], side[130];
    store = new_fixture(1000, false, false);
    create_prefix(0, 0);
    fill(tokens, 600);
    end_history(run(NULL, tokens, 400));
    end_history(run(NULL, tokens, 600));
    for (size_t i = 0; i < 400; i++) {
        fill(side, 130);
        end_history(run(NULL, side, 130));
        while (qn_prefix_get_counts(prefix).pages > 20)
            assert_true(qn_prefix_evict(prefix));
    }
    end_history(run(NULL, tokens, 600));
    assert_int_equal(matched, 0);
    end_prefix();
}

/* ---- Thinning ---- */

enum { PERIODS = 64, LONG = PERIODS * QN_STATE_PERIOD + 1 };

/* A sequence of periods, whose states are kept at the positions p of which bit p of `marks` or of `periodic` is set, in
 * units of periods. */
static void keep_periods(const char *scope, const int32_t *tokens, size_t n, uint64_t marks)
{
    qn_sequence s;
    assert_ok(qn_sequence_create(&store.cache, &s));
    for (size_t i = 1; i <= n; i++) {
        assert_ok(qn_sequence_reserve(&s, QN_STATE_PERIOD));
        qn_sequence_commit(&s, QN_STATE_PERIOD);
        assert_int_equal(s.state_position, i * QN_STATE_PERIOD);
        qn_prefix_add(prefix, scope, qn_token_ids(tokens), &s);
        qn_prefix_keep_state(prefix, scope, qn_token_ids(tokens), &s,
                             marks >> (i - 1) & 1 ? QN_STATE_MARK : QN_STATE_PERIODIC);
    }
    qn_sequence_free(&s);
}

/* Bit i: the state after i + 1 periods is kept. */
static uint64_t kept_periods(const char *scope, const int32_t *tokens, size_t n)
{
    uint64_t kept = 0;
    for (size_t i = 1; i <= n; i++) {
        qn_sequence s;
        assert_ok(qn_sequence_create(&store.cache, &s));
        assert_ok(qn_prefix_adopt(prefix, scope, qn_token_ids(tokens), i * QN_STATE_PERIOD + 1, &s, &matched));
        if (s.length == i * QN_STATE_PERIOD)
            kept |= (uint64_t)1 << (i - 1);
        qn_sequence_free(&s);
    }
    return kept;
}

static void begin_long(int32_t **tokens)
{
    store = new_fixture(4000, false, true);
    fold_whole_chunks(&store);
    *tokens = calloc(LONG, sizeof **tokens);
    assert_non_null(*tokens);
    for (size_t i = 0; i < LONG; i++)
        (*tokens)[i] = (int32_t)i;
}

/* Of one long prompt all of the newest states are kept, and of older ones multiples of eight periods. */
TEST(old_states_are_thinned)
{
    int32_t *tokens;
    begin_long(&tokens);
    create_prefix(16 * qn_pool_stride(store.cache.states), 0);
    keep_periods(NULL, tokens, PERIODS, 0);
    expect_states(16);
    uint64_t kept = kept_periods(NULL, tokens, PERIODS);
    assert_int_equal(kept >> 54, 0x3ff);
    assert_int_equal(kept & 0x8080808080000000, 0x8080808080000000);
    /* Without pressure none is. */
    qn_prefix_clear(prefix);
    keep_periods(NULL, tokens, 16, 0);
    assert_int_equal(kept_periods(NULL, tokens, 16), 0xffff);
    end_prefix();
    free(tokens);
}

/* Marks outlive periodic states, not younger marks; among equals the least recently used goes first. */
TEST(marks_outlive_periodic_states)
{
    int32_t *tokens;
    begin_long(&tokens);
    create_prefix(8 * qn_pool_stride(store.cache.states), 0);
    keep_periods("marks", tokens, 3, 7);
    keep_periods(NULL, tokens, 30, 0);
    assert_int_equal(kept_periods("marks", tokens, 3), 7);
    expect_states(8);
    qn_prefix_clear(prefix); /* the check has continued the prefix */
    keep_periods("marks", tokens, 3, 7);
    keep_periods(NULL, tokens, 5, 0);
    keep_periods("others", tokens, 8, 0xff);
    assert_int_equal(kept_periods(NULL, tokens, 30), 0);
    assert_int_equal(kept_periods("marks", tokens, 3), 0);
    assert_int_equal(kept_periods("others", tokens, 8), 0xff);
    /* A periodic state that is kept again as a mark is one. */
    qn_prefix_clear(prefix);
    keep_periods(NULL, tokens, 2, 0);
    keep_periods(NULL, tokens, 2, 1);
    keep_periods("others", tokens, 7, 0x7f);
    assert_int_equal(kept_periods(NULL, tokens, 2), 1);
    end_prefix();
    free(tokens);
}

/* ---- Spilling ---- */

/* All pages and states of the pool go to host memory, and come back with their contents. */
TEST(spilled_prefixes_come_back)
{
    uint32_t tokens[900];
    for (size_t kind = 0; kind < 4; kind++) {
        store = new_fixture(1000, kind & 1, kind & 2);
        spill(&store);
        label("kind %zu", kind);
        create_prefix(10 * 4096, 8 << 20);
        fill(tokens, 900);
        history *first = run(NULL, tokens, 600);
        keep_mark(NULL, first);
        end_history(first);
        for (size_t round = 0; round < 3; round++) {
            evict_all();
            assert_int_equal(qn_pool_get_usage(store.pool).held, 0);
            const qn_prefix_counts counts = qn_prefix_get_counts(prefix);
            assert_true(counts.pages == 9 && counts.host_bytes >= 9 * QN_PAGE * 4);
            assert_int_equal(counts.states, kind & 2 ? 1 : 0);
            history *again = run(NULL, tokens, 600);
            assert_int_equal(reused, 576);
            assert_int_equal(qn_prefix_get_counts(prefix).host_bytes, 0);
            end_history(again);
        }
        /* A sequence that has evaluated the same tokens again hands over its pages. */
        evict_all();
        history *h = calloc(1, sizeof *h);
        assert_non_null(h);
        assert_ok(qn_sequence_create(&store.cache, &h->sequence));
        memcpy(h->tokens, tokens, sizeof tokens);
        assert_ok(qn_sequence_reserve(&h->sequence, 600));
        run_step(&h->sequence, h->tokens, 600);
        qn_sequence_commit(&h->sequence, 600);
        qn_prefix_add(prefix, NULL, qn_token_ids(tokens_of(h)), &h->sequence);
        qn_prefix_keep_state(prefix, NULL, qn_token_ids(tokens_of(h)), &h->sequence, QN_STATE_PERIODIC);
        assert_int_equal(qn_prefix_get_counts(prefix).host_bytes, 0);
        end_history(h);
        end_prefix();
    }
}

/* What cannot be copied is dropped, or not found; nothing is lost of the pool. */
TEST(refused_copies)
{
    uint32_t tokens[600];
    store = new_fixture(1000, false, true);
    qn_sequence s;
    spill(&store);
    create_prefix(10 * 4096, 8 << 20);
    fill(tokens, 600);
    history *h = run(NULL, tokens, 600);
    keep_mark(NULL, h);
    end_history(h);
    evict_all();
    assert_ok(qn_sequence_create(&store.cache, &s));
    store.device.fails_after = 4;
    assert_int_equal(qn_prefix_adopt(prefix, NULL, qn_token_ids((const int32_t *)tokens), 600, &s, &matched),
                     QN_ERR_IO);
    assert_int_equal(s.length, 0);
    store.device.fails_after = 0;
    assert_adopts(&s, tokens, 600, 576);
    store.device.fails_after = 3;
    evict_all();
    assert_int_equal(qn_pool_get_usage(store.pool).held, 0);
    end_prefix();
}

/* A pool that the prefix does not fit in beside what a sequence holds: the adopting sequence stays empty, and all is
 * found later. */
TEST(no_memory_to_come_back)
{
    uint32_t tokens[700], other[700];
    store = new_fixture(1, false, false); /* 16 pages */
    qn_sequence s;
    spill(&store);
    create_prefix(0, 8 << 20);
    fill(tokens, 700);
    fill(other, 700);
    end_history(run(NULL, tokens, 700));
    evict_all();
    history *held = run(NULL, other, 700);
    assert_ok(qn_sequence_create(&store.cache, &s));
    assert_int_equal(qn_prefix_adopt(prefix, NULL, qn_token_ids((const int32_t *)tokens), 700, &s, &matched),
                     QN_ERR_MEMORY);
    assert_int_equal(s.length, 0);
    check(held);
    end_history(held);
    assert_adopts(&s, tokens, 700, 640);
    end_prefix();
}

/* A state is not worth its copy where another is near. */
TEST(near_states_are_not_copied)
{
    uint32_t tokens[600];
    store = new_fixture(1000, false, true);
    qn_sequence s;
    spill(&store);
    create_prefix(2 * qn_pool_stride(store.cache.states), 8 << 20);
    fill(tokens, 600);
    static const size_t lengths[] = { 400, 500, 600 }; /* states at 384, 448, 576 */
    for (size_t i = 0; i < 3; i++) {
        history *h = run(NULL, tokens, lengths[i]);
        keep_mark(NULL, h);
        end_history(h);
    }
    qn_prefix_wait(prefix);
    /* That at 384 has no other before it and was copied. */
    expect_states(3);
    assert_int_equal(qn_prefix_get_counts(prefix).host_bytes, qn_pool_stride(store.cache.states));
    assert_ok(qn_sequence_create(&store.cache, &s));
    assert_adopts(&s, tokens, 440, 384); /* 576 is used least now */
    history *h = run("elsewhere", tokens, 100);
    keep_mark("elsewhere", h);
    end_history(h);
    assert_ok(qn_sequence_create(&store.cache, &s));
    assert_adopts(&s, tokens, 600, 384);
    end_prefix();
}

/* ---- Copies in flight ---- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* copies to host memory do not end while it is locked */
static size_t exhausted_after;                           /* copies until one finds no host memory; 0: never */

static qn_status gated_copy_out(void *context, void *to, uint64_t from, size_t bytes)
{
    pthread_mutex_lock(&gate);
    const bool is_exhausted = exhausted_after && --exhausted_after == 0;
    pthread_mutex_unlock(&gate);
    return is_exhausted ? qn_fail(QN_ERR_MEMORY, "refused") : device_copy_out(context, to, from, bytes);
}

/* Prompts of other tokens, whose states are kept one after the other. */
static void keep_states(uint32_t (*tokens)[100], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fill(tokens[i], 100);
        history *h = run(NULL, tokens[i], 100);
        keep_mark(NULL, h);
        end_history(h);
    }
}

TEST(states_are_dropped_while_too_many_are_copied)
{
    enum { N = QN_SPILL_COPIES + 3 };
    uint32_t tokens[N][100];
    store = new_fixture(1000, false, true);
    spill(&store);
    store.cache.copy_out = gated_copy_out;
    create_prefix(qn_pool_stride(store.cache.states), 8 << 20);
    pthread_mutex_lock(&gate);
    keep_states(tokens, N);
    expect_states(QN_SPILL_COPIES + 1);
    assert_int_equal(qn_pool_count(store.cache.states), QN_SPILL_COPIES + 1);
    pthread_mutex_unlock(&gate);
    evict_all();
    assert_int_equal(qn_pool_count(store.cache.states), 0);
    for (size_t i = 0; i < N; i++) {
        end_history(run(NULL, tokens[i], 100));
        assert_int_equal(reused, i < QN_SPILL_COPIES || i == N - 1 ? 64 : 0);
    }
    end_prefix();
}

/* A copy in flight keeps its item, whatever becomes of the node. */
TEST(nodes_are_freed_while_they_are_copied)
{
    uint32_t tokens[3][100];
    store = new_fixture(1000, false, true);
    spill(&store);
    store.cache.copy_out = gated_copy_out;
    create_prefix(qn_pool_stride(store.cache.states), 8 << 20);
    pthread_mutex_lock(&gate);
    keep_states(tokens, 3); /* two are copied */
    qn_prefix_clear(prefix);
    assert_true(qn_pool_count(store.cache.states) <= 1); /* that of the copy which has begun */
    keep_states(tokens, 3);
    expect_states(3);
    pthread_mutex_unlock(&gate);
    evict_all();
    for (size_t i = 0; i < 3; i++) {
        end_history(run(NULL, tokens[i], 100));
        assert_int_equal(reused, 64);
    }
    end_prefix();
}

/* The item stays until what is used least in host memory is evicted. */
TEST(host_memory_that_is_exhausted)
{
    uint32_t tokens[600];
    store = new_fixture(1000, false, false);
    spill(&store);
    store.cache.copy_out = gated_copy_out;
    create_prefix(0, 8 << 20);
    fill(tokens, 600);
    end_history(run(NULL, tokens, 600));
    exhausted_after = 4; /* three pages are copied, of which the last of the prompt is evicted */
    evict_all();
    assert_int_equal(exhausted_after, 0);
    assert_int_equal(qn_pool_get_usage(store.pool).held, 0);
    end_history(run(NULL, tokens, 600));
    assert_int_equal(reused, 512);
    end_prefix();
}

/* Conversations from a small set of beginnings, in a pool that is too small for all of them; whatever is taken over
 * holds the right tokens, and what is found is as long as a plain search says while nothing has been evicted. */
TEST(random_conversations)
{
    enum { ROUNDS = 3000, KEPT = 40 };
    for (size_t kind = 0; kind < 12; kind++) {
        const bool recurrent = kind & 2;
        store = new_fixture(recurrent ? 200 : 60, kind & 1, recurrent);
        const uint64_t host_budget = kind < 4 ? 0 : kind < 8 ? 16 << 20 : 2 << 20;
        label("kind %zu", kind);
        if (host_budget)
            spill(&store);
        static uint32_t bases[6][MAX_LENGTH], added[KEPT][MAX_LENGTH];
        size_t lengths[KEPT] = { 0 }, evictions = 0, reuses = 0;
        store.cache.context = &store.device;
        create_prefix(20 * 4096, host_budget);
        for (size_t i = 0; i < 6; i++) {
            fill(bases[i], MAX_LENGTH);
            memcpy(bases[i], bases[i / 2 * 2], (i % 2) * 150 * sizeof(uint32_t));
        }
        for (size_t round = 0; round < ROUNDS; round++) {
            const size_t n = 1 + random_u32() % 700, differs = random_u32() % n;
            history *h = calloc(1, sizeof *h);
            assert_non_null(h);
            memcpy(h->tokens, bases[random_u32() % 6], n * sizeof *h->tokens);
            for (size_t i = differs; random_u32() % 2 && i < n; i++)
                h->tokens[i] ^= 1 + random_u32() % 2;
            while (qn_sequence_create(&store.cache, &h->sequence) != QN_OK)
                assert_true(qn_prefix_evict(prefix));
            store.device.fails_after = random_u32() % 64 ? 0 : 1 + random_u32() % 8;
            const qn_status status = qn_prefix_adopt(prefix, round % 3 ? NULL : "other", qn_token_ids(tokens_of(h)), n,
                                                     &h->sequence, &matched);
            assert_true(status == QN_OK || (store.device.fails_after <= 0 && h->sequence.length == 0 && host_budget));
            store.device.fails_after = 0;
            check(h);
            size_t longest = 0;
            for (size_t k = 0; k < KEPT && !evictions && round % 3; k++) {
                size_t same = 0;
                while (same < lengths[k] && same < n && added[k][same] == h->tokens[same])
                    same++;
                same = same / QN_PAGE * QN_PAGE;
                longest = same > longest ? same : longest;
            }
            if (!evictions && round % 3 && round < KEPT)
                assert_int_equal(matched, longest < n ? longest : (n - 1) / QN_PAGE * QN_PAGE);
            reuses += h->sequence.length > 0;
            const size_t left = n - h->sequence.length;
            while (qn_sequence_reserve(&h->sequence, left) != QN_OK) {
                assert_true(qn_prefix_evict(prefix));
                evictions++;
            }
            run_step(&h->sequence, h->tokens + h->sequence.length, left);
            qn_sequence_commit(&h->sequence, left);
            check(h);
            qn_prefix_add(prefix, round % 3 ? NULL : "other", qn_token_ids(tokens_of(h)), &h->sequence);
            qn_prefix_keep_state(prefix, round % 3 ? NULL : "other", qn_token_ids(tokens_of(h)), &h->sequence,
                                 QN_STATE_MARK);
            if (round % 3) {
                memcpy(added[round % KEPT], h->tokens, n * sizeof *h->tokens);
                lengths[round % KEPT] = n;
            }
            end_history(h);
        }
        assert_true(evictions > 100 && reuses > 500);
        end_prefix();
    }
}
