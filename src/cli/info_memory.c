/* quern info: the memory that a model needs, and the memory of this machine. Nothing is loaded: the sizes of caches and
 * states are those of their contents (cache/saved_layout.h), which devices pad by little. */
#include "cli/info_memory.h"

#include "cache/saved_layout.h"
#include "cli/cli.h"
#include "device/registry.h"
#include "model/kv_bias.h"
#include "plan/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    COLUMNS = 3,
    BLOCK = QN_SAVED_BLOCK_PAGES * QN_PAGE /* positions: after the first block all need the same */
};

static uint64_t bytes_of(const qn_saved_layout *layout, uint32_t length)
{
    return qn_saved_kv_bytes(layout, &(qn_extent){ .length = length });
}

/* Returns the KV cache's bytes at a length. */
static uint64_t kv_bytes(const qn_saved_layout *layout, uint64_t length)
{
    if (length <= BLOCK)
        return bytes_of(layout, (uint32_t)length);
    const uint64_t rest = length % BLOCK + BLOCK;
    return bytes_of(layout, (uint32_t)rest) +
           (length - rest) / BLOCK * (bytes_of(layout, 2 * BLOCK) - bytes_of(layout, BLOCK));
}

/* Returns the greatest length, at most `most`, whose cache is no larger than `room`. */
static uint64_t longest(const qn_saved_layout *layout, uint64_t room, uint64_t most)
{
    uint64_t fits = 0, exceeds = most + 1;
    while (exceeds - fits > 1) {
        const uint64_t middle = fits + (exceeds - fits) / 2;
        if (kv_bytes(layout, middle) <= room)
            fits = middle;
        else
            exceeds = middle;
    }
    return fits;
}

/* Sets the context lengths of the table: 4K, 32K and all that the model was trained for. Returns their number. */
static size_t find_lengths(uint64_t trained, uint64_t lengths[COLUMNS])
{
    size_t n = 0;
    if (trained > 4096)
        lengths[n++] = 4096;
    if (trained > 32768)
        lengths[n++] = 32768;
    lengths[n++] = trained;
    return n;
}

static void print_fit(uint64_t fits, uint64_t trained)
{
    if (fits == trained)
        puts("  fits");
    else if (fits)
        printf("  fits up to %" PRIu64 " tokens\n", fits);
    else
        puts("  does not fit");
}

static bool has_format(const qn_hparams *hparams, const qn_plan *plan, const qn_kv_format *format)
{
    return !format->key_bits || (qn_aura_has_dim(hparams->head_dim) && !qn_plan_has_large_kv_bias(plan));
}

/* Prints the table of the KV cache's formats. any_fit: weights and state fit, with some memory left for a cache. room:
 * the bytes that are left then; UINT64_MAX: unknown. */
static void print_formats(const qn_hparams *hparams, const qn_plan *plan, bool any_fit, uint64_t room)
{
    uint64_t lengths[COLUMNS];
    const size_t n = find_lengths(hparams->n_ctx_train, lengths);
    const qn_kv_format *format;
    char size[32];
    fputs("KV for    ", stdout);
    for (size_t i = 0; i < n; i++)
        printf(" %12" PRIu64, lengths[i]);
    puts(" tokens");
    for (size_t f = 0; qn_kv_names[f]; f++) {
        if (qn_kv_format_named(qn_kv_names[f], &format) != QN_OK || !has_format(hparams, plan, format))
            continue;
        const qn_saved_layout layout = qn_saved_layout_of(plan, format);
        printf("  %-8s", format->name);
        for (size_t i = 0; i < n; i++)
            printf(" %12s", qn_print_size(size, kv_bytes(&layout, lengths[i])));
        if (room == UINT64_MAX)
            putchar('\n');
        else
            print_fit(any_fit ? longest(&layout, room, hparams->n_ctx_train) : 0, hparams->n_ctx_train);
    }
}

void qn_print_memory(const qn_gguf *file, const qn_hparams *hparams, const qn_plan *plan, const char *device)
{
    uint64_t weights = 0, state = 0, available = UINT64_MAX;
    qn_device_name name;
    char size[32];
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++)
        weights += qn_gguf_tensor_at(file, i)->bytes;
    for (size_t i = 0; plan->is_recurrent && i < plan->n_layers; i++)
        state += plan->is_recurrent[i] ? qn_saved_layer_bytes(&plan->recurrent) : 0;
    printf("memory      weights %s", qn_print_size(size, weights));
    if (state)
        printf(", state %s a sequence", qn_print_size(size, state));
    if (qn_device_name_select(device, &name) || qn_device_memory(&name, &available)) {
        fputs("; the device is not usable: ", stdout);
        qn_print_escaped(stdout, qn_error_text(), strlen(qn_error_text()));
        putchar('\n');
    } else if (available == UINT64_MAX) {
        puts("; how much is available is not known");
    } else {
        printf(qn_device_is_cpu(&name) ? "; %s are available\n" : "; the GPU has %s\n", qn_print_size(size, available));
    }
    const bool any_fit = available > weights && available - weights > state;
    print_formats(hparams, plan, any_fit, any_fit && available != UINT64_MAX ? available - weights - state : available);
}
