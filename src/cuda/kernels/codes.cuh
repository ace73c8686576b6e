// Loads of packed codes and their dequantisation by look-up tables in shared memory. A row is distributed over some
// lanes, a fragment for each. A table entry holds two fp16 values: of two codes if codes have up to 4 bits, else of one
// code twice. The including file defines
//
//   DIM                 head dimension
//   ENTRY_SHIFT         an entry has 1 << ENTRY_SHIFT bytes: a copy for each lane, against bank conflicts
//   TABLES_ALIGNED_64K  1 if the low 16 bits of the tables' shared address are zeros and ENTRY_SHIFT is 8: an address
//                       is then one byte permutation
#ifndef QN_CUDA_KERNELS_CODES_CUH
#define QN_CUDA_KERNELS_CODES_CUH

#include "cuda/kernels/attend.h"

#define ROW_WORDS(bits) ((DIM * (bits) + 31) / 32)

// ---- A lane's fragment of `dims` adjacent dimensions of a row: dims / lanes codes, as 32-bit words ----

template <int bits, int lanes, int dims = DIM> struct lane_fragment {
    static constexpr int codes = dims / lanes;
    static constexpr int all_words = (dims * bits + 31) / 32;
    static constexpr bool word_aligned = codes * bits % 32 == 0; // no word is shared between lanes
    static constexpr int words = (codes * bits + 31) / 32;
    static constexpr bool divides_word = bits == 2 || bits == 4 || bits == 8 || bits == 16;
    static constexpr int width = !word_aligned ? 1 : words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1; // words of a load
    static constexpr int run = word_aligned && divides_word ? width * 32 / bits : codes;          // adjacent codes

    // The dimension of the lane's n-th code.
    QN_DEVICE int dim_of(int n, int lane)
    {
        return (n / run * lanes + lane) * run + n % run;
    }
};

template <int width> QN_DEVICE void load_words(uint32_t *to, const uint32_t *from)
{
    if (width == 4)
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "l"(from));
    else if (width == 2)
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    else
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

// A row in global memory, as a source of load_fragment.
struct global_row {
    const uint32_t *words;

    // Loads words first + lane_word, ...
    template <int width> __device__ __forceinline__ void load(uint32_t *to, int first, int lane_word) const
    {
        load_words<width>(to, words + first + lane_word);
    }
};

// Loads a lane's fragment of a row. Word indices are the sum of one that is constant after unrolling and one of the
// lane.
template <int bits, int lanes, int dims = DIM, class row>
QN_DEVICE void load_fragment(uint32_t *to, const row &from, int lane)
{
    using p = lane_fragment<bits, lanes, dims>;
    if (p::word_aligned && p::divides_word) {
#pragma unroll
        for (int i = 0; i < p::words / p::width; i++)
            from.template load<p::width>(to + i * p::width, i * lanes * p::width, lane * p::width);
    } else if (p::word_aligned) {
#pragma unroll
        for (int i = 0; i < p::words; i += p::width)
            from.template load<p::width>(to + i, i, lane * p::words);
    } else {
        // Fragments that begin within a word: shifted so that the first code is at bit 0.
        const int begin = lane * p::codes * bits, first = begin / 32;
        uint32_t low, high;
        from.template load<1>(&low, 0, first);
#pragma unroll
        for (int i = 0; i < p::words; i++) {
            from.template load<1>(&high, 0, min(first + i + 1, p::all_words - 1));
            to[i] = __funnelshift_r(low, high, begin % 32);
            low = high;
        }
    }
}

// The same of row `row` of rows in global memory.
template <int bits, int lanes, int dims = DIM>
QN_DEVICE void load_lane_fragment(uint32_t *to, const uint8_t *rows, uint32_t row, int lane)
{
    load_fragment<bits, lanes, dims>(to, global_row{ (const uint32_t *)(rows + (uint64_t)row * (ROW_WORDS(bits) * 4)) }, lane);
}

// `n` bits from bit `at` of the words on, in the low bits of the result. The bits above are not masked.
template <int n> QN_DEVICE uint32_t bit_field(const uint32_t *words, int at)
{
    const int word = at / 32, shift = at % 32;
    return shift + n <= 32 ? words[word] >> shift : __funnelshift_r(words[word], words[word + 1], shift);
}

// ---- Tables ----

// Bits of a table's index: two codes of up to 4 bits, else one code.
__device__ constexpr int index_bits(int bits)
{
    return bits == 16 ? 0 : bits <= 4 ? 2 * bits : bits;
}

#ifndef TABLE_OFFSET // where the address of the tables is a constant: it is then not in `table`
#define TABLE_OFFSET 0
#endif

// The table entry of the `n` bits of x from bit `at` on. table: shared address of the lane's copy of entry 0; offset:
// of the keys' or the values' table within an entry.
template <int n, int offset> QN_DEVICE uint32_t lut_load(uint32_t table, uint32_t x, int at)
{
    uint32_t address, entry;
    if (TABLES_ALIGNED_64K && n == 8 && at % 8 == 0) {
        address = __byte_perm(x, table, 0x7604 | at / 8 << 4);
    } else {
        const uint32_t mask = ((1u << n) - 1) << ENTRY_SHIFT;
        address = (at >= ENTRY_SHIFT ? x >> (at - ENTRY_SHIFT) : x << (ENTRY_SHIFT - at)) & mask;
        address = TABLES_ALIGNED_64K || TABLE_OFFSET ? address | table : address + table;
    }
    asm volatile("ld.shared.u32 %0, [%1 + %2];" : "=r"(entry) : "r"(address), "n"(TABLE_OFFSET + offset));
    return entry;
}

// The values of entry `i`, before their gain.
template <int bits> QN_DEVICE float2 load_table_values(uint32_t i, const qn_attention_gpu_codec &codec)
{
    if (bits == 16)
        return make_float2(0, 0);
    const uint32_t mask = (1u << bits) - 1, low = i & mask, high = bits <= 4 ? i >> bits & mask : low;
    return make_float2(codec.codebook[low], codec.codebook[high]);
}

template <int bits> QN_DEVICE uint32_t make_table_entry(uint32_t i, const qn_attention_gpu_codec &codec)
{
    const float2 x = load_table_values<bits>(i, codec);
    return qn_f32_to_f16x2(x.x * codec.gain, x.y * codec.gain);
}

// Codes 2p and 2p+1 of a fragment as two fp16 values; `offset` as in lut_load.
template <int bits, int offset> QN_DEVICE uint32_t dequantize_pair(uint32_t table, const uint32_t *words, int p)
{
    if (bits == 16)
        return words[p];
    const int at = p * 2 * bits;
    if (bits <= 4) {
        if (at % 32 + 2 * bits <= 32)
            return lut_load<index_bits(bits), offset>(table, words[at / 32], at % 32);
        return lut_load<index_bits(bits), offset>(table, bit_field<2 * bits>(words, at), 0);
    }
    const uint32_t both = bit_field<2 * bits>(words, at);
    return __byte_perm(lut_load<index_bits(bits), offset>(table, both, 0),
                       lut_load<index_bits(bits), offset>(table, both, bits), 0x7610);
}

#endif
