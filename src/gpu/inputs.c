/* Places the arrays of a step's inputs one after the other, and fills them. */
#include "gpu/inputs.h"

#include "base/memory.h"

enum { ALIGN = 16 };

static void add(size_t *used, size_t count, size_t size, size_t *at)
{
    *at = *used;
    *used = qn_round_up(*used + count * size, ALIGN);
}

qn_gpu_inputs qn_gpu_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits, size_t n_hidden)
{
    qn_gpu_inputs in = { 0 };
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.kv_tables);
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.f16_tables);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_from);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_to);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.open_chunks);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_positions);
    add(&in.bytes, n_pieces + 1, sizeof(uint32_t), &in.cu_seqlens);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.first_positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.tokens);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sources);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sequences);
    add(&in.bytes, n_logits, sizeof(uint32_t), &in.logit_rows);
    add(&in.bytes, n_hidden, sizeof(uint64_t), &in.hidden_from);
    add(&in.bytes, n_hidden, sizeof(uint64_t), &in.hidden_to);
    add(&in.bytes, n_hidden, sizeof(uint32_t), &in.ends);
    in.sampling = in.bytes;
    return in;
}

/* ---- Contents ---- */

static uint64_t *addresses_at(uint8_t *host, size_t offset)
{
    return (uint64_t *)(void *)(host + offset);
}

static uint32_t *words_at(uint8_t *host, size_t offset)
{
    return (uint32_t *)(void *)(host + offset);
}

static void fill_sequence(const qn_gpu_inputs *in, const qn_gpu_piece *piece, size_t i, uint8_t *host)
{
    const qn_sequence none = { 0 }, *sequence = piece->rows ? piece->memory->base.sequence : &none;
    addresses_at(host, in->kv_tables)[i] = piece->rows ? piece->memory->kv_table : 0;
    addresses_at(host, in->f16_tables)[i] = piece->rows ? piece->memory->f16_table : 0;
    words_at(host, in->state_from)[i] = sequence->state;
    words_at(host, in->state_to)[i] = sequence->state_to;
    words_at(host, in->open_chunks)[i] = sequence->open_chunk;
    words_at(host, in->state_positions)[i] = sequence->state_position;
    words_at(host, in->first_positions)[i] = piece->position;
}

static void fill_rows(const qn_gpu_inputs *in, const qn_gpu_piece *piece, size_t i, uint8_t *host)
{
    uint32_t *begins = words_at(host, in->cu_seqlens);
    begins[i + 1] = begins[i] + (piece->rows ? piece->n : 0);
    for (uint32_t row = 0; row < piece->n; row++) {
        const uint32_t at = piece->row + row;
        words_at(host, in->tokens)[at] = piece->rows ? (uint32_t)piece->rows[row].token : 0;
        words_at(host, in->sources)[at] = piece->rows ? piece->rows[row].source : 0;
        words_at(host, in->positions)[at] = piece->position + row;
        words_at(host, in->sequences)[at] = piece->rows ? (uint32_t)i : QN_GPU_NO_SEQUENCE;
    }
}

void qn_gpu_fill_inputs(const qn_gpu_inputs *in, const qn_gpu_piece *pieces, size_t n_pieces, uint8_t *host)
{
    words_at(host, in->cu_seqlens)[0] = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        fill_sequence(in, &pieces[i], i, host);
        fill_rows(in, &pieces[i], i, host);
    }
}

/* The rows of the sequence of a piece: consecutive pieces may be of one. *next: the piece after them. */
static uint32_t sequence_rows(const qn_gpu_piece *pieces, size_t n_pieces, size_t i, size_t *next)
{
    uint32_t n = 0;
    for (*next = i; *next < n_pieces && pieces[*next].rows && pieces[*next].memory == pieces[i].memory; ++*next)
        n += pieces[*next].n;
    return n;
}

void qn_gpu_fill_hidden(const qn_gpu_inputs *in, const qn_gpu_piece *pieces, size_t n_pieces, bool is_draft,
                        uint8_t *host)
{
    for (size_t i = 0, next; i < n_pieces; i = next) {
        const qn_gpu_piece *piece = &pieces[i];
        const uint32_t n = sequence_rows(pieces, n_pieces, i, &next);
        uint64_t *from = addresses_at(host, in->hidden_from) + piece->row,
                 *to = addresses_at(host, in->hidden_to) + piece->row;
        qn_gpu_memory *m = piece->memory;
        if (!n) {
            *from = *to = 0;
            next = i + 1;
        } else if (is_draft) {
            qn_gpu_head_rows_draft(&m->head_rows, m->format->head_width, piece->position, m->sequence.length, from, to);
        } else {
            qn_gpu_head_rows_step(&m->head_rows, m->format->head_width, piece->position, n, from, to);
        }
    }
}

void qn_gpu_fill_ends(const qn_gpu_inputs *in, const qn_gpu_piece *pieces, size_t n_pieces, bool is_causal,
                      uint8_t *host)
{
    for (size_t i = 0; i < n_pieces; i++)
        for (uint32_t row = 0; row < pieces[i].n; row++)
            words_at(host, in->ends)[pieces[i].row + row] = pieces[i].position + (is_causal ? row : pieces[i].n - 1);
}
