/* The pool: items, references, the budget that classes share, commit and release of granules; on real memory, and
 * against a model with random operations. */
#include "helper_random.h"

#include "base/address_space.h"
#include "cache/pool.h"

enum { GRANULE = 4096 };

/* A device that only counts. */
struct device {
    uint64_t next;
    size_t committed, reserved;
    size_t refuse_after; /* commits until one is refused; 0: never */
    size_t n_freed;      /* items; the address of the last one */
    uint64_t last_freed;
    uint8_t is_committed[1 << 16];
};

static qn_status device_reserve(void *context, size_t bytes, uint64_t *address)
{
    struct device *d = context;
    assert_int_equal(bytes % GRANULE, 0);
    *address = GRANULE + d->next;
    d->next += bytes;
    d->reserved += bytes;
    return QN_OK;
}

static void device_unreserve(void *context, uint64_t address, size_t bytes)
{
    struct device *d = context;
    (void)address;
    d->reserved -= bytes;
}

static qn_status device_commit(void *context, uint64_t address)
{
    struct device *d = context;
    if (d->refuse_after && --d->refuse_after == 0)
        return qn_fail(QN_ERR_MEMORY, "refused");
    assert_false(d->is_committed[address / GRANULE]);
    d->is_committed[address / GRANULE] = 1;
    d->committed += GRANULE;
    return QN_OK;
}

static void device_release(void *context, uint64_t address)
{
    struct device *d = context;
    assert_true(d->is_committed[address / GRANULE]);
    d->is_committed[address / GRANULE] = 0;
    d->committed -= GRANULE;
}

static void device_on_free(void *context, uint64_t address, size_t bytes)
{
    struct device *d = context;
    assert_true(d->is_committed[address / GRANULE] && d->is_committed[(address + bytes - 1) / GRANULE]);
    d->n_freed++;
    d->last_freed = address;
}

static qn_pool *new_pool(struct device *d, uint64_t budget, uint64_t idle)
{
    const qn_pool_memory memory = {
        d, GRANULE, device_reserve, device_unreserve, device_commit, device_release, device_on_free
    };
    qn_pool *pool;
    *d = (struct device){ 0 };
    assert_ok(qn_pool_create(&memory, budget, idle, &pool));
    return pool;
}

TEST(items_and_references)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 4 * GRANULE, 0);
    qn_pool_class *class;
    uint32_t a, b, c;
    assert_ok(qn_pool_add_class(pool, "page", 1000, &class));
    assert_int_equal(qn_pool_stride(class), 1024);
    assert_int_equal(qn_pool_available(class), 16);
    assert_ok(qn_pool_take(class, &a));
    assert_ok(qn_pool_take(class, &b));
    assert_int_equal(a, 0);
    assert_int_equal(b, 1);
    assert_int_equal(qn_pool_address(class, b) - qn_pool_address(class, a), 1024);
    assert_int_equal(d.committed, GRANULE);
    assert_false(qn_pool_is_shared(class, a));
    qn_pool_share(class, a);
    assert_true(qn_pool_is_shared(class, a));
    qn_pool_drop(class, a);
    assert_int_equal(d.n_freed, 0);
    assert_ok(qn_pool_take(class, &c));
    assert_int_equal(c, 2); /* a is still held */
    qn_pool_drop(class, a);
    assert_true(d.n_freed == 1 && d.last_freed == qn_pool_address(class, a));
    assert_int_equal(qn_pool_count(class), 2);
    assert_ok(qn_pool_take(class, &a));
    assert_int_equal(a, 0); /* the lowest first */
    assert_int_equal(qn_pool_available(class), 13);
    qn_pool_drop(class, a);
    qn_pool_drop(class, b);
    qn_pool_drop(class, c);
    assert_int_equal(d.committed, 0);
    qn_pool_free(pool);
    assert_int_equal(d.reserved, 0);
}

/* Items that are larger than a granule, and that share granules with their neighbours. */
TEST(items_across_granules)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 8 * GRANULE, 0);
    qn_pool_class *class;
    uint32_t item[8];
    assert_ok(qn_pool_add_class(pool, "state", GRANULE + GRANULE / 2, &class));
    assert_int_equal(qn_pool_available(class), 5);
    for (size_t i = 0; i < 5; i++)
        assert_ok(qn_pool_take(class, &item[i]));
    assert_int_equal(d.committed, 8 * GRANULE);
    assert_int_equal(qn_pool_take(class, &item[5]), QN_ERR_MEMORY);
    qn_pool_drop(class, item[1]); /* its granule 2 is its own; 1 is that of item 0 too */
    assert_int_equal(d.committed, 7 * GRANULE);
    qn_pool_drop(class, item[0]);
    assert_int_equal(d.committed, 5 * GRANULE);
    assert_int_equal(qn_pool_available(class), 2);
    for (size_t i = 2; i < 5; i++)
        qn_pool_drop(class, item[i]);
    assert_int_equal(d.committed, 0);
    qn_pool_free(pool);
}

/* A class takes idle memory from another, but not memory that is held. */
TEST(classes_share_the_budget)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 4 * GRANULE, 4 * GRANULE);
    qn_pool_class *small, *large;
    uint32_t first[4], item;
    assert_ok(qn_pool_add_class(pool, "page", GRANULE, &small));
    assert_ok(qn_pool_add_class(pool, "state", 2 * GRANULE, &large));
    for (size_t i = 0; i < 4; i++)
        assert_ok(qn_pool_take(small, &first[i]));
    assert_int_equal(qn_pool_available(large), 0);
    assert_int_equal(qn_pool_take(large, &item), QN_ERR_MEMORY);
    qn_pool_drop(small, first[0]);
    qn_pool_drop(small, first[2]);
    assert_int_equal(d.committed, 4 * GRANULE); /* two granules are idle */
    assert_int_equal(qn_pool_available(large), 1);
    assert_int_equal(qn_pool_available(small), 2);
    assert_ok(qn_pool_take(large, &item));
    assert_int_equal(d.committed, 4 * GRANULE);
    const qn_pool_usage usage = qn_pool_get_usage(pool);
    assert_int_equal(usage.committed, 4 * GRANULE);
    assert_int_equal(usage.held, 4 * GRANULE);
    qn_pool_drop(large, item);
    qn_pool_drop(small, first[1]);
    qn_pool_drop(small, first[3]);
    qn_pool_free(pool);
    assert_int_equal(d.committed, 0);
}

/* The lowest free item has no memory and none can be committed; another free item's memory is held by its
 * neighbours. */
TEST(free_items_in_held_granules)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 2 * GRANULE, 0);
    qn_pool_class *small, *large;
    uint32_t item[4], other, again;
    assert_ok(qn_pool_add_class(pool, "page", GRANULE / 2, &small));
    assert_ok(qn_pool_add_class(pool, "state", GRANULE, &large));
    for (size_t i = 0; i < 4; i++)
        assert_ok(qn_pool_take(small, &item[i]));
    qn_pool_drop(small, item[0]);
    qn_pool_drop(small, item[1]);
    qn_pool_drop(small, item[2]);
    assert_ok(qn_pool_take(large, &other));
    assert_int_equal(qn_pool_available(small), 1);
    assert_ok(qn_pool_take(small, &again));
    assert_int_equal(again, item[2]);
    assert_int_equal(qn_pool_take(small, &again), QN_ERR_MEMORY);
    qn_pool_drop(large, other);
    assert_ok(qn_pool_take(small, &again));
    assert_int_equal(again, item[0]);
    qn_pool_drop(small, again);
    qn_pool_drop(small, item[2]);
    qn_pool_drop(small, item[3]);
    qn_pool_free(pool);
}

TEST(a_refused_commit_changes_nothing)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 8 * GRANULE, 0);
    qn_pool_class *class;
    uint32_t item = 99;
    assert_ok(qn_pool_add_class(pool, "state", 3 * GRANULE, &class));
    d.refuse_after = 2;
    assert_int_equal(qn_pool_take(class, &item), QN_ERR_MEMORY);
    assert_int_equal(item, 99);
    assert_int_equal(qn_pool_count(class), 0);
    assert_ok(qn_pool_take(class, &item));
    assert_int_equal(item, 0);
    qn_pool_drop(class, item);
    qn_pool_free(pool);
    assert_int_equal(d.committed, 0);
}

TEST(classes_are_removed)
{
    struct device d;
    qn_pool *pool = new_pool(&d, 4 * GRANULE, 4 * GRANULE);
    qn_pool_class *first, *second;
    uint32_t item;
    assert_ok(qn_pool_add_class(pool, "page", GRANULE, &first));
    assert_ok(qn_pool_add_class(pool, "state", GRANULE, &second));
    assert_ok(qn_pool_take(first, &item));
    qn_pool_drop(first, item); /* its granule stays committed */
    assert_int_equal(d.committed, GRANULE);
    qn_pool_remove_class(pool, first);
    assert_int_equal(d.committed, 0);
    assert_int_equal(d.reserved, 4 * GRANULE);
    assert_int_equal(qn_pool_available(second), 4);
    qn_pool_free(pool);
    assert_int_equal(d.reserved, 0);
}

TEST(arguments)
{
    struct device d;
    qn_pool *pool;
    qn_pool_class *class;
    uint32_t item;
    const qn_pool_memory memory = {
        &d, GRANULE, device_reserve, device_unreserve, device_commit, device_release, device_on_free
    };
    assert_int_equal(qn_pool_create(&memory, GRANULE - 1, 0, &pool), QN_ERR_INVALID);
    assert_null(pool);
    assert_int_equal(qn_pool_create(&memory, UINT64_MAX, 0, &pool), QN_ERR_INVALID);
    pool = new_pool(&d, GRANULE, 0);
    assert_int_equal(qn_pool_add_class(pool, "state", SIZE_MAX, &class), QN_ERR_MEMORY);
    assert_null(class);
    assert_ok(qn_pool_add_class(pool, "state", 2 * GRANULE, &class)); /* none fits */
    assert_int_equal(qn_pool_available(class), 0);
    assert_int_equal(qn_pool_take(class, &item), QN_ERR_MEMORY);
    qn_pool_free(pool);
    qn_pool_free(NULL);
}

/* Random operations: items are distinct, memory committed is exactly what held items touch if nothing idle is kept, and
 * qn_pool_available tells the truth. */
TEST(random_operations)
{
    enum { CLASSES = 3, MOST = 64 };
    static const size_t sizes[CLASSES] = { 700, GRANULE, 3 * GRANULE + 1 };
    struct device d;
    for (uint64_t idle = 0; idle <= 8 * GRANULE; idle += 4 * GRANULE) {
        qn_pool *pool = new_pool(&d, 24 * GRANULE, idle);
        qn_pool_class *classes[CLASSES];
        uint32_t held[CLASSES][MOST], n[CLASSES] = { 0 };
        for (size_t i = 0; i < CLASSES; i++)
            assert_ok(qn_pool_add_class(pool, "item", sizes[i], &classes[i]));
        random_state = idle + 1;
        for (size_t step = 0; step < 20000; step++) {
            const size_t c = random_u64() % CLASSES;
            const bool taking = random_u64() % 100 < (step / 1000 % 2 ? 70 : 40);
            if (taking && n[c] < MOST) {
                uint32_t item;
                const size_t available = qn_pool_available(classes[c]);
                const qn_status status = qn_pool_take(classes[c], &item);
                assert_int_equal(status == QN_OK, available > 0);
                for (uint32_t i = 0; status == QN_OK && i < n[c]; i++)
                    assert_int_not_equal(item, held[c][i]);
                if (status == QN_OK)
                    held[c][n[c]++] = item;
            } else if (!taking && n[c]) {
                const uint32_t at = (uint32_t)(random_u64() % n[c]);
                qn_pool_drop(classes[c], held[c][at]);
                held[c][at] = held[c][--n[c]];
            }
            assert_int_equal(qn_pool_count(classes[c]), n[c]);
            const qn_pool_usage usage = qn_pool_get_usage(pool);
            assert_int_equal(usage.committed, d.committed);
            assert_true(usage.committed <= usage.budget && usage.held <= usage.committed);
        }
        for (size_t c = 0; c < CLASSES; c++)
            while (n[c])
                qn_pool_drop(classes[c], held[c][--n[c]]);
        assert_true(d.committed <= idle);
        qn_pool_free(pool);
        assert_int_equal(d.committed, 0);
        assert_int_equal(d.reserved, 0);
    }
}

TEST(address_space)
{
    const size_t bytes = 64 * (size_t)QN_COMMIT_GRANULE;
    void *address;
    assert_ok(qn_address_space_reserve(bytes, &address));
    assert_int_equal((uintptr_t)address % QN_COMMIT_GRANULE, 0);
    char *last = (char *)address + bytes - QN_COMMIT_GRANULE;
    for (int round = 0; round < 2; round++) {
        assert_ok(qn_address_space_commit(last));
        assert_int_equal(last[0], 0);
        assert_int_equal(last[QN_COMMIT_GRANULE - 1], 0);
        memset(last, 1, QN_COMMIT_GRANULE);
        qn_address_space_release(last);
    }
    qn_address_space_free(address, bytes);
    assert_int_equal(qn_address_space_reserve(SIZE_MAX / 4 / QN_COMMIT_GRANULE * QN_COMMIT_GRANULE, &address),
                     QN_ERR_MEMORY);
    assert_null(address);
}
