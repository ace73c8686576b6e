/* Pages of the cache. Page tables have addresses of the pool: granule of memory, then the offset in it. The granules lie
 * anywhere; a table has their addresses. 16 bytes at a multiple of 16 are in one granule. */
#define PAGE 64

uint granule_of(uint shift, uvec2 at)
{
    return at.x >> shift | at.y << 32 - shift;
}

uvec2 address_in_pool(uvec2 granules, uint shift, uvec2 at)
{
    return advance(Addresses(granules).at[granule_of(shift, at)], 1, at.x & (1u << shift) - 1);
}

/* An array in an item, and its address if it lies in one granule, as nearly all do. */
struct Place {
    uvec2 at, start, granules;
    uint shift;
    bool is_whole;
};

Place place_of(uvec2 granules, uint shift, uvec2 at, uint bytes)
{
    const uvec2 last = advance(at, 1, bytes - 1);
    return Place(at, address_in_pool(granules, shift, at), granules, shift,
                 granule_of(shift, at) == granule_of(shift, last));
}

uvec2 address_at(Place p, uint offset)
{
    return p.is_whole ? advance(p.start, 1, offset) : address_in_pool(p.granules, p.shift, advance(p.at, 1, offset));
}
