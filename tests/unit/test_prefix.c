/* The prefix cache: what a sequence takes over, scopes, states and their budget, eviction; random conversations against a plain
 * search over everything that was ever added. */
#include "helper_sequence.h"

#include "cache/prefix.h"

static int32_t *tokens_of(history *h)
{
    return (int32_t *)h->tokens;
}

/* A sequence with these tokens, which takes over what the cache has and appends the rest; added to the cache. */
static history *run(fixture *f, qn_prefix *prefix, const char *scope, const uint32_t *tokens, size_t n, uint32_t *reused,
                    uint32_t *matched)
{
    history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    f->cache.context = &f->device;
    assert_ok(qn_sequence_create(&f->cache, &h->sequence));
    memcpy(h->tokens, tokens, n * sizeof *tokens);
    assert_ok(qn_prefix_adopt(prefix, scope, tokens_of(h), n, &h->sequence, matched));
    *reused = h->sequence.length;
    check(h);
    assert_true(*reused <= *matched && (n == 0 || *reused < n));
    const size_t left = n - *reused;
    assert_ok(qn_sequence_reserve(&h->sequence, left));
    run_step(&h->sequence, h->tokens + *reused, left);
    qn_sequence_commit(&h->sequence, left);
    check(h);
    qn_prefix_add(prefix, scope, tokens_of(h), &h->sequence);
    return h;
}

static void fill(uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = random_u32();
}

static void without_recurrent_layers(void **state)
{
    uint32_t tokens[600], reused, matched;
    (void)state;
    for (int codes = 0; codes < 2; codes++) {
        fixture f = new_fixture(1000, codes, false);
        qn_prefix *prefix;
        assert_ok(qn_prefix_create(&f.cache, 0, &prefix));
        fill(tokens, 600);
        history *first = run(&f, prefix, NULL, tokens, 600, &reused, &matched);
        assert_int_equal(reused, 0);
        assert_int_equal(matched, 0);
        assert_int_equal(qn_prefix_get_counts(prefix).pages, 9);
        const uint64_t held = qn_pool_get_usage(f.pool).held;
        history *again = run(&f, prefix, NULL, tokens, 600, &reused, &matched);
        assert_int_equal(reused, 576);
        assert_true(qn_pool_get_usage(f.pool).held - held <= 2 * (QN_PAGE * 4 + 256));
        tokens[200] ^= 1; /* in page 3 */
        history *other = run(&f, prefix, NULL, tokens, 600, &reused, &matched);
        assert_int_equal(reused, 192);
        assert_int_equal(qn_prefix_get_counts(prefix).pages, 9 + 6);
        history *elsewhere = run(&f, prefix, "tenant", tokens, 600, &reused, &matched);
        assert_int_equal(reused, 0);
        /* One token is left to evaluate. */
        history *exact = run(&f, prefix, NULL, tokens, 576, &reused, &matched);
        assert_int_equal(reused, 512);
        history *longer = run(&f, prefix, NULL, tokens, 577, &reused, &matched);
        assert_int_equal(reused, 576);
        check(first);
        check(again);
        end_history(first);
        end_history(again);
        end_history(other);
        end_history(elsewhere);
        end_history(exact);
        end_history(longer);
        history *later = run(&f, prefix, "tenant", tokens, 100, &reused, &matched);
        assert_int_equal(reused, 64);
        end_history(later);
        qn_prefix_free(prefix);
        end_fixture(&f);
    }
}

/* With recurrent layers only kept states help; matched tells where one would have. */
static void states(void **state)
{
    uint32_t tokens[600], reused, matched;
    fixture f = new_fixture(1000, false, true);
    qn_prefix *prefix;
    (void)state;
    const size_t bytes = qn_pool_stride(f.cache.states);
    assert_ok(qn_prefix_create(&f.cache, 2 * bytes, &prefix));
    fill(tokens, 600);
    history *first = run(&f, prefix, NULL, tokens, 300, &reused, &matched);
    history *second = run(&f, prefix, NULL, tokens, 400, &reused, &matched);
    assert_int_equal(reused, 0);
    assert_int_equal(matched, 256);
    qn_prefix_keep_state(prefix, NULL, tokens_of(first), &first->sequence); /* at 256 */
    assert_int_equal(first->sequence.state_position, 256);
    history *third = run(&f, prefix, NULL, tokens, 600, &reused, &matched);
    assert_int_equal(reused, 256);
    assert_int_equal(matched, 384);
    assert_int_not_equal(third->sequence.state, first->sequence.state);       /* it has folded since, into another item */
    qn_prefix_keep_state(prefix, NULL, tokens_of(second), &second->sequence); /* at 384 */
    qn_prefix_keep_state(prefix, NULL, tokens_of(second), &second->sequence);
    assert_int_equal(qn_prefix_get_counts(prefix).states, 2);
    /* The least recently used state gives way. */
    history *fourth = run(&f, prefix, NULL, tokens, 300, &reused, &matched);
    assert_int_equal(reused, 256);
    qn_prefix_keep_state(prefix, NULL, tokens_of(third), &third->sequence); /* at 576: the one at 384 goes */
    assert_int_equal(qn_prefix_get_counts(prefix).states, 2);
    history *fifth = run(&f, prefix, NULL, tokens, 500, &reused, &matched);
    assert_int_equal(reused, 256);
    assert_int_equal(matched, 448);
    history *all[] = { first, second, third, fourth, fifth };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        check(all[i]);
        end_history(all[i]);
    }
    qn_prefix_clear(prefix);
    assert_int_equal(qn_prefix_get_counts(prefix).pages, 0);
    assert_int_equal(qn_prefix_get_counts(prefix).states, 0);
    qn_prefix_free(prefix);
    end_fixture(&f);
}

static void a_state_larger_than_the_budget_is_not_kept(void **state)
{
    uint32_t tokens[200], reused, matched;
    fixture f = new_fixture(1000, true, true);
    qn_prefix *prefix;
    (void)state;
    assert_ok(qn_prefix_create(&f.cache, 100, &prefix));
    fill(tokens, 200);
    history *h = run(&f, prefix, NULL, tokens, 200, &reused, &matched);
    qn_prefix_keep_state(prefix, NULL, tokens_of(h), &h->sequence);
    assert_int_equal(qn_prefix_get_counts(prefix).states, 0);
    end_history(h);
    qn_prefix_free(prefix);
    end_fixture(&f);
}

/* Leaves go before what is above them, the least recently used first, and nothing that a sequence holds. */
static void eviction(void **state)
{
    uint32_t a[300], b[300], reused, matched;
    fixture f = new_fixture(1000, false, false);
    qn_prefix *prefix;
    (void)state;
    assert_ok(qn_prefix_create(&f.cache, 0, &prefix));
    fill(a, 300);
    fill(b, 300);
    memcpy(b, a, 64 * sizeof *a);
    end_history(run(&f, prefix, NULL, a, 300, &reused, &matched)); /* pages 0 to 3 */
    end_history(run(&f, prefix, NULL, b, 300, &reused, &matched)); /* the same page 0, others after it */
    assert_int_equal(qn_prefix_get_counts(prefix).pages, 7);
    history *held = run(&f, prefix, NULL, a, 130, &reused, &matched); /* holds pages 0 and 1 of a */
    assert_int_equal(reused, 128);
    for (size_t left = 6; left > 4; left--) { /* pages 3 and 2 of a were used before all of b */
        assert_true(qn_prefix_evict(prefix));
        assert_int_equal(qn_prefix_get_counts(prefix).pages, left);
    }
    history *again = run(&f, prefix, NULL, b, 300, &reused, &matched);
    assert_int_equal(reused, 256);
    end_history(again);
    for (size_t left = 3; left > 1; left--)
        assert_true(qn_prefix_evict(prefix));
    assert_true(qn_prefix_evict(prefix));
    assert_false(qn_prefix_evict(prefix)); /* pages 0 and 1 of a are held */
    assert_int_equal(qn_prefix_get_counts(prefix).pages, 2);
    end_history(held);
    assert_true(qn_prefix_evict(prefix));
    assert_true(qn_prefix_evict(prefix));
    assert_false(qn_prefix_evict(prefix));
    assert_int_equal(qn_pool_get_usage(f.pool).held, 0);
    qn_prefix_free(prefix);
    end_fixture(&f);
}

static void what_is_adopted_is_recent(void **state)
{
    uint32_t a[200], b[200], reused, matched;
    fixture f = new_fixture(1000, false, false);
    qn_sequence sequence;
    qn_prefix *prefix;
    (void)state;
    assert_ok(qn_prefix_create(&f.cache, 0, &prefix));
    fill(a, 200);
    fill(b, 200);
    end_history(run(&f, prefix, NULL, a, 200, &reused, &matched));
    end_history(run(&f, prefix, NULL, b, 200, &reused, &matched));
    assert_ok(qn_sequence_create(&f.cache, &sequence));
    assert_ok(qn_prefix_adopt(prefix, NULL, (const int32_t *)a, 200, &sequence, &matched));
    qn_sequence_free(&sequence);
    assert_true(qn_prefix_evict(prefix));
    end_history(run(&f, prefix, NULL, b, 200, &reused, &matched));
    assert_int_equal(reused, 128);
    end_history(run(&f, prefix, NULL, a, 200, &reused, &matched));
    assert_int_equal(reused, 192);
    qn_prefix_free(prefix);
    end_fixture(&f);
}

/* Conversations from a small set of beginnings, in a pool that is too small for all of them; whatever is taken over holds the
 * right tokens, and what is found is as long as a plain search says while nothing has been evicted. */
static void random_conversations(void **state)
{
    enum { ROUNDS = 3000, KEPT = 40 };
    (void)state;
    for (size_t kind = 0; kind < 4; kind++) {
        const bool recurrent = kind & 2;
        fixture f = new_fixture(recurrent ? 200 : 60, kind & 1, recurrent);
        static uint32_t bases[6][MAX_LENGTH], added[KEPT][MAX_LENGTH];
        size_t lengths[KEPT] = { 0 }, evictions = 0, reuses = 0;
        qn_prefix *prefix;
        f.cache.context = &f.device;
        assert_ok(qn_prefix_create(&f.cache, 20 * 4096, &prefix));
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
            uint32_t matched;
            while (qn_sequence_create(&f.cache, &h->sequence) != QN_OK)
                assert_true(qn_prefix_evict(prefix));
            assert_ok(qn_prefix_adopt(prefix, round % 3 ? NULL : "other", tokens_of(h), n, &h->sequence, &matched));
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
            qn_prefix_add(prefix, round % 3 ? NULL : "other", tokens_of(h), &h->sequence);
            qn_prefix_keep_state(prefix, round % 3 ? NULL : "other", tokens_of(h), &h->sequence);
            if (round % 3) {
                memcpy(added[round % KEPT], h->tokens, n * sizeof *h->tokens);
                lengths[round % KEPT] = n;
            }
            end_history(h);
        }
        assert_true(evictions > 100 && reuses > 500);
        qn_prefix_free(prefix);
        end_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_recurrent_layers),
        cmocka_unit_test(states),
        cmocka_unit_test(a_state_larger_than_the_budget_is_not_kept),
        cmocka_unit_test(eviction),
        cmocka_unit_test(what_is_adopted_is_recent),
        cmocka_unit_test(random_conversations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
