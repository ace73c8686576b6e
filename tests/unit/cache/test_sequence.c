/* Sequences that share pages and states: random appends, forks, truncations and refusals of memory, against each
 * sequence's own history of tokens. */
#include "helper_sequence.h"

enum { SEQUENCES = 12 };

static uint32_t random_below(uint32_t n)
{
    return random_u32() % n;
}

/* One random operation on a random sequence. */
static void operate(fixture *f, history *all)
{
    history *h = &all[random_below(SEQUENCES)], *other = &all[random_below(SEQUENCES)];
    const uint32_t what = random_below(10);
    f->device.refuse_after = random_below(20) ? 0 : 1;
    if (!h->used) {
        h->used = qn_sequence_create(&f->cache, &h->sequence) == QN_OK;
        return;
    }
    qn_sequence *s = &h->sequence;
    if (what < 6) {
        const uint32_t n = 1 + (random_below(4) ? random_below(6) : random_below(200));
        if (s->length + n <= MAX_LENGTH)
            append(h, n);
    } else if (what < 7 && s->length) {
        const uint32_t shortest = qn_sequence_shortest(s), length = shortest + random_below(s->length - shortest + 1);
        truncate_to(h, random_below(8) ? length : 0);
    } else if (what < 9 && !other->used) {
        memcpy(other->tokens, h->tokens, sizeof h->tokens);
        other->used = qn_sequence_fork(s, &other->sequence) == QN_OK;
    } else if (what == 8 && h != other) {
        const bool assigned = qn_sequence_assign(&other->sequence, s) == QN_OK;
        if (assigned)
            memcpy(other->tokens, h->tokens, sizeof h->tokens);
        assert_true(assigned || other->sequence.length == 0);
    } else if (what == 9) {
        qn_sequence_free(s);
        h->used = false;
    }
}

TEST(random_operations)
{
    history *all = calloc(SEQUENCES, sizeof *all);
    assert_non_null(all);
    for (size_t kind = 0; kind < 16; kind++) {
        /* A pool that never fills, and one that refuses most of the time. */
        fixture f = new_fixture(kind & 4 ? 8 : 4000, kind & 1, kind & 2 || kind & 8);
        f.cache.context = &f.device;
        if (kind & 8)
            fold_whole_chunks(&f);
        label("kind %zu", kind);
        for (size_t step = 0; step < 20000; step++) {
            operate(&f, all);
            for (size_t i = 0; step % 16 == 0 && i < SEQUENCES; i++)
                if (all[i].used)
                    check(&all[i]);
        }
        for (size_t i = 0; i < SEQUENCES; i++) {
            if (all[i].used)
                qn_sequence_free(&all[i].sequence);
            all[i].used = false;
        }
        end_fixture(&f);
    }
    free(all);
}

/* ---- Single rules ---- */

static history *grown(fixture *f, size_t n)
{
    history *h = calloc(1, sizeof *h);
    assert_non_null(h);
    f->cache.context = &f->device;
    assert_ok(qn_sequence_create(&f->cache, &h->sequence));
    assert_true(!n || append(h, n));
    return h;
}

TEST(a_fork_copies_the_open_page_and_chunk_alone)
{
    fixture f = new_fixture(1000, false, true);
    history *h = grown(&f, 5 * QN_PAGE + 3);
    history *fork = calloc(1, sizeof *fork);
    assert_non_null(fork);
    const uint64_t held = qn_pool_get_usage(f.pool).held;
    memcpy(fork->tokens, h->tokens, sizeof h->tokens);
    f.device.copies = 0;
    assert_ok(qn_sequence_fork(&h->sequence, &fork->sequence));
    assert_int_equal(f.device.copies, 2);
    assert_int_equal(qn_pool_get_usage(f.pool).held - held,
                     qn_pool_stride(f.cache.pages) + qn_pool_stride(f.cache.open_chunks));
    assert_true(append(fork, 10));
    assert_int_equal(f.device.copies, 2);
    /* Both fold: the first into another item, the second, now alone, in place. */
    const uint32_t shared = h->sequence.state;
    assert_int_equal(fork->sequence.state, shared);
    assert_true(append(fork, QN_PAGE));
    assert_int_not_equal(fork->sequence.state, shared);
    assert_true(append(h, QN_PAGE));
    assert_int_equal(h->sequence.state, shared);
    check(h);
    check(fork);
    end_history(h);
    end_history(fork);
    end_fixture(&f);
}

/* 64 rows of codes: page 0, the open page and the last complete one are fp16. */
TEST(pages_of_codes)
{
    fixture f = new_fixture(1000, true, false);
    history *h = grown(&f, 6 * QN_PAGE);
    assert_int_equal(qn_pool_count(f.cache.pages), 5);
    assert_int_equal(qn_pool_count(f.cache.f16_pages), 2);
    assert_int_equal(qn_sequence_rewind_length(&h->sequence, 5 * QN_PAGE + 7), 5 * QN_PAGE + 7);
    assert_int_equal(qn_sequence_rewind_length(&h->sequence, 4 * QN_PAGE + 7), 4 * QN_PAGE);
    assert_int_equal(qn_sequence_rewind_length(&h->sequence, 7), 7);
    assert_true(append(h, 1));
    assert_int_equal(qn_pool_count(f.cache.pages), 5);
    assert_int_equal(qn_pool_count(f.cache.f16_pages), 2);
    qn_sequence_truncate(&h->sequence, 7);
    assert_int_equal(qn_pool_count(f.cache.pages), 0);
    assert_int_equal(qn_pool_count(f.cache.f16_pages), 1);
    check(h);
    end_history(h);
    end_fixture(&f);
}

/* Rows that were reserved and not appended leave nothing behind. */
TEST(a_reservation_that_is_not_used)
{
    fixture f = new_fixture(1000, true, true);
    history *h = grown(&f, QN_PAGE + 5);
    const uint64_t held = qn_pool_get_usage(f.pool).held;
    assert_ok(qn_sequence_reserve(&h->sequence, 500));
    assert_true(qn_pool_get_usage(f.pool).held > held);
    qn_sequence_commit(&h->sequence, 0);
    assert_int_equal(qn_pool_get_usage(f.pool).held, held);
    check(h);
    assert_ok(qn_sequence_reserve(&h->sequence, 300));
    for (size_t i = 0; i < 2; i++)
        h->tokens[h->sequence.length + i] = random_u32();
    run_step(&h->sequence, h->tokens + h->sequence.length, 2);
    qn_sequence_commit(&h->sequence, 2);
    check(h);
    assert_int_equal(qn_pool_get_usage(f.pool).held, held);
    end_history(h);
    end_fixture(&f);
}

/* The items of a restored sequence are those of one that has grown, but for the fp16 rows of a complete page of codes
 * without recurrent layers. */
TEST(restored_items)
{
    for (size_t kind = 0; kind < 6; kind++)
        for (size_t length = 1; length <= 5 * QN_PAGE; length += length % QN_PAGE == 1 ? 62 : 1) {
            fixture f = new_fixture(1000, kind & 1, kind & 6);
            if (kind & 4)
                fold_whole_chunks(&f);
            history *h = grown(&f, length);
            qn_sequence restored;
            label("kind %zu, %zu tokens", kind, length);
            const uint64_t f16_page = kind == 1 && length % QN_PAGE == 0 && length > QN_PAGE
                                          ? qn_pool_stride(f.cache.f16_pages)
                                          : 0,
                           bytes = qn_sequence_bytes(&h->sequence) - f16_page;
            const qn_extent extent = qn_sequence_extent(&h->sequence);
            assert_int_equal(extent.length, length);
            assert_int_equal(extent.state_position, h->sequence.state_position);
            end_history(h);
            assert_ok(qn_sequence_create(&f.cache, &restored));
            assert_ok(qn_sequence_restore(&restored, &extent));
            assert_int_equal(qn_sequence_bytes(&restored), bytes);
            const qn_extent again = qn_sequence_extent(&restored);
            assert_memory_equal(&again, &extent, sizeof extent);
            qn_sequence_free(&restored);
            end_fixture(&f);
        }
}

TEST(lengths_of_recurrent_layers)
{
    fixture f = new_fixture(1000, false, true);
    history *h = grown(&f, QN_PAGE);
    assert_int_equal(qn_sequence_shortest(&h->sequence), 1);
    assert_false(qn_sequence_folds(&h->sequence, 0));
    assert_true(qn_sequence_folds(&h->sequence, 1));
    assert_true(append(h, 1));
    assert_int_equal(qn_sequence_shortest(&h->sequence), QN_PAGE + 1);
    f.cache.max_dropped = 8;
    assert_true(append(h, 20));
    assert_int_equal(qn_sequence_shortest(&h->sequence), QN_PAGE + 21 - 8);
    qn_sequence_truncate(&h->sequence, 0);
    assert_int_equal(qn_sequence_shortest(&h->sequence), 0);
    check(h);
    end_history(h);
    end_fixture(&f);
}

/* A step that contains a chunk leaves the state at the last multiple of 64, others fold with the first row of the next
 * chunk. */
TEST(whole_chunks)
{
    static const struct {
        uint32_t n, state_position, shortest;
    } steps[] = {
        { 10, 0, 5 },      { 54, 0, 59 },     { 1, 64, 65 },    { 62, 64, 122 },  { 64, 128, 186 },
        { 65, 256, 256 },  { 1, 256, 257 },   { 63, 256, 315 }, { 64, 384, 384 }, { 64, 448, 448 },
        { 127, 512, 570 }, { 130, 704, 705 }, { 59, 704, 759 }, { 3, 704, 762 },  { 100, 832, 862 },
    };
    fixture f = new_fixture(1000, true, true);
    fold_whole_chunks(&f);
    history *h = grown(&f, 0);
    for (size_t i = 0; i < COUNT(steps); i++) {
        label("step %zu", i);
        assert_true(append(h, steps[i].n));
        assert_int_equal(h->sequence.state_position, steps[i].state_position);
        assert_int_equal(qn_sequence_shortest(&h->sequence), steps[i].shortest);
        check(h);
    }
    end_history(h);
    end_fixture(&f);
}

/* Truncations in turn drop no more than one truncation could. */
TEST(repeated_truncation)
{
    fixture f = new_fixture(1000, false, true);
    fold_whole_chunks(&f);
    history *h = grown(&f, 40), *fork = calloc(1, sizeof *fork);
    assert_non_null(fork);
    qn_sequence_truncate(&h->sequence, 37);
    assert_int_equal(qn_sequence_shortest(&h->sequence), 35);
    memcpy(fork->tokens, h->tokens, sizeof h->tokens);
    assert_ok(qn_sequence_fork(&h->sequence, &fork->sequence));
    assert_int_equal(qn_sequence_shortest(&fork->sequence), 35);
    qn_sequence_truncate(&h->sequence, 35);
    assert_int_equal(qn_sequence_shortest(&h->sequence), 35);
    check(h);
    assert_true(append(h, 2));
    assert_int_equal(qn_sequence_shortest(&h->sequence), 35);
    assert_true(append(h, 30));
    assert_int_equal(qn_sequence_shortest(&h->sequence), 65);
    check(h);
    qn_sequence_truncate(&h->sequence, 0);
    assert_true(append(h, 3));
    assert_int_equal(qn_sequence_shortest(&h->sequence), 1);
    end_history(h);
    end_history(fork);
    end_fixture(&f);
}

/* At every alignment, with as many drafted rows as are allowed: truncation to each accepted length leaves what the
 * accepted rows alone would have left. One more drafted row could not be dropped. */
TEST(drafted_rows)
{
    static const uint32_t counts[] = { 1, 2, 5, 60, 64, 100, 130 };
    for (size_t kind = 0; kind < 6; kind++)
        for (uint32_t length = 1; length < 200; length++)
            for (size_t i = 0; i < COUNT(counts); i++) {
                fixture f = new_fixture(1000, kind & 1, kind >= 2);
                if (kind >= 4)
                    fold_whole_chunks(&f);
                history *h = grown(&f, length), *fork = calloc(1, sizeof *fork);
                assert_non_null(fork);
                const uint32_t kept = length + counts[i];
                const size_t allowed = qn_sequence_max_drafted(&h->sequence, counts[i]);
                const uint32_t most = allowed < 70 ? (uint32_t)allowed : 70;
                label("kind %zu, %u tokens, %u rows, %u drafted", kind, length, counts[i], most);
                for (uint32_t accepted = kept; accepted <= kept + most; accepted += 1 + most / 3) {
                    memcpy(fork->tokens, h->tokens, sizeof h->tokens);
                    assert_ok(qn_sequence_fork(&h->sequence, &fork->sequence));
                    assert_true(append(fork, counts[i] + most));
                    assert_true(qn_sequence_shortest(&fork->sequence) <= kept);
                    assert_int_equal(qn_sequence_rewind_length(&fork->sequence, accepted), accepted);
                    qn_sequence_truncate(&fork->sequence, accepted);
                    check(fork);
                    assert_true(append(fork, 3));
                    check(fork);
                    assert_true(append(fork, 70));
                    check(fork);
                    qn_sequence_free(&fork->sequence);
                }
                if (allowed < 70 && kept > QN_PAGE) { /* page 0 stays fp16 */
                    memcpy(fork->tokens, h->tokens, sizeof h->tokens);
                    assert_ok(qn_sequence_fork(&h->sequence, &fork->sequence));
                    assert_true(append(fork, counts[i] + most + 1));
                    assert_true(qn_sequence_shortest(&fork->sequence) > kept ||
                                qn_sequence_rewind_length(&fork->sequence, kept) != kept || kept % QN_PAGE == 0);
                    qn_sequence_free(&fork->sequence);
                }
                free(fork);
                end_history(h);
                end_fixture(&f);
            }
}

/* What a step in flight uses: the sequence and its tables when it was launched. */
struct in_flight {
    qn_sequence sequence;
    uint32_t pages[MAX_LENGTH / QN_PAGE + 1], f16_pages[MAX_LENGTH / QN_PAGE + 1];
    size_t n;
};

static void launch(const qn_sequence *s, size_t n, struct in_flight *step)
{
    const size_t n_pages = (s->length + n + QN_PAGE - 1) / QN_PAGE;
    step->sequence = *s;
    step->n = n;
    memcpy(step->pages, s->pages, n_pages * sizeof *s->pages);
    step->sequence.pages = step->pages;
    if (s->f16_pages)
        memcpy(step->f16_pages, s->f16_pages, n_pages * sizeof *s->f16_pages);
    step->sequence.f16_pages = step->f16_pages;
}

/* Each step is computed after the next one was reserved; the last row is discarded, and the sequence's prefix is then
 * as it was. */
TEST(steps_in_flight)
{
    for (size_t kind = 0; kind < 6; kind++)
        for (uint32_t end = 1; end < 300; end += 1 + random_below(9)) {
            fixture f = new_fixture(1000, kind & 1, kind >= 2);
            if (kind >= 4)
                fold_whole_chunks(&f);
            history *h = grown(&f, 1 + random_below(140));
            qn_sequence *s = &h->sequence;
            const uint32_t last = s->length + end;
            struct in_flight steps[2];
            uint32_t shared = QN_NO_ITEM;
            label("kind %zu, %u rows", kind, (unsigned)end);
            for (size_t i = 0; i < MAX_LENGTH; i++)
                h->tokens[s->length + i < MAX_LENGTH ? s->length + i : MAX_LENGTH] = random_u32();
            for (size_t i = 0;; i++) {
                const size_t left = last - s->length - (i ? steps[(i - 1) % 2].n : 0);
                const size_t n = !left ? 1 : random_below(8) || left < 70 ? 1 : 1 + random_below(70);
                if (i)
                    qn_sequence_advance(s);
                if (f.cache.states && s->state != QN_NO_ITEM && shared == QN_NO_ITEM && !random_below(20)) {
                    shared = s->state; /* the next fold is into another item */
                    qn_pool_share(f.cache.states, shared);
                }
                assert_ok(qn_sequence_reserve(s, n));
                launch(s, n, &steps[i % 2]);
                if (i) {
                    const struct in_flight *before = &steps[(i - 1) % 2];
                    run_step(&before->sequence, h->tokens + before->sequence.length, before->n);
                    qn_sequence_settle(s);
                }
                if (!left)
                    break;
            }
            assert_int_equal(s->length, last);
            run_step(s, h->tokens + last, 1);
            qn_sequence_discard(s);
            for (uint32_t p = 0; p < last / QN_PAGE * QN_PAGE; p++) {
                const bool is_f16 = f.cache.f16_pages && p < QN_PAGE;
                const uint32_t *rows = is_f16 ? item_at(f.cache.f16_pages, s->f16_pages[0])
                                              : item_at(f.cache.pages, s->pages[p / QN_PAGE]);
                assert_int_equal(rows[p % QN_PAGE], h->tokens[p]);
            }
            assert_true(s->state_position <= last && (!f.cache.states || last - s->state_position <= QN_PAGE));
            if (s->state_position)
                assert_int_equal(*item_at(f.cache.states, s->state), fold(7, h->tokens, s->state_position));
            if (shared != QN_NO_ITEM)
                qn_pool_drop(f.cache.states, shared);
            end_history(h);
            end_fixture(&f);
        }
}
