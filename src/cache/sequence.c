/* Items that a sequence takes and drops as it grows, is truncated and is forked. The device writes their contents;
 * prefix.c shares them with other sequences. */
#include "cache/sequence.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t pages_of(size_t length)
{
    return (length + QN_PAGE - 1) / QN_PAGE;
}

static bool has_codes(const qn_sequence *s)
{
    return s->cache->f16_pages != NULL;
}

/* ---- Items ---- */

static void drop(qn_pool_class *class, uint32_t *item)
{
    if (*item != QN_NO_ITEM)
        qn_pool_drop(class, *item);
    *item = QN_NO_ITEM;
}

static uint32_t share(qn_pool_class *class, uint32_t item)
{
    if (item != QN_NO_ITEM)
        qn_pool_share(class, item);
    return item;
}

/* Takes a new item and copies the contents of `from` into it. */
static qn_status copy_item(const qn_cache *cache, qn_pool_class *class, uint32_t from, uint32_t *to)
{
    uint32_t item;
    QN_TRY(qn_pool_take(class, &item));
    const qn_status status =
        cache->copy(cache->context, qn_pool_address(class, item), qn_pool_address(class, from), qn_pool_stride(class));
    if (status != QN_OK) {
        qn_pool_drop(class, item);
        return status;
    }
    *to = item;
    return QN_OK;
}

/* Replaces an item by a copy if it is shared. */
static qn_status make_exclusive(const qn_cache *cache, qn_pool_class *class, uint32_t *item)
{
    uint32_t copy;
    if (!qn_pool_is_shared(class, *item))
        return QN_OK;
    QN_TRY(copy_item(cache, class, *item, &copy));
    qn_pool_drop(class, *item);
    *item = copy;
    return QN_OK;
}

/* ---- Pages ---- */

static qn_status grow_tables(qn_sequence *s, size_t n_pages)
{
    size_t cap_pages = s->max_pages, cap_f16 = s->max_pages;
    QN_TRY(qn_realloc_array(&s->pages, &cap_pages, n_pages, sizeof *s->pages, "page table"));
    if (has_codes(s))
        QN_TRY(qn_realloc_array(&s->f16_pages, &cap_f16, n_pages, sizeof *s->f16_pages, "page table"));
    for (size_t r = s->max_pages; r < cap_pages; r++) {
        s->pages[r] = QN_NO_ITEM;
        if (has_codes(s))
            s->f16_pages[r] = QN_NO_ITEM;
    }
    s->max_pages = cap_pages;
    return QN_OK;
}

/* The table of the pages that rows are written to: fp16 pages. */
static uint32_t *written_pages(const qn_sequence *s)
{
    return has_codes(s) ? s->f16_pages : s->pages;
}

/* The class of the pages that rows are written to. */
static qn_pool_class *written_class(const qn_sequence *s)
{
    return has_codes(s) ? s->cache->f16_pages : s->cache->pages;
}

static qn_status take_missing(qn_pool_class *class, uint32_t *item)
{
    return *item == QN_NO_ITEM ? qn_pool_take(class, item) : QN_OK;
}

static qn_status reserve_pages(qn_sequence *s, size_t n)
{
    const size_t end = s->length + n, first = s->length / QN_PAGE;
    if (!s->cache->pages)
        return QN_OK;
    QN_TRY(grow_tables(s, pages_of(end)));
    if (s->length % QN_PAGE)
        QN_TRY(make_exclusive(s->cache, written_class(s), &written_pages(s)[first]));
    for (size_t r = first; r < pages_of(end); r++) {
        QN_TRY(take_missing(written_class(s), &written_pages(s)[r]));
        if (has_codes(s) && r && (r + 1) * QN_PAGE <= end)
            QN_TRY(take_missing(s->cache->pages, &s->pages[r]));
    }
    return QN_OK;
}

/* Drops fp16 pages between page 0 and the last page: these are stored as codes too. They are the pages right before the
 * last one, so that a step takes the same time at every length. */
static void drop_quantized_pages(qn_sequence *s)
{
    for (size_t r = pages_of(s->length); has_codes(s) && r-- > 2 && s->f16_pages[r - 1] != QN_NO_ITEM;)
        drop(s->cache->f16_pages, &s->f16_pages[r - 1]);
}

/* Drops the pages that a sequence of s->length tokens does not need, among those below `end`. */
static void drop_unneeded_pages(qn_sequence *s, size_t end)
{
    const size_t complete = s->length / QN_PAGE, needed = pages_of(s->length);
    if (!s->cache->pages)
        return;
    /* From the last page down: the pool releases memory from the end. */
    for (size_t r = end; r-- > (has_codes(s) ? complete : needed);)
        drop(s->cache->pages, &s->pages[r]);
    for (size_t r = end; has_codes(s) && r-- > needed;)
        drop(s->cache->f16_pages, &s->f16_pages[r]);
    if (!s->is_ahead)
        drop_quantized_pages(s);
}

/* ---- Recurrent layers ---- */

/* Returns state_position after n more rows. */
static size_t state_position_after(const qn_sequence *s, size_t n)
{
    const size_t end = s->length + n, first_chunk = pages_of(s->length) * QN_PAGE;
    if (s->cache->folds_whole_chunks && first_chunk + QN_PAGE <= end)
        return end / QN_PAGE * QN_PAGE;
    return end > (size_t)s->state_position + QN_PAGE ? (end - 1) / QN_PAGE * QN_PAGE : s->state_position;
}

bool qn_sequence_folds(const qn_sequence *s, size_t n)
{
    return s->cache->states && state_position_after(s, n) != s->state_position;
}

static qn_status reserve_state(qn_sequence *s, size_t n)
{
    s->state_to = s->state;
    if (!qn_sequence_folds(s, n) || (s->state != QN_NO_ITEM && !qn_pool_is_shared(s->cache->states, s->state)))
        return QN_OK;
    return qn_pool_take(s->cache->states, &s->state_to);
}

/* ---- Steps ---- */

static void cancel(qn_sequence *s, size_t end)
{
    if (s->cache->states && s->state_to != s->state)
        drop(s->cache->states, &s->state_to);
    s->state_to = s->state;
    s->reserved = 0;
    drop_unneeded_pages(s, end);
}

qn_status qn_sequence_reserve(qn_sequence *s, size_t n)
{
    const size_t end = pages_of(s->length + n);
    qn_status status = reserve_state(s, n);
    if (status == QN_OK)
        status = reserve_pages(s, n);
    if (status != QN_OK) {
        cancel(s, end < s->max_pages ? end : s->max_pages);
        return status;
    }
    s->reserved = (uint32_t)n;
    return QN_OK;
}

/* Makes the folded state current. The old state is dropped later, because a step in flight may read it. */
static void take_folded_state(qn_sequence *s, size_t state_position)
{
    if (s->state_to != s->state)
        s->old_state = s->state;
    s->state = s->state_to;
    s->state_position = (uint32_t)state_position;
}

void qn_sequence_commit(qn_sequence *s, size_t n)
{
    const size_t end = pages_of(s->length + s->reserved);
    if (qn_sequence_folds(s, n)) {
        take_folded_state(s, state_position_after(s, n));
        drop(s->cache->states, &s->old_state);
    }
    s->length += (uint32_t)n;
    cancel(s, end);
}

void qn_sequence_advance(qn_sequence *s)
{
    const size_t n = s->reserved;
    if (qn_sequence_folds(s, n))
        take_folded_state(s, state_position_after(s, n));
    s->length += (uint32_t)n;
    s->reserved = 0;
    s->is_ahead = true;
}

void qn_sequence_settle(qn_sequence *s)
{
    s->is_ahead = false;
    if (s->cache->states)
        drop(s->cache->states, &s->old_state);
    if (s->cache->pages)
        drop_quantized_pages(s);
}

void qn_sequence_discard(qn_sequence *s)
{
    if (qn_sequence_folds(s, s->reserved) && s->state_to == s->state)
        s->state_position = s->length;
    cancel(s, pages_of(s->length + s->reserved));
}

/* ---- Truncation ---- */

uint32_t qn_sequence_rewind_length(const qn_sequence *s, uint32_t length)
{
    const size_t page = length / QN_PAGE;
    const bool has_rows = length % QN_PAGE == 0 || !has_codes(s) || s->f16_pages[page] != QN_NO_ITEM;
    return has_rows ? length : (uint32_t)page * QN_PAGE;
}

uint32_t qn_sequence_shortest(const qn_sequence *s)
{
    const uint32_t most = s->cache->max_dropped;
    if (!s->length || !s->cache->states)
        return s->length ? 1 : 0;
    uint32_t first = s->length == s->state_position ? s->length : s->state_position + 1;
    first = s->min_length > first ? s->min_length : first;
    return s->length - first > most ? s->length - most : first;
}

void qn_sequence_truncate(qn_sequence *s, uint32_t length)
{
    const size_t end = pages_of(s->length) < s->max_pages ? pages_of(s->length) : s->max_pages;
    if (s->cache->states)
        s->min_length = length ? qn_sequence_shortest(s) : 0;
    s->length = length;
    if (!length && s->cache->states) {
        drop(s->cache->states, &s->state);
        s->state_position = 0;
    }
    s->state_to = s->state;
    drop_unneeded_pages(s, end);
}

size_t qn_sequence_max_drafted(const qn_sequence *s, size_t n)
{
    const size_t kept = s->length + n, end = pages_of(kept) * QN_PAGE, first_chunk = pages_of(s->length) * QN_PAGE;
    size_t most = end - kept;
    if (!s->cache->states)
        return has_codes(s) ? most : SIZE_MAX;
    /* A row that completes a chunk folds it at once if the step contains all of the chunk. */
    if (most && s->cache->folds_whole_chunks && first_chunk + QN_PAGE <= end)
        most--;
    return most < s->cache->max_dropped ? most : s->cache->max_dropped;
}

/* ---- Sequences ---- */

qn_status qn_sequence_create(const qn_cache *cache, qn_sequence *s)
{
    *s = (qn_sequence){
        .cache = cache, .state = QN_NO_ITEM, .state_to = QN_NO_ITEM, .old_state = QN_NO_ITEM, .open_chunk = QN_NO_ITEM
    };
    return cache->open_chunks ? qn_pool_take(cache->open_chunks, &s->open_chunk) : QN_OK;
}

void qn_sequence_free(qn_sequence *s)
{
    if (!s->cache)
        return;
    if (s->is_ahead)
        qn_sequence_settle(s);
    if (s->reserved)
        cancel(s, pages_of(s->length + s->reserved));
    qn_sequence_truncate(s, 0);
    if (s->cache->open_chunks)
        drop(s->cache->open_chunks, &s->open_chunk);
    free(s->pages);
    free(s->f16_pages);
    *s = (qn_sequence){ 0 };
}

static qn_status fork_pages(const qn_sequence *from, qn_sequence *to)
{
    const size_t n = pages_of(from->length), open = from->length / QN_PAGE;
    if (!from->cache->pages || !n)
        return QN_OK;
    QN_TRY(grow_tables(to, n));
    for (size_t r = 0; r < n; r++) {
        const bool is_open = r == open;
        if (is_open)
            QN_TRY(copy_item(from->cache, written_class(from), written_pages(from)[r], &written_pages(to)[r]));
        if (!is_open || has_codes(from))
            to->pages[r] = share(from->cache->pages, from->pages[r]);
        if (!is_open && has_codes(from))
            to->f16_pages[r] = share(from->cache->f16_pages, from->f16_pages[r]);
    }
    return QN_OK;
}

/* Gives an empty sequence the items of another: shares complete pages and the state, and copies the open page and the
 * open chunk. */
static qn_status fork_items(const qn_sequence *from, qn_sequence *to)
{
    const qn_cache *cache = from->cache;
    to->length = from->length;
    to->state_position = from->state_position;
    to->min_length = from->min_length;
    if (cache->states)
        to->state = to->state_to = share(cache->states, from->state);
    QN_TRY(fork_pages(from, to));
    return cache->open_chunks
               ? cache->copy(cache->context, qn_pool_address(cache->open_chunks, to->open_chunk),
                             qn_pool_address(cache->open_chunks, from->open_chunk), qn_pool_stride(cache->open_chunks))
               : QN_OK;
}

qn_status qn_sequence_fork(const qn_sequence *from, qn_sequence *to)
{
    qn_status status = qn_sequence_create(from->cache, to);
    if (status == QN_OK)
        status = fork_items(from, to);
    if (status != QN_OK)
        qn_sequence_free(to);
    return status;
}

qn_status qn_sequence_assign(qn_sequence *to, const qn_sequence *from)
{
    qn_sequence_truncate(to, 0);
    const qn_status status = fork_items(from, to);
    if (status != QN_OK)
        qn_sequence_truncate(to, 0);
    return status;
}

/* ---- Extents ---- */

qn_extent qn_sequence_extent(const qn_sequence *s)
{
    const size_t n = pages_of(s->length);
    if (!s->cache->states)
        return (qn_extent){ .length = s->length };
    return (qn_extent){ .length = s->length,
                        .state_position = s->state_position,
                        .shortest = qn_sequence_shortest(s),
                        .has_last_page =
                            has_codes(s) && n > 1 && s->length % QN_PAGE == 0 && s->f16_pages[n - 1] != QN_NO_ITEM };
}

static qn_status restore_pages(qn_sequence *s, const qn_extent *extent)
{
    const size_t n = pages_of(extent->length), complete = extent->length / QN_PAGE;
    if (!s->cache->pages)
        return QN_OK;
    QN_TRY(grow_tables(s, n));
    for (size_t r = 0; r < n; r++) {
        if (!has_codes(s) || (r && r < complete))
            QN_TRY(qn_pool_take(s->cache->pages, &s->pages[r]));
        if (has_codes(s) && (r == 0 || r == complete || (r + 1 == n && extent->has_last_page)))
            QN_TRY(qn_pool_take(s->cache->f16_pages, &s->f16_pages[r]));
    }
    return QN_OK;
}

qn_status qn_sequence_restore(qn_sequence *s, const qn_extent *extent)
{
    qn_status status = QN_OK;
    s->length = extent->length;
    if (s->cache->states) {
        if (extent->state_position)
            status = qn_pool_take(s->cache->states, &s->state);
        s->state_position = extent->state_position;
        s->min_length = extent->shortest;
    }
    if (status == QN_OK)
        status = restore_pages(s, extent);
    s->state_to = s->state;
    if (status != QN_OK)
        qn_sequence_truncate(s, 0);
    return status;
}

/* ---- Pages of other sequences ---- */

qn_status qn_sequence_begin(qn_sequence *s, size_t n_pages)
{
    QN_TRY(grow_tables(s, n_pages));
    s->length = (uint32_t)n_pages * QN_PAGE;
    return QN_OK;
}

void qn_sequence_take_page(qn_sequence *s, size_t index, uint32_t page, uint32_t f16_page)
{
    s->pages[index] = share(s->cache->pages, page);
    if (has_codes(s))
        s->f16_pages[index] = share(s->cache->f16_pages, f16_page);
}

void qn_sequence_take_state(qn_sequence *s, uint32_t state)
{
    s->state = s->state_to = share(s->cache->states, state);
    s->state_position = s->length;
}

void qn_sequence_share_page(const qn_sequence *s, size_t index, uint32_t *page, uint32_t *f16_page)
{
    const bool is_f16 = has_codes(s) && index == 0;
    *page = is_f16 ? QN_NO_ITEM : share(s->cache->pages, s->pages[index]);
    *f16_page = is_f16 ? share(s->cache->f16_pages, s->f16_pages[index]) : QN_NO_ITEM;
}

static uint64_t bytes_of(const qn_pool_class *class, const uint32_t *items, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; class && i < n; i++)
        bytes += items[i] != QN_NO_ITEM ? qn_pool_stride(class) : 0;
    return bytes;
}

uint64_t qn_sequence_bytes(const qn_sequence *s)
{
    return bytes_of(s->cache->pages, s->pages, s->max_pages) +
           bytes_of(s->cache->f16_pages, s->f16_pages, s->max_pages) + bytes_of(s->cache->states, &s->state, 1) +
           bytes_of(s->cache->open_chunks, &s->open_chunk, 1);
}

/* ---- Capacity ---- */

/* Returns the granules of n sequences of `length` tokens. In a cache of codes each sequence has page 0 and the open
 * page in fp16; the sequence that grows also has the page before the open one. */
static uint64_t granules_of(const qn_cache *cache, uint64_t n, uint64_t length)
{
    const uint64_t pages = (length + QN_PAGE - 1) / QN_PAGE, f16_pages = pages < 2 ? pages : 2;
    uint64_t sum = 0;
    if (cache->f16_pages)
        sum += qn_pool_granules(cache->f16_pages, n * f16_pages + (pages > 2)) +
               qn_pool_granules(cache->pages, n * (length > QN_PAGE ? length / QN_PAGE - 1 : 0));
    else if (cache->pages)
        sum += qn_pool_granules(cache->pages, n * pages);
    if (cache->states)
        sum += qn_pool_granules(cache->states, length > QN_PAGE ? n : 0) + qn_pool_granules(cache->open_chunks, n);
    return sum;
}

uint64_t qn_cache_length(const qn_cache *cache, uint32_t n)
{
    const qn_pool_usage usage = qn_pool_get_usage(qn_pool_of(cache->pages ? cache->pages : cache->states));
    const uint64_t granules = usage.budget / usage.granule;
    uint64_t fits = 0, above = UINT32_MAX;
    while (above - fits > 1) {
        const uint64_t length = fits + (above - fits) / 2;
        *(granules_of(cache, n, length) <= granules ? &fits : &above) = length;
    }
    return fits;
}
